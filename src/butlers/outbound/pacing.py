"""How fast a sender may go: at most so many a minute, an hour and a day, on the clock of UTC.

Recipients who may be written to from the same moment on, and whose quiet hours are the same, are interchangeable: they
form a group, and only the numbers of each group matter. So a million recipients are paced by counting:

    {group: how many}  ->  allocate  ->  Timetable  ->  slot(group, rank)    rank: place in the group, by recipient id

`allocate` walks over the minutes that have room. In each it serves the groups that are not quiet then, those first that
have been waiting longest; a group that falls asleep goes back to its old place when it wakes. What finds no minute
before the horizon gets no slot. What the sender has scheduled before counts.

The same groups give the same timetable, in whatever order they come.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from butlers.outbound.quiet_hours import QuietHours

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MINUTE = timedelta(minutes=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pacing:
    """How fast one sender may be, over all recipients; None is no limit."""

    max_per_minute: int | None = None
    max_per_hour: int | None = None
    max_per_day: int | None = None

    def spans(self) -> tuple[tuple[int, int], ...]:
        """Minutes and how many are allowed in them, for every limit there is."""
        limits = ((1, self.max_per_minute), (60, self.max_per_hour), (1_440, self.max_per_day))
        return tuple((minutes, limit) for minutes, limit in limits if limit is not None)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class PaceGroup:
    earliest: datetime  # in UTC
    quiet: str = ""  # key of the quiet hours


@dataclass(frozen=True, slots=True)
class Timetable:
    """For every group: until which rank, and when."""

    slots: Mapping[PaceGroup, tuple[tuple[int, datetime], ...]]

    def slot(self, group: PaceGroup, rank: int) -> datetime | None:
        """When the recipient with this rank (from 0) has its turn; None: not before the horizon."""
        slots = self.slots.get(group, ())
        place = bisect_right(slots, rank, key=lambda slot: slot[0])
        return slots[place][1] if place < len(slots) else None


def allocate(
    counts: Mapping[PaceGroup, int],
    *,
    pacing: Pacing,
    booked: Mapping[datetime, int],  # minute -> what the sender has scheduled in it before
    until: datetime,
) -> Timetable:
    """Give every group its minutes."""
    if not pacing.spans():
        return Timetable({group: ((count, group.earliest),) for group, count in counts.items()})
    walk = _Walk(_Room(pacing, booked), until)
    for group in sorted(counts):
        walk.admit(group, counts[group])
    walk.run()
    return Timetable({group: tuple(slots) for group, slots in walk.slots.items()})


def minute_of(moment: datetime) -> int:
    """Whole minutes since 1970 in UTC."""
    return (moment - _EPOCH) // _MINUTE


class _Room:
    """What is left of the limits."""

    def __init__(self, pacing: Pacing, booked: Mapping[datetime, int]) -> None:
        self._spans = pacing.spans()
        self._used = {minutes: Counter[int]() for minutes, _ in self._spans}
        for moment, count in booked.items():
            self.take(minute_of(moment), count)

    def left(self, minute: int) -> int:
        return max(0, min(limit - self._used[span][minute // span] for span, limit in self._spans))

    def take(self, minute: int, count: int) -> None:
        for span, used in self._used.items():
            used[minute // span] += count

    def following(self, minute: int) -> int:
        """The next minute that may have room: the end of the longest span that is full."""
        full = (span for span, limit in self._spans if self._used[span][minute // span] >= limit)
        longest = max(full, default=1)
        return (minute // longest + 1) * longest


@dataclass(slots=True)
class _Waiting:
    group: PaceGroup
    quiet: QuietHours
    left: int
    served: int = 0
    slots: list[tuple[int, datetime]] = field(default_factory=list)


class _Walk:
    """The minutes in their order, with those who are awake and those who sleep."""

    def __init__(self, room: _Room, until: datetime) -> None:
        self._room = room
        self._until = until
        self._awake: list[tuple[PaceGroup, _Waiting]] = []
        self._asleep: list[tuple[int, PaceGroup, _Waiting]] = []
        self.slots: dict[PaceGroup, list[tuple[int, datetime]]] = {}

    def admit(self, group: PaceGroup, count: int) -> None:
        waiting = _Waiting(group, QuietHours.from_key(group.quiet), count)
        self.slots[group] = waiting.slots
        heapq.heappush(self._asleep, (minute_of(group.earliest), group, waiting))

    def run(self) -> None:
        minute = 0
        while self._awake or self._asleep:
            if not self._awake:
                minute = max(minute, self._asleep[0][0])
            if _start_of(minute) >= self._until:
                return
            self._wake(minute)
            self._serve(minute)
            minute = self._room.following(minute)

    def _wake(self, minute: int) -> None:
        while self._asleep and self._asleep[0][0] <= minute:
            _, group, waiting = heapq.heappop(self._asleep)
            heapq.heappush(self._awake, (group, waiting))

    def _serve(self, minute: int) -> None:
        room = self._room.left(minute)
        while room and self._awake:
            group, waiting = heapq.heappop(self._awake)
            moment = max(group.earliest, _start_of(minute))
            opening = waiting.quiet.next_delivery_window(moment, until=self._until)
            if opening is None:
                continue
            if opening > moment:
                heapq.heappush(self._asleep, (minute_of(opening), group, waiting))
                continue
            room -= self._seat(waiting, minute, moment, room)
            if waiting.left:
                heapq.heappush(self._awake, (group, waiting))

    def _seat(self, waiting: _Waiting, minute: int, moment: datetime, room: int) -> int:
        count = min(room, waiting.left)
        waiting.left -= count
        waiting.served += count
        waiting.slots.append((waiting.served, moment))
        self._room.take(minute, count)
        return count


def _start_of(minute: int) -> datetime:
    return _EPOCH + minute * _MINUTE
