"""The JSON lines that the programs print, and what is gathered from them.

Terminal codes are taken out, and a line that does not start like an object is noise (a banner) and is skipped. A line
that starts like one and does not parse is a broken stream: taking an earlier message for the answer would be wrong, so
it is an error. Kinds of events that nobody here knows are ignored, because the programs grow new ones every month.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

# Safe to remove anywhere: inside of a JSON text an escape character is never written as itself.
_TERMINAL_CODES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\))")


@dataclass(slots=True)
class Reading:
    """What the events told so far."""

    answer: str = ""  # the last message of the agent
    failure: str | None = None  # what the program said about a failure; an answer after it means it recovered
    model: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    tool_calls: set[str] = field(default_factory=set)  # by id: a call may be reported more than once
    parts: dict[str, str] = field(default_factory=dict)  # texts of the message being built, by part
    message: str = ""  # the id of that message

    def say(self, text: str) -> None:
        self.answer = text
        self.failure = None

    def fail(self, said: object) -> None:
        self.failure = said if isinstance(said, str) else json.dumps(said)

    def use(self, *, input_tokens: int, output_tokens: int) -> None:
        self.input_tokens = (self.input_tokens or 0) + input_tokens
        self.output_tokens = (self.output_tokens or 0) + output_tokens

    def call(self, identity: object) -> None:
        self.tool_calls.add(str(identity) if identity else f"call-{len(self.tool_calls)}")


def read_events(stdout: bytes) -> Iterator[dict[str, object]]:
    """The events in order. Raises `ValueError` for a broken one."""
    # Not splitlines(): it also splits at separators that JSON allows inside of a text.
    for line in _TERMINAL_CODES.sub("", stdout.decode("utf-8")).split("\n"):
        if line.startswith("{"):
            event: dict[str, object] = json.loads(line)
            yield event


def mapping(value: object) -> dict[str, object]:
    """The value if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def items(value: object) -> list[dict[str, object]]:
    """The objects of a list."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def text(value: object) -> str:
    """The value if it is a text, else an empty one."""
    return value if isinstance(value, str) else ""


def number(value: object) -> int:
    """The value if it is a count, else zero."""
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
