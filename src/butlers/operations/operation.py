"""What a declaration of an operation says: name, arguments, result, who may call it, by which HTTP
routes, and by which commands.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Final, Protocol, Union
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter
from pydantic_core import to_json

from butlers.channels.registry import listed, outbound_names
from butlers.contracts.envelope import Identity, Timestamp, Value, invalid
from butlers.errors import FieldError, ValidationError

Document = Mapping[str, Any]
SWITCHBOARD: Final = "switchboard"
MESSENGER: Final = "messenger"
PAGE: Final = 50
LONGEST_PAGE: Final = 500
USUAL = timedelta(days=1)
LONGEST = timedelta(days=31)  # percentiles are taken over every single row
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_CURSOR_FORM = re.compile(r"(?P<moment>[0-9a-f]{1,14})-(?P<id>[0-9a-f]{32})")


class System(Protocol):
    """A running system, as a command asks it over HTTP."""

    def get(self, path: str, **parameters: Any) -> dict[str, Any]: ...

    def post(self, path: str, body: bytes) -> dict[str, Any]: ...


class Hint(str):
    """A line that names a command to go on with; the command line adds where the system is."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Option:
    """How the command line asks for one argument of the operation. Arguments in the path are positional."""

    argument: str
    help: str | None = None
    flag: str | None = None  # None: made from the argument's name
    positional: bool = False
    metavar: str | None = None
    default: Any = ...  # ...: the model's own
    negates: bool = False  # a flag that makes the argument false
    choices: bool | Callable[[], Sequence[str]] = False  # only these are taken; True: what the argument's type names
    parse: Callable[[Sequence[str]], Any] | None = None  # may be given again; makes the argument of all the texts


@dataclass(frozen=True, slots=True)
class Command:
    words: str  # behind `butlers`
    help: str
    prints: Callable[[Any], Iterable[str]]
    options: tuple[Option, ...] = ()  # in the order of --help
    _: KW_ONLY
    none: str = ""  # printed when the answer has no line
    failed: Callable[[Any], bool] | None = None  # whether the answer means exit code 1
    route: int = 0  # which of the operation's routes it calls
    fixed: Mapping[str, str] = field(default_factory=dict)  # arguments that the words of the command say
    refused: Callable[[ValidationError], ValidationError] | None = None  # the refusal in the words of the command
    asks: Callable[[System, Document], dict[str, Any]] | None = None  # instead of one call of the route
    completed: Callable[[System, Document, dict[str, Any]], dict[str, Any]] | None = None  # what was given, the answer
    alone: bool = False  # the group without another word is this command
    takes_dashes: bool = False  # an argument may begin with a dash: a chat may be -1007
    hidden: bool = False


LIMIT: Final = Option("limit", default=20)
CURSOR: Final = Option("cursor", "Where an earlier page ended.")
SINCE: Final = Option("since", "Moment like 2026-01-31T09:00:00Z, included.")
UNTIL: Final = Option("until", "Moment like 2026-01-31T09:00:00Z, not included.")
CHANNEL: Final = Option("channel", f"{listed(outbound_names())}.")
ORIGIN: Final = Option("origin_butler", "Only what this butler asked for.", "--origin")
REASON: Final = Option("reason", "Why; it is kept.", "--reason")


