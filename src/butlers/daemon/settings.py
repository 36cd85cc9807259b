"""What can be set, and where from: command-line flag > environment > `butlers.toml` > default.

Every setting is one field below. Its environment variable is `BUTLERS_` and the field's name in capitals, unless the
table `VARIABLES` says otherwise. `docs/operating/configuration.md` is generated from here.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import pydantic
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from butlers.contracts.notify import check_unsubscribe_url
from butlers.errors import ConfigurationError
from butlers.outbound.queue import check_queue_address
from butlers.serving.connections import DoorLimits
from butlers.simulators import simulator_ports
from butlers.storage.claims import LeasePolicy

PortNumber = Annotated[int, Field(ge=1, le=65535)]
MailTls = Literal["auto", "starttls", "implicit", "none"]
WhoMayWrite = Literal["owner", "contacts", "pairing", "open"]
_LEASE = LeasePolicy()
COURIER_PORT = 8787
PREFIX = "BUTLERS_"
PORT_PREFIX = "BUTLERS_PORT_"
VARIABLES: Mapping[str, str] = {"database_url": "DATABASE_URL", "otlp_endpoint": "OTEL_EXPORTER_OTLP_ENDPOINT"}


def default_data_dir(environment: Mapping[str, str]) -> Path:
    base = environment.get("XDG_DATA_HOME")
    return (Path(base) if base else Path.home() / ".local" / "share") / "butlers"


class Settings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    data_dir: Path = Field(description="where everything is kept: database, tokens, logs, simulators")
    roster: Path | None = Field(default=None, description="folder of butlers; default: the one that is shipped")
    host: str = Field(default="127.0.0.1", description="address to listen on; any but loopback requires tokens")
    port_offset: int = Field(default=0, ge=0, le=25_000, description="added to every port, to run two systems at once")
    ports: dict[str, PortNumber] = Field(
        default={}, description="ports by butler or simulator name, instead of the usual"
    )
    courier: Literal["on", "off"] = Field(
        default="on", description="whether Switchboard's process serves the streams that remote butlers attach to"
    )
    courier_config: Path | None = Field(default=None, description="the courier's own YAML file; default: its defaults")
    database_url: str | None = Field(default=None, description="a PostgreSQL >= 15; default: the embedded one")
    database_pool: int = Field(default=20, ge=2, le=200, description="connections this process may open")
    database_durable: bool = Field(default=True, description="embedded database: false is faster and unsafe (tests)")
    simulators: Literal["auto", "on", "off"] = Field(
        default="auto", description="auto: simulate each provider whose credentials are not set"
    )
    telegram_api_url: str = Field(default="https://api.telegram.org", description="base address of the Bot API")
    telegram_poll_s: int = Field(default=25, ge=0, le=50, description="how long one poll for updates may wait")
    smtp_host: str = Field(default="localhost", description="mail server that takes outgoing mail")
    smtp_port: int = Field(default=587, ge=1, le=65535, description="its port")
    smtp_tls: MailTls = Field(
        default="auto", description="starttls, implicit or none; auto: implicit at port 465, starttls at all others"
    )
    imap_host: str | None = Field(default=None, description="mail server that keeps the mailbox; unset: not read")
    imap_port: int = Field(default=993, ge=1, le=65535, description="its port")
    imap_tls: MailTls = Field(
        default="auto", description="starttls, implicit or none; auto: implicit at port 993, starttls at all others"
    )
    mail_login: str | None = Field(
        default=None,
        max_length=320,
        description="the bot's login name at its mail servers; unset: its address",
    )
    smtp_login: str | None = Field(
        default=None,
        max_length=320,
        description="its login name for outgoing mail only; unset: mail_login",
    )
    mail_from_name: str | None = Field(
        default=None, max_length=100, description="name shown beside the bot's address in outgoing mail"
    )
    mail_tls_ca: Path | None = Field(
        default=None, description="certificates of authorities that mail servers are trusted by, beside the usual ones"
    )
    bounce_poll_s: float = Field(default=60.0, gt=0, description="how often the mailbox is read for bounces")
    provider_probe_s: float = Field(
        default=300.0, ge=0, description="how often real providers are asked whether they know us; 0: never"
    )
    calendar_api_url: str = Field(
        default="https://www.googleapis.com/calendar/v3", description="base address of the Google Calendar API"
    )
    calendar_token_url: str = Field(
        default="https://oauth2.googleapis.com/token", description="where its access tokens come from"
    )
    llm: Literal["off", "on"] = Field(
        default="off", description="on: run each butler's configured LLM CLI; off: the local runtime"
    )
    owner_name: str = Field(default="Owner", description="the person this system works for")
    owner_telegram: str | None = Field(default=None, description="the owner's Telegram chat id")
    owner_email: str | None = Field(default=None, description="the owner's mail address")
    who_may_write_telegram: WhoMayWrite | None = Field(
        default=None,
        description="whose Telegram messages are served: owner, contacts, pairing (strangers get a code that the owner "
        "approves), open; default: owner with a real token, open with the simulator",
    )
    who_may_write_email: WhoMayWrite | None = Field(
        default=None,
        description="the same for mail; default: owner with a real mailbox, open with the simulator",
    )
    mail_authentication: Literal["required", "off"] | None = Field(
        default=None,
        description="required: a mail counts as its sender's only when the receiving server says so "
        "(Authentication-Results); default: required with a real mailbox, off with the simulator",
    )
    mail_authserv_id: str | None = Field(
        default=None,
        description="name of that server, as its Authentication-Results headers begin, such as mx.google.com",
    )
    public_url: str | None = Field(
        default=None,
        pattern=r"^https?://[^\s?#]+$",
        max_length=500,
        description="https address at which people's mail programs reach Switchboard, such as "
        "https://mail.example.org; http only on this machine; "
        "unset: messages carry no unsubscribe link",
    )
    entitlement_service: str | None = Field(
        default=None,
        max_length=500,
        description="module:factory of the company's own answer to who may send and receive; unset: the stored one",
    )
    webhook_private_networks: Literal["refuse", "allow"] = Field(
        default="refuse",
        description="whether endpoints of outgoing webhooks may be in private networks or, also without TLS, on this "
        "machine",
    )
    webhook_retry_s: str = Field(
        default="5,300,1800,7200,18000,36000,50400,72000,86400",
        pattern=r"^\d{1,7}(\.\d{1,3})?(,\d{1,7}(\.\d{1,3})?){0,29}$",
        description="seconds before each further attempt of an outgoing webhook, about three days in all",
    )
    api_token_required: bool = Field(
        default=False, description="true: callers in the own account on this machine need a token, too"
    )
    max_body_bytes: int = Field(default=1_048_576, ge=1_024, description="largest request body of POST /api/ingest")
    http_head_bytes: int = Field(
        default=32_768, ge=1_024, le=1_048_576, description="largest head of a request: its line and header fields"
    )
    http_head_fields: int = Field(default=100, ge=10, le=10_000, description="header fields a request may have")
    http_target_bytes: int = Field(default=8_192, ge=256, le=65_536, description="longest path with query of a request")
    http_head_timeout_s: float = Field(default=10.0, gt=0, description="time in which the head of a request must come")
    http_body_idle_s: float = Field(
        default=30.0, gt=0, description="silence within a body, or of a client that does not read its answer"
    )
    http_keep_alive_s: float = Field(default=5.0, gt=0, description="silence after which an idle connection is closed")
    http_connections: int = Field(
        default=1_000, ge=8, description="connections to all doors of a process; silent ones give way to new ones"
    )
    http_connections_per_address: int = Field(
        default=500, ge=4, description="the same for one address, this machine's own included"
    )
    content_dedupe_window_s: float = Field(
        default=300.0, ge=0, description="API messages without a key that repeat within this time are one message"
    )
    request_patience_s: float = Field(
        default=300.0, ge=0, description="how long a message waits for a butler that is away before it is given up"
    )
    messenger_patience_s: float = Field(
        default=5.0, ge=0, description="how long an answer waits for a Messenger that is away before it fails"
    )
    inbox_keep_months: int = Field(default=1, ge=1, description="months of message_inbox kept beside the present one")
    dedupe_keep_days: int = Field(default=62, ge=1, description="how long an event is recognised when it comes again")
    lease_ttl_s: float = Field(default=_LEASE.ttl, gt=0, description="silence after which a worker counts as dead")
    lease_renew_s: float = Field(default=_LEASE.renew_every, gt=0, description="how often a worker says that it lives")
    heartbeat_s: float = Field(default=30.0, gt=0, description="how often butlers report to Switchboard")
    connector_heartbeat_s: float = Field(
        default=30.0, gt=0, description="how often connectors report; silent for 2 minutes is stale, for 4 offline"
    )
    outbound_queue: str = Field(
        default="postgres",
        repr=False,
        description="where messages wait to be sent: postgres, memory (lost at a stop), or a Redis: "
        "redis://user:password@host:port/db, rediss://..., unix:///path; ?prefix=NAME names its keys",
    )
    otlp_endpoint: str | None = Field(default=None, description="send metrics and traces there (OTLP over HTTP)")
    spark_master: str = Field(
        default="local[*]",
        description="where scheduled jobs of the pipeline run: here, spark://..., yarn, or none (started elsewhere)",
    )
    spark_memory: str = Field(
        default="1g", pattern=r"^[1-9]\d*[kmgtKMGT]b?$", description="memory of such a job's driver, 512m or more"
    )
    spark_limit_s: float = Field(default=3600.0, gt=0, description="a scheduled job that takes longer is ended")
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(default="INFO", description="of the log file")
    log_max_bytes: int = Field(
        default=10_485_760,
        ge=4_096,
        description="size at which a log file is put aside, also the database's",
    )
    log_keep: int = Field(default=5, ge=1, le=1_000, description="old log files that are kept of each")

    @field_validator("outbound_queue")
    @classmethod
    def _names_a_queue(cls, address: str) -> str:
        try:
            check_queue_address(address)
        except ConfigurationError as error:
            raise ValueError(f"{error.problem}: {error.remedy}") from None
        return address

    @field_validator("public_url")
    @classmethod
    def _links_can_be_sent(cls, url: str | None) -> str | None:
        """An address under which notify.v1 takes unsubscribe links."""
        return check_unsubscribe_url(url) if url is not None else None

    @model_validator(mode="after")
    def _renewed_before_stale(self) -> Self:
        if self.lease_renew_s >= self.lease_ttl_s:
            raise ValueError("lease_renew_s must be shorter than lease_ttl_s")
        return self

    def who_may_write(self, channel: str) -> WhoMayWrite:
        """Whose messages are served on a channel that people write by."""
        return getattr(self, f"who_may_write_{channel}", None) or "owner"

    def port(self, name: str, usual: int) -> int:
        """The port of a butler or simulator."""
        return self.ports.get(name, usual + self.port_offset)

    def simulator_port(self, name: str) -> int:
        return self.port(name, simulator_ports()[name])

    @property
    def webhook_retries(self) -> tuple[float, ...]:
        """Seconds before each further attempt."""
        return tuple(float(pause) for pause in self.webhook_retry_s.split(","))

    @property
    def courier_port(self) -> int:
        return self.port("courier", COURIER_PORT)

    @property
    def loopback_only(self) -> bool:
        return self.host in ("127.0.0.1", "localhost", "::1")

    @property
    def simulator_host(self) -> str:
        """Simulators are for this machine alone, wherever the doors listen: who reaches one may write as the owner."""
        return self.host if self.loopback_only else "127.0.0.1"

    @property
    def token_required(self) -> bool:
        return self.api_token_required or not self.loopback_only

    @property
    def door_limits(self) -> DoorLimits:
        return DoorLimits(
            head_bytes=self.http_head_bytes,
            head_fields=self.http_head_fields,
            target_bytes=self.http_target_bytes,
            head_s=self.http_head_timeout_s,
            body_idle_s=self.http_body_idle_s,
            keep_alive_s=self.http_keep_alive_s,
            connections=self.http_connections,
            per_address=self.http_connections_per_address,
        )

    @property
    def roster_dir(self) -> Path:
        return self.roster or shipped_roster()


def load_settings(flags: Mapping[str, Any], environment: Mapping[str, str]) -> Settings:
    """Merge all sources; a mistake names its source, its key and the remedy."""
    given = {key: value for key, value in flags.items() if value is not None}
    from_environment = _from_environment(environment)
    data_dir = given.get("data_dir") or from_environment.get("data_dir") or default_data_dir(environment)
    config = given.pop("config", None) or environment.get("BUTLERS_CONFIG")
    path = Path(config) if config else Path(data_dir) / "butlers.toml"
    from_file = _from_file(path, required=config is not None)
    merged = {"data_dir": data_dir} | from_file | from_environment | given
    sources = [source["ports"] for source in (from_file, from_environment, given) if "ports" in source]
    if sources and all(isinstance(ports, dict) for ports in sources):
        merged["ports"] = {name: port for ports in sources for name, port in ports.items()}
    try:
        return Settings.model_validate(merged)
    except pydantic.ValidationError as error:
        raise _mistake(error, given, from_environment, path) from None


def near_names(name: str, known: Iterable[str]) -> list[str]:
    """What may have been meant, nearest first."""
    return get_close_matches(name, list(known), n=2, cutoff=0.7)


def unknown_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables that look like a setting's and are none, each with the one that is near: a slip that has no effect."""
    known = {variable_of(field): field for field in Settings.model_fields} | {"BUTLERS_CONFIG": "config"}
    strangers = (name for name in environment if name.startswith(PREFIX) and not name.startswith(PORT_PREFIX))
    unknown = {name: name.removeprefix(PREFIX).lower() for name in sorted(strangers) if name not in known}
    found = {name: near_names(field, known.values()) for name, field in unknown.items()}
    return {name: variable_of(near[0]) for name, near in found.items() if near}


