"""The courier's configuration, a YAML file; every key has a default, and an unknown one is refused with its line.

streams:
  defaultLeaseMs: 30000
  maxDepth: 100000
  perStreamCaps: { "agents/*": { maxDepth: 50000, overflow: deadLetterOldest } }
triggers:
  - { id: jen.log, when: {type: sprint.log}, do: [{action: notify, to: agents/architect/inbox}] }
auth:
  tokens:
    - { token: "dev-local", scopes: ["streams:*:enqueue", "streams:*:subscribe", "views:*:read"] }
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import urlsplit

import pydantic
import yaml
from pydantic import Field, field_validator, model_validator

from butlers.contracts.envelope import field_errors
from butlers.courier.errors import CourierError
from butlers.courier.messages import Overflow, StreamPolicy
from butlers.courier.names import check_pattern, compile_pattern
from butlers.courier.triggers import Rule, Strict
from butlers.errors import ConfigurationError

LARGEST_FILE = 4 * 2**20
_SCOPE = re.compile(r"(?P<kind>streams|views):(?P<pattern>[^:\s]{1,256}):(?P<right>enqueue|subscribe|read|manage)")
_RIGHTS = {"streams": ("enqueue", "subscribe", "manage"), "views": ("read",)}


def _check_pattern(pattern: str) -> None:
    """As a validator says it, so that the line is known."""
    try:
        check_pattern(pattern)
    except CourierError as error:
        raise ValueError(f"{pattern!r} {error}") from None


class StreamCaps(Strict):
    """What one stream may differ in; None: as `streams` says."""

    lease_ms: int | None = Field(default=None, ge=100, le=86_400_000, alias="leaseMs")
    max_depth: int | None = Field(default=None, ge=1, le=10_000_000, alias="maxDepth")
    max_deliveries: int | None = Field(default=None, ge=1, le=1_000, alias="maxDeliveries")
    overflow: Overflow | None = Field(default=None, strict=False)
    recent_ids: int | None = Field(default=None, ge=0, le=1_000_000, alias="recentIds")
    ageing_ms: int | None = Field(default=None, ge=0, le=86_400_000, alias="ageingMs")
    max_dead: int | None = Field(default=None, ge=1, le=1_000_000, alias="maxDead")
    messages_per_minute: int | None = Field(default=None, ge=1, alias="messagesPerMinute")


class Streams(Strict):
    default_lease_ms: int = Field(default=30_000, ge=100, le=86_400_000, alias="defaultLeaseMs")
    max_depth: int = Field(default=100_000, ge=1, le=10_000_000, alias="maxDepth")
    max_deliveries: int = Field(default=5, ge=1, le=1_000, alias="maxDeliveries")
    overflow: Overflow = Field(default=Overflow.REJECT, strict=False)
    recent_ids: int = Field(default=10_000, ge=0, le=1_000_000, alias="recentIds")
    ageing_ms: int = Field(default=60_000, ge=0, le=86_400_000, alias="ageingMs")
    max_dead: int = Field(default=10_000, ge=1, le=1_000_000, alias="maxDead")
    messages_per_minute: int | None = Field(default=None, ge=1, alias="messagesPerMinute")  # of one stream
    most: int = Field(default=100_000, ge=1)  # streams
    per_stream_caps: dict[str, StreamCaps] = Field(default={}, alias="perStreamCaps")

    @field_validator("per_stream_caps")
    @classmethod
    def _are_patterns(cls, caps: dict[str, StreamCaps]) -> dict[str, StreamCaps]:
        for pattern in caps:
            _check_pattern(pattern)
        return caps

    def policy_of(self, stream: str) -> StreamPolicy:
        """Of several patterns that fit, the later one wins, key by key."""
        value = self._merged(stream)
        return StreamPolicy(
            lease_s=value["lease_ms"] / 1000,
            max_depth=value["max_depth"],
            max_deliveries=value["max_deliveries"],
            overflow=value["overflow"],
            recent_ids=value["recent_ids"],
            ageing_s=value["ageing_ms"] / 1000,
            max_dead=value["max_dead"],
        )

    @property
    def limits_rates(self) -> bool:
        """Whether any stream has a rate: without one no message needs to look."""
        return self.messages_per_minute is not None or any(
            caps.messages_per_minute is not None for caps in self.per_stream_caps.values()
        )

    def rate_of(self, stream: str) -> int | None:
        """Messages a minute; None: no limit."""
        rate: int | None = self._merged(stream)["messages_per_minute"]
        return rate

    def _merged(self, stream: str) -> dict[str, Any]:
        merged = self.model_dump(exclude={"per_stream_caps", "most"})
        merged["lease_ms"] = merged.pop("default_lease_ms")
        for pattern, caps in self.per_stream_caps.items():
            if pattern == stream or compile_pattern(pattern)(stream):
                merged |= caps.model_dump(exclude_none=True)
        return merged


@dataclass(frozen=True, slots=True)
class Scope:
    kind: str
    pattern: str
    right: str

    def allows(self, kind: str, name: str, right: str) -> bool:
        """`name` may be a pattern, too: it is allowed when everything that it fits is."""
        if (kind, right) != (self.kind, self.right):
            return False
        return self.pattern in ("*", name) or compile_pattern(self.pattern)(name)


class Token(Strict):
    token: str = Field(min_length=8, max_length=512, repr=False)
    scopes: list[str] = Field(min_length=1)
    name: str = ""  # what the log calls it; never the token
    messages_per_minute: int | None = Field(default=None, ge=1, alias="messagesPerMinute")

    @field_validator("scopes")
    @classmethod
    def _are_scopes(cls, scopes: list[str]) -> list[str]:
        for scope in scopes:
            found = _SCOPE.fullmatch(scope)
            if found is None or found["right"] not in _RIGHTS[found["kind"]]:
                raise ValueError(
                    f"{scope!r} is no scope: streams:<pattern>:enqueue|subscribe|manage or views:<pattern>:read"
                )
            _check_pattern(found["pattern"])
        return scopes

    def parsed(self) -> tuple[Scope, ...]:
        return tuple(Scope(*scope.split(":")) for scope in self.scopes)


class Auth(Strict):
    tokens: list[Token] = Field(default=[])

    def find(self, secret: str) -> Token | None:
        """Compared with every token in constant time."""
        given, found = secret.encode("utf-8", "surrogatepass"), None
        for token in self.tokens:
            if hmac.compare_digest(token.token.encode("utf-8", "surrogatepass"), given):
                found = token
        return found


class Gateway(Strict):
    host: str = "127.0.0.1"
    port: int = Field(default=8787, ge=0, le=65_535)
    max_message_bytes: int = Field(default=1_048_576, ge=1_024, le=16_777_216, alias="maxMessageBytes")
    messages_per_minute: int | None = Field(default=1_000, ge=1, alias="messagesPerMinute")  # of one socket
    ping_s: float = Field(default=20.0, gt=0, lt=50, alias="pingS", strict=False)
    origins: list[str] = Field(default=[])  # pages of browsers that may use it


class Journal(Strict):
    kind: Literal["none", "jsonl", "postgres"] = "none"
    path: str | None = None  # of the JSONL file
    dsn: str | None = Field(default=None, repr=False)

    @model_validator(mode="after")
    def _has_its_place(self) -> Self:
        needed = {"jsonl": self.path, "postgres": self.dsn, "none": ""}[self.kind]
        if needed is None:
            raise ValueError(f"kind {self.kind} needs {'path' if self.kind == 'jsonl' else 'dsn'}")
        return self


class CourierConfig(Strict):
    streams: Streams = Streams()
    triggers: list[Rule] = Field(default=[])
    auth: Auth = Auth()
    gateway: Gateway = Gateway()
    journal: Journal = Journal()
    store: str | None = Field(default=None, repr=False)  # redis://user:password@host:port/db; None: in memory
    store_prefix: str = Field(default="courier", pattern=r"^[A-Za-z0-9_.\-]{1,64}$", alias="storePrefix")
    events: str | None = None  # the path of a JSONL log of what happens

    @field_validator("store")
    @classmethod
    def _is_redis(cls, store: str | None, info: pydantic.ValidationInfo) -> str | None:
        if store is None:
            return None
        parts = urlsplit(store)
        if parts.scheme not in ("redis", "rediss", "unix") or not (parts.hostname or parts.path):
            raise ValueError("must be redis://host:port/db, rediss://host:port/db or unix:///path?db=0")
        journal = info.data.get("journal")
        if journal is not None and journal.kind != "none":
            raise ValueError("needs no journal: Redis has the messages; leave one of the two out")
        return store

    @model_validator(mode="after")
    def _rules_have_names_of_their_own(self) -> Self:
        ids = [rule.id for rule in self.triggers]
        if repeated := next((id for id in ids if ids.count(id) > 1), None):
            raise ValueError(f"two triggers are called {repeated!r}")
        return self


def load_config(path: Path) -> CourierConfig:
    """Raises `ConfigurationError` with the file, the line and the key of what is wrong."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"cannot be read ({type(error).__name__})", source=str(path), key="", remedy="name a YAML file"
        ) from error
    return parse_config(text, source=str(path))