def as_uuid(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        problem = "must be a UUID"  # as the other doors say it
        raise ValidationError(f"{text!r} {problem}", fields=(FieldError(field="id", error=problem),)) from None


def json_body(document: Document) -> bytes:
    """The body of a request, without what was left out."""
    try:
        return to_json({name: value for name, value in document.items() if value is not None})
    except ValueError:
        raise ValidationError("what is said must be text in UTF-8") from None


def when(timestamp: str) -> str:
    return datetime.fromisoformat(timestamp).astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def milliseconds(number: float) -> str:
    return f"{number:.0f} ms"


def seconds(number: float) -> str:
    """Tenths while they matter."""
    return f"{number:.1f} s" if number < 10 else f"{number:.0f} s"


class Role(StrEnum):
    """What kind of caller a principal is."""

    BUTLER = "butler"
    CONNECTOR = "connector"
    OPERATOR = "operator"  # a person at the command line or dashboard
    CLIENT = "client"  # anything else that may only hand in messages


EVERY_ROLE: Final = frozenset(Role)
BUTLERS: Final = frozenset({Role.BUTLER, Role.OPERATOR})
OPERATORS: Final = frozenset({Role.OPERATOR})
CONNECTORS: Final = frozenset({Role.CONNECTOR})


class NoArguments(Value):
    """For tools that take none."""


class DecidedArguments(Value):
    """Of an operation that changes something for a person."""

    decided_by: Identity | None = Field(
        default=None, description="the person for whom Switchboard asks; absent: the caller"
    )


class Result(BaseModel):
    """What an operation answers: the fields that are always there. Others may stand beside them."""

    model_config = ConfigDict(extra="allow", frozen=True, defer_build=True)  # the command line needs none of them


class Page(Result):
    next_cursor: str | None = Field(description="hand it back for the next page; null: this is the last one")


Row = dict[str, Any]  # a record as it is stored, with its columns


@dataclass(frozen=True, slots=True, kw_only=True)
class Hints:
    """What a caller may expect of a call: the annotations of MCP."""

    read_only: bool = False  # changes nothing
    destructive: bool = False  # may overwrite or remove something; False: only adds
    idempotent: bool = False  # the same call again changes nothing more
    open_world: bool = False  # reaches people or services outside of this system


READS: Final = Hints(read_only=True, idempotent=True)
READS_OUTSIDE: Final = Hints(read_only=True, idempotent=True, open_world=True)
ADDS: Final = Hints()
ADDS_ONCE: Final = Hints(idempotent=True)
CHANGES: Final = Hints(destructive=True, idempotent=True)
ACTS: Final = Hints(destructive=True)
SENDS: Final = Hints(open_world=True)
ACTS_OUTSIDE: Final = Hints(destructive=True, open_world=True)
CHANGES_OUTSIDE: Final = Hints(destructive=True, idempotent=True, open_world=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A part of an address that is no argument of the operation."""

    name: str
    annotation: Any
    default: Any = ...  # ...: required
    description: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Which butler carries out which operation."""

    butler: str
    operation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One HTTP address of an operation. `{name}` in the path is an argument. Of the other arguments, GET and DELETE
    take all from the query, POST takes all from the body; `query` and `body` say otherwise.
    """

    method: str
    path: str  # below /api
    summary: str
    query: tuple[str, ...] | None = None
    body: tuple[str, ...] | None = None
    body_is: str | None = None  # the body is this argument; "": it is the arguments, and the handler reads them raw
    body_schema: Mapping[str, Any] | None = None  # of such a body, where it is not that of the arguments
    decides: bool | None = None  # only a person with an operator's token; None: unless the operation only reads
    status: int = 200  # of success
    parameters: tuple[Parameter, ...] = ()
    target: Callable[[dict[str, Any]], Target] | None = None  # takes from what was given what names another target


def get(path: str, summary: str, **differences: Any) -> Route:
    return Route(method="GET", path=path, summary=summary, **differences)


def post(path: str, summary: str, **differences: Any) -> Route:
    return Route(method="POST", path=path, summary=summary, **differences)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One named capability. With a handler it is a tool (`butlers.butler.toolbox`)."""

    name: str  # dotted where the source documents dot it
    description: str
    arguments: type[Value] = NoArguments
    returns: type[BaseModel]  # what a call that succeeds answers
    hints: Hints
    roles: frozenset[Role] = BUTLERS  # who may call it
    owner: str | None = None  # of butlers, only this one: its own sessions
    butler: str = SWITCHBOARD  # who carries it out
    routes: tuple[Route, ...] = ()
    commands: tuple[Command, ...] = ()

    def input_schema(self) -> dict[str, Any]:
        return self.arguments.model_json_schema(by_alias=True)

    def output_schema(self) -> dict[str, Any]:
        return object_schema(self.returns)

    def decides(self, route: Route) -> bool:
        return not self.hints.read_only if route.decides is None else route.decides

    def in_query(self, route: Route) -> tuple[str, ...]:
        if route.query is not None or route.method == "POST":
            return route.query or ()
        return self._others(route)

    def in_body(self, route: Route) -> tuple[str, ...]:
        if route.body is not None or route.method != "POST" or route.body_is is not None:
            return route.body or ()
        return self._others(route)

    def _others(self, route: Route) -> tuple[str, ...]:
        """The arguments that neither the path nor the caller's token says."""
        return tuple(
            name for name in self.arguments.model_fields if f"{{{name}}}" not in route.path and name != "decided_by"
        )


def object_schema(*returns: type[BaseModel]) -> dict[str, Any]:
    """The schema of an answer, with an object at its root: older MCP clients know no other."""
    kind: Any = Union[returns]  # noqa: UP007  one or several
    schema: dict[str, Any] = TypeAdapter(kind).json_schema(by_alias=True)
    return {"type": "object"} | schema


class TimeRangeArguments(Value):
    since: Timestamp | None = Field(
        default=None, description="the beginning: RFC 3339 with an offset; absent: a day before until"
    )
    until: Timestamp | None = Field(default=None, description="the end: RFC 3339 with an offset; absent: now")

    def between(self, now: datetime) -> tuple[datetime, datetime]:
        """The last day, unless said otherwise."""
        until = self.until or now
        since = self.since or _earlier(until)
        if since >= until:
            raise invalid("since", "must be before until")
        if until - since > LONGEST:
            raise invalid("since", f"must be at most {LONGEST.days} days before until")
        return since, until


def _earlier(until: datetime) -> datetime:
    try:
        return until - USUAL
    except OverflowError:
        raise invalid("until", "lies too early") from None


def place(cursor: str | None) -> tuple[datetime | None, UUID | None]:
    """The row a page begins behind; nothing for the first page."""
    if cursor is None:
        return None, None
    match = _CURSOR_FORM.fullmatch(cursor)
    if match is None:
        raise invalid("cursor", "is not the next_cursor of an earlier page")
    return _EPOCH + int(match["moment"], 16) * _MICROSECOND, UUID(match["id"])


def page(rows: Sequence[dict[str, Any]], limit: int) -> tuple[list[dict[str, Any]], str | None]:
    """The rows of a page and where the next begins; it takes one row more than the page holds to know."""
    shown = [*rows[:limit]]
    if len(rows) <= limit:
        return shown, None
    last = shown[-1]
    return shown, f"{(last['created_at'] - _EPOCH) // _MICROSECOND:x}-{last['id'].hex}"
