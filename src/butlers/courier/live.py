"""A reader of a view that stays: what it has missed first, then every change.

A reader that is too slow loses changes; it is told of the gap and gets a new snapshot, never a stream with a hole.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Self

from butlers.courier.errors import InvalidEnvelope
from butlers.courier.views import Change, View

HEARTBEAT_S = 30.0
MOST_WAITING = 1_000  # changes that a slow reader may have before it

Event = tuple[str, str, dict[str, Any]]  # name, place, data


class ReaderEnded(Exception):
    """The gateway closes, or the reader's token counts no more."""


class LiveReader:
    def __init__(self, view: View, *, place: tuple[str, str]) -> None:
        self._view = view
        self._waiting: deque[Change] = deque()
        self._woken = asyncio.Event()
        self._first: deque[Event] = deque()
        self._stop: Callable[[], None] | None = None
        self._is_ended = False
        self._place = place
        if any(place) and (not place[1].isdecimal() or len(place[1]) > 18):
            raise InvalidEnvelope("must be the whole number that came with the last event", field="offset")

    def __enter__(self) -> Self:
        """Find the place and follow from there, in one step: no change falls between them."""
        epoch, offset = self._place
        if not epoch and not offset:
            self._first.append(self._snapshot())
        elif (changes := self._view.since(epoch, int(offset))) is None:
            self._first += [self._gap(epoch, int(offset)), self._snapshot()]
        else:
            self._waiting.extend(changes)
        self._stop = self._view.follow(self._changed)
        return self

    def __exit__(self, *_: object) -> None:
        if self._stop is not None:
            self._stop()

    def end(self) -> None:
        """Nothing comes any more."""
        self._is_ended = True
        self._woken.set()

    async def next(self) -> Event:
        """Raises `ReaderEnded`."""
        while True:
            if self._is_ended:
                raise ReaderEnded
            if self._first:
                return self._first.popleft()
            if self._waiting:
                change = self._waiting.popleft()
                data = change.to_wire(self._view.name, self._view.epoch)
                return "change", f"{self._view.epoch}:{change.offset}", data
            self._woken.clear()
            await self._woken.wait()

    def _changed(self, change: Change) -> None:
        self._waiting.append(change)
        if len(self._waiting) > MOST_WAITING:
            since = self._waiting[0].offset - 1
            self._waiting.clear()
            self._first.clear()
            self._first += [self._gap(self._view.epoch, since), self._snapshot()]
        self._woken.set()

    def _snapshot(self) -> Event:
        view = self._view
        return "snapshot", f"{view.epoch}:{view.offset}", view.snapshot()

    def _gap(self, epoch: str, offset: int) -> Event:
        view = self._view
        begins, ends = {"epoch": epoch, "offset": offset}, {"epoch": view.epoch, "offset": view.offset}
        data = {"view": view.name, "from": begins, "to": ends}
        return "gap", f"{view.epoch}:{view.offset}", data