def parse_config(text: str, *, source: str) -> CourierConfig:
    if len(text) > LARGEST_FILE:
        raise _wrong(source, 1, "", "the file is too large")
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or "is not valid YAML"
        raise _wrong(source, mark.line + 1 if mark else 1, "", problem) from None
    except (RecursionError, ValueError):
        raise _wrong(source, 1, "", "is not valid YAML") from None
    try:
        return CourierConfig.model_validate({} if document is None else document)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        line = _line(node, first["loc"])
        key = ".".join(str(part) for part in first["loc"])
        raise _wrong(source, line, key, next(iter(field_errors(error))).error) from None


def _line(node: yaml.Node | None, path: Sequence[str | int]) -> int:
    """The line of the innermost part of the path that the file has."""
    line = 1
    for part in path:
        if node is None:
            break
        line = node.start_mark.line + 1
        found = next((pair for pair in _children(node) if pair[0] == part), None)
        if found is None:
            continue  # a word that pydantic adds, such as the kind of an action
        _, line, node = found
    return line


def _children(node: yaml.Node) -> Iterator[tuple[str | int, int, yaml.Node]]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield key.value, key.start_mark.line + 1, value
    elif isinstance(node, yaml.SequenceNode):
        for number, value in enumerate(node.value):
            yield number, value.start_mark.line + 1, value


def _wrong(source: str, line: int, key: str, problem: str) -> ConfigurationError:
    return ConfigurationError(problem, source=f"{source}:{line}", key=key, remedy="see docs/systems/courier.md")
