"""The queue in memory: one heap per priority for what is queued, and one for what is in flight."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
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

    __slots__ = (
        "at",
        "attempts",
        "expirations",
        "key",
        "level",
        "line",
        "number",
        "payload",
        "receipt",
        "scheduled_at",
    )

    def __init__(self, message: QueueMessage, payload: str, number: int) -> None:
        self.key = message.key
        self.payload = payload  # text, so that nobody can change it
        self.scheduled_at = self.at = message.scheduled_at
        self.level = LEVELS[message.priority]
        self.attempts = message.attempts
        self.number = number  # in the order of enqueueing
        self.expirations = 0
        self.receipt: str | None = None  # of the lease, while in flight
        self.line: _Line | None = None

    def message(self) -> QueueMessage:
        return QueueMessage(
            key=self.key,
            payload=from_json(self.payload),
            scheduled_at=self.scheduled_at,
            priority=PRIORITIES[self.level],
            attempts=self.attempts,
        )


_Place = tuple[datetime, int, int, _Entry]  # the time, the entry's number, a stamp so that entries are never compared


class _Line:
    """Entries by time and number. What has left stays in the heap until it comes up, or until it is the larger part."""

    __slots__ = ("_heap", "_stamps", "size")

    def __init__(self) -> None:
        self._heap: list[_Place] = []
        self._stamps = count()
        self.size = 0

    def join(self, entry: _Entry, at: datetime) -> None:
        """The entry leaves the line in which it stands."""
        if entry.line is not None:
            entry.line.leave(entry)
        entry.line, entry.at = self, at
        heapq.heappush(self._heap, (at, entry.number, next(self._stamps), entry))
        self.size += 1

    def leave(self, entry: _Entry) -> None:
        entry.line = None
        self.size -= 1
        if len(self._heap) > 2 * self.size + 64:
            self._heap = [place for place in self._heap if self._is_current(place)]
            heapq.heapify(self._heap)

    def first(self) -> _Place | None:
        if not self.size:
            return None
        while not self._is_current(self._heap[0]):
            heapq.heappop(self._heap)
        return self._heap[0]

    def _is_current(self, place: _Place) -> bool:
        return place[3].line is self and place[3].at == place[0]

    def smallest(self, limit: int) -> list[_Entry]:
        entries = {place[1]: place[3] for place in self._heap if self._is_current(place)}.values()
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
        self._dead: deque[DeadLetter] = deque(maxlen=MOST_DEAD_LETTERS)

    async def enqueue(self, messages: Sequence[QueueMessage]) -> frozenset[str]:
        new = [(key, one) for key, one in checked(messages).items() if key not in self._entries]
        for key, (message, payload) in new:
            entry = self._entries[key] = _Entry(message, payload, next(self._numbers))
            self._queued[entry.level].join(entry, entry.scheduled_at)
        return frozenset(key for key, _ in new)

    async def dequeue(self, *, now: datetime, limit: int = 1, worker: str) -> list[LeasedMessage]:
        taken: list[LeasedMessage] = []
        expires = now + self._lease
        for queued, in_flight in zip(self._queued, self._in_flight, strict=True):
            while len(taken) < limit and (entry := _next_due(queued, in_flight, now)) is not None:
                if entry.receipt is not None:
                    entry.expirations += 1
                entry.attempts += 1
                entry.receipt = str(next(self._receipts))
                in_flight.join(entry, expires)
                taken.append(_leased(entry, entry.receipt))
        return taken

    def _held(self, leased: LeasedMessage) -> _Entry:
        entry = self._entries.get(leased.message.key)
        if entry is None or entry.receipt != leased.receipt:
            raise lease_lost(leased)
        return entry

    def _drop(self, entry: _Entry) -> None:
        if entry.line is not None:
            entry.line.leave(entry)
        del self._entries[entry.key]

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
        entry.attempts -= 0 if counted else 1
        entry.receipt = None
        self._queue_at(entry, at)

    def _queue_at(self, entry: _Entry, at: datetime) -> None:
        entry.scheduled_at = at
        self._queued[entry.level].join(entry, at)

    async def dead_letter(self, leased: LeasedMessage, reason: str) -> None:
        entry = self._held(leased)
        self._drop(entry)
        self._dead.append(DeadLetter(message=entry.message(), reason=storable(reason)))
        self._dead_lettered += 1

    async def reschedule(self, keys: Sequence[str], *, scheduled_at: datetime) -> int:
        at = check_time(scheduled_at)
        later = [entry for entry in self._queued_of(keys) if at < entry.scheduled_at]
        for entry in later:
            self._queue_at(entry, at)
        return len(later)

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
        return [entry.message() for entry in found]

    async def dead_letters(self, limit: int = 10) -> list[DeadLetter]:
        return list(self._dead)[::-1][: max(limit, 0)]

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


def _next_due(queued: _Line, in_flight: _Line, now: datetime) -> _Entry | None:
    """The entry that has been available for longest, whether it waits or its worker died."""
    one, other = queued.first(), in_flight.first()
    first = min(one, other) if one and other else one or other
    return first[3] if first is not None and first[0] <= now else None


def _leased(entry: _Entry, receipt: str) -> LeasedMessage:
    return LeasedMessage(
        message=entry.message(), receipt=receipt, lease_expires_at=entry.at, expirations=entry.expirations
    )
