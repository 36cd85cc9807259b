"""What a declaration says about the command line: the words of a command, its options, and how the answer prints."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import UTC, datetime
from typing import Any, Final

from butlers.channels.registry import listed, outbound_names

Document = Mapping[str, Any]
Get = Callable[..., dict[str, Any]]  # path, parameters: what the running system answers


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
    completed: Callable[[Get, Document, dict[str, Any]], dict[str, Any]] | None = None  # what was given, the answer
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


def when(timestamp: str) -> str:
    return datetime.fromisoformat(timestamp).astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def milliseconds(number: float) -> str:
    return f"{number:.0f} ms"


def seconds(number: float) -> str:
    """Tenths while they matter."""
    return f"{number:.1f} s" if number < 10 else f"{number:.0f} s"
