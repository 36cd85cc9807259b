"""butler.toml: what one butler is, checked to the last key before anything starts.

An unknown key, an inline secret, a wrong environment-variable name or a missing value of an enabled credential scope
stops the start with one message that names the file, the key and the remedy.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
from pydantic import Field, GetCoreSchemaHandler, GetPydanticSchema, field_validator, model_validator
from pydantic_core import CoreSchema

from butlers.butler.cron import cron_problem
from butlers.butler.delivery_config import DeliverySection
from butlers.butler.modules import Modules, installed_modules
from butlers.butler.routing_config import AdmissionSection, LifecycleSection, RoutingSection
from butlers.butler.section import Section
from butlers.errors import ConfigurationError

RuntimeKind = Literal["local", "codex", "claude", "opencode"]
_SECRET_WORDS = re.compile(r"(^|_)(token|password|passwd|secret|api_?key|credential)s?$", re.IGNORECASE)
_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")


class DatabaseSection(Section):
    name: str = Field(default="butlers", description="the database, shared by all butlers")
    schema_name: str = Field(alias="schema", description="the butler's own schema in it")

    @field_validator("name", "schema_name")
    @classmethod
    def _is_identifier(cls, value: str) -> str:
        if not _NAME.fullmatch(value):
            raise ValueError("must be a lower-case identifier")
        return value


class RuntimeSection(Section):
    type: RuntimeKind = Field(default="local", description="which program thinks for the butler when llm is on")
    model: str | None = Field(default=None, description="the model to ask for; default: the program's own")
    command: str | None = Field(default=None, description="the executable, when it is not on PATH under its own name")
    max_concurrent_sessions: int = Field(default=3, ge=1, le=64, description="sessions of the program at one time")
    timeout_s: float = Field(default=120.0, gt=0, description="seconds one session may take")


class SecuritySection(Section):
    trusted_route_callers: list[str] = Field(
        default=["switchboard"], description="principals that may call route.execute; an empty list refuses everybody"
    )


class ShutdownSection(Section):
    timeout_s: float = Field(default=30.0, gt=0, description="seconds to finish what is in hand when stopping")


class RegistrySection(Section):
    """What Switchboard tells its router about this butler."""

    triggers: list[str] = Field(default=[], description="words and phrases that say a message is for this butler")
    required_information: list[str] = Field(default=[], description="what the butler needs to know to act")
    route_timeout_s: float = Field(default=60.0, gt=0, description="seconds one route.execute may take")


class ScheduleSection(Section):
    name: str = Field(min_length=1, description="unique within the butler")
    cron: str = Field(description="cron expression of five fields, in UTC")
    dispatch_mode: Literal["job", "prompt"] = Field(default="prompt", description="job: native code; prompt: the LLM")
    job_name: str | None = Field(default=None, description="the native job; required by dispatch_mode job")
    job_args: dict[str, Any] = Field(default={}, description="handed to the job")
    prompt: str | None = Field(default=None, description="what the LLM is told; required by dispatch_mode prompt")
    enabled: bool = Field(default=True, description="false: kept, but not run")

    @field_validator("cron")
    @classmethod
    def _is_cron(cls, value: str) -> str:
        if (problem := cron_problem(value)) is not None:
            raise ValueError(problem)
        return value

    @model_validator(mode="after")
    def _says_what_to_run(self) -> ScheduleSection:
        wanted, given = ("job_name", self.job_name) if self.dispatch_mode == "job" else ("prompt", self.prompt)
        if not given:
            raise ValueError(f"dispatch_mode {self.dispatch_mode} needs {wanted}")
        return self


class BufferSection(Section):
    """Switchboard's DurableBuffer (seed 003)."""

    queue_capacity: int = Field(default=100, ge=1, description="messages that wait in memory, per tier")
    worker_count: int = Field(default=3, ge=1, description="messages processed at one time")
    scanner_interval_s: float = Field(default=30, gt=0, description="seconds between looks for messages left behind")
    scanner_grace_s: float = Field(default=10, ge=0, description="seconds a message may wait before it counts as left")
    scanner_batch_size: int = Field(default=50, ge=1, description="messages one look brings back")
    max_consecutive_same_tier: int = Field(
        default=10, ge=1, description="messages of one tier in a row before a lower tier gets its turn"
    )


class ButlerSection(Section):
    name: str = Field(description="lower-case identifier, unique in the roster")
    port: int = Field(ge=1, le=65535, description="where its doors are, unique in the roster")
    description: str = Field(min_length=1, description="what it is for, in one line")
    db: DatabaseSection
    runtime: RuntimeSection = RuntimeSection()
    security: SecuritySection = SecuritySection()
    shutdown: ShutdownSection = ShutdownSection()
    registry: RegistrySection = RegistrySection()
    schedule: list[ScheduleSection] = Field(default=[])

    @field_validator("name")
    @classmethod
    def _is_name(cls, value: str) -> str:
        if not _NAME.fullmatch(value):
            raise ValueError("must be a lower-case identifier")
        return value

    @field_validator("schedule")
    @classmethod
    def _names_are_unique(cls, value: list[ScheduleSection]) -> list[ScheduleSection]:
        names = [entry.name for entry in value]
        if len(names) != len(set(names)):
            raise ValueError("schedule names must be unique")
        return value


