"""The queue in memory: one heap per priority for what is queued, and one for what is in flight."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import count

from pydantic_core import from_json

from butlers.outbound.queue import (
    LEASE_S,
    LEVELS,
    MOST_DEAD_LETTERS,
    PRIORITIES,
    DeadLetter,
    LeasedMessage,
    QueueMessage,
    QueueStats,
    check_time,
    checked,
    lease_lost,
    retry_at,
    storable,
)


class _Entry:
    """`at` is its place in `line`: the time since when it is available."""

    __slots__ = ("at", "expirations", "line", "message", "number", "payload", "receipt")

    def __init__(self, message: QueueMessage, payload: str, number: int) -> None:
        self.message = message
        self.payload = payload  # text, so that nobody can change it
        self.number = number  # in the order of enqueueing
        self.expirations = 0
        self.receipt: str | None = None  # of the lease, while in flight
        self.line: _Line | None = None
        self.at = message.scheduled_at

    def shown(self, attempts: int) -> QueueMessage:
        return replace(self.message, payload=from_json(self.payload), attempts=attempts)


class _Line:
    """Entries by time and number. What has left stays in the heap until it comes up, or until it is the larger part."""

    def __init__(self) -> None:
        self._heap: list[tuple[datetime, int, int, _Entry]] = []
        self._stamps = count()  # so that entries are never compared
        self.size = 0

    def join(self, entry: _Entry, at: datetime) -> None:
        entry.line, entry.at = self, at
        heapq.heappush(self._heap, (at, entry.number, next(self._stamps), entry))
        self.size += 1

    def leave(self, entry: _Entry) -> None:
        entry.line = None
        self.size -= 1
        if len(self._heap) > 2 * self.size + 64:
            self._heap = [place for place in self._heap if self._is_current(place)]
            heapq.heapify(self._heap)

    def first(self) -> tuple[datetime, int, int, _Entry] | None:
        while self._heap and not self._is_current(self._heap[0]):
            heapq.heappop(self._heap)
        return self._heap[0] if self._heap else None

    def _is_current(self, place: tuple[datetime, int, int, _Entry]) -> bool:
        return place[3].line is self and place[3].at == place[0]

    def smallest(self, limit: int) -> list[_Entry]:
        entries = {place[3].number: place[3] for place in self._heap if self._is_current(place)}.values()
        return heapq.nsmallest(limit, entries, key=lambda entry: (entry.at, entry.number))


class MemoryQueue:
    """In this process and gone with it; every call takes O(log n), `peek` O(n)."""

    def __init__(self, *, lease_s: float = LEASE_S) -> None:
        self._lease = timedelta(seconds=lease_s)
        self._entries: dict[str, _Entry] = {}
        self._queued = tuple(_Line() for _ in PRIORITIES)
        self._in_flight = tuple(_Line() for _ in PRIORITIES)
        self._numbers, self._receipts = count(1), count(1)
        self._acknowledged = 0
        self._dead_lettered = 0
        self._dead: deque[tuple[_Entry, str]] = deque(maxlen=MOST_DEAD_LETTERS)

    async def enqueue(self, messages: Sequence[QueueMessage]) -> frozenset[str]:
        new = {key: one for key, one in checked(messages).items() if key not in self._entries}
        for key, (message, payload) in new.items():
            entry = self._entries[key] = _Entry(message, payload, next(self._numbers))
            self._queued[LEVELS[message.priority]].join(entry, message.scheduled_at)
        return frozenset(new)

    async def dequeue(self, *, now: datetime, limit: int = 1, worker: str) -> list[LeasedMessage]:
        taken: list[LeasedMessage] = []
        for level in range(len(PRIORITIES)):
            while len(taken) < limit and (entry := self._next_due(level, now)) is not None:
                taken.append(self._lease_out(entry, level, now))
        return taken

    def _next_due(self, level: int, now: datetime) -> _Entry | None:
        places = [place for line in (self._queued, self._in_flight) if (place := line[level].first()) is not None]
        first = min(places, default=None)
        return first[3] if first is not None and first[0] <= now else None

    def _lease_out(self, entry: _Entry, level: int, now: datetime) -> LeasedMessage:
        if entry.receipt is not None:
            entry.expirations += 1
        message = entry.shown(entry.message.attempts + 1)
        entry.message = message
        entry.receipt = str(next(self._receipts))
        self._leave(entry)
        expires = now + self._lease
        self._in_flight[level].join(entry, expires)
        return LeasedMessage(
            message=message, receipt=entry.receipt, lease_expires_at=expires, expirations=entry.expirations
        )

    def _leave(self, entry: _Entry) -> None:
        if entry.line is not None:
            entry.line.leave(entry)

    def _held(self, leased: LeasedMessage) -> _Entry:
        entry = self._entries.get(leased.message.key)
        if entry is None or entry.receipt != leased.receipt:
            raise lease_lost(leased)
        return entry

    def _drop(self, entry: _Entry) -> None:
        self._leave(entry)
        del self._entries[entry.message.key]

    async def ack(self, leased: LeasedMessage) -> None:
        self._drop(self._held(leased))
        self._acknowledged += 1

    async def nack(
        self,
        leased: LeasedMessage,
        *,
        now: datetime,
        delay: timedelta | None = None,
        scheduled_at: datetime | None = None,
        counted: bool = True,
    ) -> None:
        at = retry_at(now, delay, scheduled_at)
        entry = self._held(leased)
        attempts = entry.message.attempts - (0 if counted else 1)
        self._leave(entry)
        entry.message, entry.receipt = replace(entry.message, scheduled_at=at, attempts=attempts), None
        self._queued[LEVELS[entry.message.priority]].join(entry, at)

    async def dead_letter(self, leased: LeasedMessage, reason: str) -> None:
        entry = self._held(leased)
        self._drop(entry)
        self._dead.append((entry, storable(reason)))
        self._dead_lettered += 1

    async def reschedule(self, keys: Sequence[str], *, scheduled_at: datetime) -> int:
        at, moved = check_time(scheduled_at), 0
        for entry in self._queued_of(keys):
            if at < entry.message.scheduled_at:
                self._leave(entry)
                entry.message = replace(entry.message, scheduled_at=at)
                self._queued[LEVELS[entry.message.priority]].join(entry, at)
                moved += 1
        return moved

    async def remove(self, keys: Sequence[str]) -> int:
        entries = self._queued_of(keys)
        for entry in entries:
            self._drop(entry)
        return len(entries)

    def _queued_of(self, keys: Sequence[str]) -> list[_Entry]:
        entries = (self._entries.get(key) for key in dict.fromkeys(keys))
        return [entry for entry in entries if entry is not None and entry.receipt is None]

    async def peek(self, limit: int = 10) -> list[QueueMessage]:
        found: list[_Entry] = []
        for line in self._queued:
            found += line.smallest(limit - len(found))
        return [entry.shown(entry.message.attempts) for entry in found]

    async def dead_letters(self, limit: int = 10) -> list[DeadLetter]:
        newest = list(self._dead)[::-1][: max(limit, 0)]
        return [DeadLetter(message=entry.shown(entry.message.attempts), reason=reason) for entry, reason in newest]

    async def stats(self, *, now: datetime) -> QueueStats:
        queued, in_flight = ([line.first() for line in lines] for lines in (self._queued, self._in_flight))
        oldest = min((place[0] for place in queued if place), default=None)
        available = min((place[0] for place in (*queued, *in_flight) if place), default=None)
        return QueueStats(
            queued=sum(line.size for line in self._queued),
            in_flight=sum(line.size for line in self._in_flight),
            acknowledged=self._acknowledged,
            dead_lettered=self._dead_lettered,
            oldest_scheduled_at=oldest,
            next_available_at=None if available is None else max(available, now),
        )

    async def close(self) -> None:
        """Nothing is open."""