def _flag_of(key: str) -> str:
    """How the key was given on the command line."""
    if key in ("data_dir", "port_offset"):
        return f"--{key.replace('_', '-')}"
    return f"--port {key.removeprefix('ports.')}" if key.startswith("ports.") else f"--set {key}"


def check_port_names(settings: Settings, butlers: Iterable[str]) -> None:
    """A port for a name that nobody has would be set in vain."""
    known = sorted({*butlers, *simulator_ports(), "courier"})
    if unknown := sorted(settings.ports.keys() - {*known}):
        near = near_names(unknown[0], known)
        raise ConfigurationError(
            "there is no butler and no simulator of this name",
            source="ports",
            key=unknown[0],
            remedy=f"{f'did you mean {near[0]}? ' if near else ''}choose among {', '.join(known)}",
        )


def port_remedy(name: str = "NAME") -> str:
    """What to do about a port that somebody else has: the same words wherever that is noticed."""
    return f"stop what uses the port, or use --port-offset N or --port {name}=NUMBER"


def variable_of(field: str) -> str:
    return VARIABLES.get(field, PREFIX + field.upper())


def shipped_roster() -> Path:
    """The roster of the checkout, or the copy inside an installed package."""
    package = Path(__file__).parents[1]
    beside = package.parents[1] / "roster"
    return beside if beside.is_dir() else package / "roster"


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {
        field: environment[variable]
        for field in Settings.model_fields
        if field != "ports" and (variable := variable_of(field)) in environment and environment[variable] != ""
    }
    ports = {
        key.removeprefix(PORT_PREFIX).lower(): value
        for key, value in environment.items()
        if key.startswith(PORT_PREFIX) and key != "BUTLERS_PORT_OFFSET"
    }
    return found | ({"ports": ports} if ports else {})


