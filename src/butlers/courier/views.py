"""Views: what was last said, kept up to date for readers that come late and readers that stay.

A reader asks for a snapshot and gets a place with it, `(epoch, offset)`; from there it follows the changes. The epoch
is one run of the program. A reader that comes back with a place gets what it has missed, or is told that there is a
gap: then it needs a new snapshot. The reader moves its place by itself, once it has dealt with a change.
"""

from __future__ import annotations

import re
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from butlers.courier.errors import UnknownView

LATEST_PER_AGENT = "latestPerAgent"
_INBOX = re.compile(r"agents/[^/]+/inbox")
MOST_ENTRIES = 100_000  # the address that was written to longest ago goes first
MOST_CHANGES = 1_000  # with their envelopes, which may be large


@dataclass(frozen=True, slots=True)
class Change:
    offset: int
    key: str
    envelope: Mapping[str, Any] | None  # None: the key is in the view no more

    def to_wire(self, view: str, epoch: str) -> dict[str, Any]:
        return {"view": view, "epoch": epoch, "offset": self.offset, "key": self.key, "envelope": self.envelope}


@dataclass(slots=True)
class View:
    """The last envelope by key."""

    name: str
    epoch: str
    key_of: Callable[[str, Mapping[str, Any]], str | None]
    most: int = MOST_ENTRIES
    entries: OrderedDict[str, Mapping[str, Any]] = field(default_factory=OrderedDict)
    changes: deque[Change] = field(default_factory=lambda: deque(maxlen=MOST_CHANGES))
    offset: int = 0  # of the last change
    followers: dict[int, Callable[[Change], None]] = field(default_factory=dict)
    _next_follower: int = 0

    def insert(self, stream: str, envelope: Mapping[str, Any]) -> None:
        key = self.key_of(stream, envelope)
        if key is None:
            return
        self.entries[key] = envelope
        self.entries.move_to_end(key)
        self._tell(key, envelope)
        if len(self.entries) > self.most:
            oldest, _ = self.entries.popitem(last=False)
            self._tell(oldest, None)

    def snapshot(self) -> dict[str, Any]:
        return {"view": self.name, "epoch": self.epoch, "offset": self.offset, "entries": dict(self.entries)}

    def since(self, epoch: str, offset: int) -> list[Change] | None:
        """The changes after a place; None: some of them are lost, and a new snapshot is needed."""
        if epoch != self.epoch or not 0 <= offset <= self.offset:
            return None
        oldest = self.changes[0].offset if self.changes else self.offset + 1
        if offset + 1 < oldest:
            return None
        return [change for change in self.changes if change.offset > offset]

    def follow(self, tell: Callable[[Change], None]) -> Callable[[], None]:
        """Call this for every change; returns what ends it."""
        self._next_follower += 1
        number = self._next_follower
        self.followers[number] = tell
        return lambda: self.followers.pop(number, None) and None

    def _tell(self, key: str, envelope: Mapping[str, Any] | None) -> None:
        self.offset += 1
        change = Change(self.offset, key, envelope)
        self.changes.append(change)
        for tell in list(self.followers.values()):
            tell(change)


class Views:
    def __init__(self, epoch: str) -> None:
        self._views = {LATEST_PER_AGENT: View(LATEST_PER_AGENT, epoch, _inbox)}

    def __getitem__(self, name: str) -> View:
        if (view := self._views.get(name)) is None:
            raise UnknownView(f"there is no view {name!r}; there are: {', '.join(self._views)}")
        return view

    def shows(self, stream: str) -> bool:
        """Whether a message of the stream would change a view."""
        return any(view.key_of(stream, {}) is not None for view in self._views.values())

    def insert(self, stream: str, envelope: Mapping[str, Any]) -> None:
        for view in self._views.values():
            view.insert(stream, envelope)


def _inbox(stream: str, _envelope: Mapping[str, Any]) -> str | None:
    return stream if _INBOX.fullmatch(stream) else None