def _of_installed(_source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
    return handler.generate_schema(installed_modules())


class ButlerConfig(Section):
    """One roster folder, read and checked."""

    butler: ButlerSection
    buffer: BufferSection = BufferSection()
    admission: AdmissionSection = AdmissionSection()
    routing: RoutingSection = RoutingSection()
    lifecycle: LifecycleSection = LifecycleSection()
    delivery: DeliverySection = DeliverySection()
    modules: Annotated[Modules, GetPydanticSchema(_of_installed)] = installed_modules()()
    instructions: str = ""  # AGENTS.md: what the LLM is told
    skills: tuple[str, ...] = ()  # names of the folders below skills/
    source: str = "butler.toml"

    @property
    def name(self) -> str:
        return self.butler.name

    @property
    def schema_name(self) -> str:
        return self.butler.db.schema_name


def load_butler(folder: Path) -> ButlerConfig:
    """Read one roster folder."""
    path = folder / "butler.toml"
    document = _read_toml(path)
    for key in _inline_secrets(document):
        raise ConfigurationError(
            "secrets must not stand in butler.toml",
            source=str(path),
            key=key,
            remedy=f"put the value into an environment variable and name it in {key}_env",
        )
    if reserved := {"instructions", "skills", "source"} & document.keys():
        raise _unknown_key(path, min(reserved))
    agents = folder / "AGENTS.md"
    extras = {
        "instructions": agents.read_text(encoding="utf-8") if agents.is_file() else "",
        "skills": tuple(sorted(p.name for p in (folder / "skills").glob("*/") if p.is_dir())),
        "source": str(path),
    }
    try:
        return ButlerConfig.model_validate(document | extras)
    except pydantic.ValidationError as error:
        raise _configuration_error(path, error) from None


def load_roster(folder: Path) -> dict[str, ButlerConfig]:
    """All butlers of a roster by name; names, ports and schemas must be distinct."""
    configs = [load_butler(path.parent) for path in sorted(folder.glob("*/butler.toml"))]
    if not configs:
        raise ConfigurationError(
            "no butler.toml found",
            source=str(folder),
            key="roster",
            remedy="name a folder of butlers with --set roster=FOLDER",
        )
    _check_distinct(configs, "name", lambda c: c.name)
    _check_distinct(configs, "port", lambda c: c.butler.port)
    _check_distinct(configs, "db.schema", lambda c: c.schema_name)
    return {config.name: config for config in configs}


def check_credentials(config: ButlerConfig, environment: Mapping[str, str], *, elsewhere: Collection[str] = ()) -> None:
    """Every variable that an enabled credential scope names must have a value, except those looked up `elsewhere`."""
    for key, variable in config.modules.required_variables():
        if key not in elsewhere and not environment.get(variable):
            raise ConfigurationError(
                f"environment variable {variable} is not set",
                source=config.source,
                key=key,
                remedy=f"export {variable}=..., or {_without(key)}",
            )


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigurationError(
            "file not found", source=str(path), key="butler", remedy="every roster folder needs a butler.toml"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"not valid TOML: {error}", source=str(path), key="(file)", remedy="mend the syntax"
        ) from None


def _inline_secrets(node: Any, path: str = "") -> Iterator[str]:
    if isinstance(node, dict):
        for key, value in node.items():
            here = f"{path}.{key}" if path else key
            # A table of names of variables, such as options_env, holds no values.
            if isinstance(value, str) and _SECRET_WORDS.search(key) and not path.endswith("_env"):
                yield here
            yield from _inline_secrets(value, here)
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from _inline_secrets(value, f"{path}.{index}")


def _configuration_error(path: Path, error: pydantic.ValidationError) -> ConfigurationError:
    first = error.errors(include_url=False, include_input=False)[0]
    key = ".".join(map(str, first["loc"])) or "(file)"
    if first["type"] == "extra_forbidden":
        return _unknown_key(path, key)
    problem = str(first["ctx"]["error"]) if first["type"] == "value_error" else first["msg"]
    return ConfigurationError(problem, source=str(path), key=key, remedy="see docs/operating/configuration.md")


def _unknown_key(path: Path, key: str) -> ConfigurationError:
    return ConfigurationError(
        "unknown key",
        source=str(path),
        key=key,
        remedy="remove it or mend its spelling; see docs/operating/configuration.md",
    )


def _check_distinct(configs: list[ButlerConfig], key: str, value_of: Any) -> None:
    seen: dict[Any, ButlerConfig] = {}
    for config in configs:
        other = seen.setdefault(value_of(config), config)
        if other is not config:
            raise ConfigurationError(
                f"{value_of(config)!r} is already used by {other.source}",
                source=config.source,
                key=f"butler.{key}",
                remedy="give each butler its own",
            )


def _without(key: str) -> str:
    """How to do without the credential at this key: scopes are switched off, channels by adapter are taken out."""
    module, adapter, _ = key.partition(".options_env.")
    return f"remove [{module}]" if adapter else "set enabled = false for this scope"