def _from_file(path: Path, *, required: bool) -> dict[str, Any]:
    if not path.is_file():
        if required:
            raise ConfigurationError(
                "file not found", source=str(path), key="--config", remedy="name a file that exists"
            )
        return {}
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"not valid TOML: {error}", source=str(path), key="(file)", remedy="mend the syntax"
        ) from None


def _mistake(
    error: pydantic.ValidationError, flags: Mapping[str, Any], environment: Mapping[str, Any], path: Path
) -> ConfigurationError:
    first = error.errors(include_url=False, include_input=False)[0]
    field = str(first["loc"][0]) if first["loc"] else "lease_renew_s"
    problem = "unknown key" if first["type"] == "extra_forbidden" else str(first["msg"]).removeprefix("Value error, ")
    key = ".".join(map(str, first["loc"])) or field
    remedy = "see docs/operating/configuration.md"
    if first["type"] == "extra_forbidden" and (near := near_names(field, Settings.model_fields)):
        remedy = f"did you mean {' or '.join(near)}? All are in docs/operating/configuration.md"
    if field in flags:
        return ConfigurationError(problem, source="command line", key=_flag_of(key), remedy=remedy)
    if field in environment:
        return ConfigurationError(problem, source="environment", key=variable_of(field), remedy=remedy)
    return ConfigurationError(problem, source=str(path), key=key, remedy=remedy)
