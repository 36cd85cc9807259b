"""What to do about a wanted time: create, refuse, or suggest others. Pure; the time is an argument.

All arithmetic is on instants in UTC, so an hour stays an hour across a change of the clocks. Only the working hours of
a day are local: they are turned into instants for each day anew.

    working hours of each day  -  busy times  -  the past  =  gaps; a suggestion starts on a quarter hour in a gap
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Literal
from zoneinfo import ZoneInfo

Policy = Literal["suggest", "reject", "allow"]

SUGGESTIONS = 3
SEARCH = timedelta(days=7)  # how far from the wanted time a suggestion may lie, either way
_QUARTER_S = 900


@dataclass(frozen=True, slots=True)
class Slot:
    """From `start` up to and without `end`, both in UTC."""

    start: datetime
    end: datetime

    @property
    def length(self) -> timedelta:
        return self.end - self.start

    def overlaps(self, other: Slot) -> bool:
        return self.start < other.end and other.start < self.end


@dataclass(frozen=True, slots=True, kw_only=True)
class Busy:
    """A time that is taken, and by what."""

    slot: Slot
    event_id: str | None = None
    summary: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkingHours:
    opens: time
    closes: time  # later than `opens`
    zone: ZoneInfo  # the calendar's

    def on(self, day: date) -> Slot:
        return Slot(self._instant(day, self.opens), self._instant(day, self.closes))

    def _instant(self, day: date, at: time) -> datetime:
        return datetime.combine(day, at, tzinfo=self.zone).astimezone(UTC)


@dataclass(frozen=True, slots=True)
class Create:
    """Nothing stands against it."""


@dataclass(frozen=True, slots=True)
class Refuse:
    conflicts: tuple[Busy, ...]


@dataclass(frozen=True, slots=True)
class Suggest:
    conflicts: tuple[Busy, ...]
    alternatives: tuple[Slot, ...]  # as long as the wanted one, nearest first, none overlaps another


Decision = Create | Refuse | Suggest


def decide(wanted: Slot, busy: Sequence[Busy], *, policy: Policy, hours: WorkingHours, now: datetime) -> Decision:
    conflicts = tuple(taken for taken in busy if taken.slot.overlaps(wanted))
    if not conflicts or policy == "allow":
        return Create()
    if policy == "reject":
        return Refuse(conflicts)
    return Suggest(conflicts, _alternatives(wanted, [taken.slot for taken in busy], hours, now))


def search_window(wanted: Slot) -> Slot:
    """What must be known of the calendar to decide about a slot."""
    return Slot(wanted.start - SEARCH, wanted.end + SEARCH)


def free_gaps(window: Slot, busy: Iterable[Slot], *, hours: WorkingHours, now: datetime) -> Iterator[Slot]:
    """The free stretches of the working hours within a window, from now on, in order."""
    taken = sorted(busy, key=lambda slot: slot.start)
    since = max(window.start, now)
    for day in _days(window, hours.zone):
        open_hours = hours.on(day)
        yield from _without(Slot(max(open_hours.start, since), min(open_hours.end, window.end)), taken)


def _alternatives(wanted: Slot, busy: list[Slot], hours: WorkingHours, now: datetime) -> tuple[Slot, ...]:
    gaps = free_gaps(search_window(wanted), busy, hours=hours, now=now)
    fitting = (slot for gap in gaps for slot in _quarter_hours(gap, wanted.length))
    chosen: list[Slot] = []
    for slot in sorted(fitting, key=lambda slot: (abs(slot.start - wanted.start), slot.start)):
        if not any(slot.overlaps(other) for other in chosen):
            chosen.append(slot)
        if len(chosen) == SUGGESTIONS:
            break
    return tuple(chosen)


def _quarter_hours(gap: Slot, length: timedelta) -> Iterator[Slot]:
    """Every slot of this length in the gap that starts on a quarter hour."""
    seconds = -(-gap.start.timestamp() // _QUARTER_S) * _QUARTER_S
    start = datetime.fromtimestamp(seconds, UTC)
    while start + length <= gap.end:
        yield Slot(start, start + length)
        start += timedelta(seconds=_QUARTER_S)


def _days(window: Slot, zone: ZoneInfo) -> Iterator[date]:
    day, last = window.start.astimezone(zone).date(), window.end.astimezone(zone).date()
    while day <= last:
        yield day
        day += timedelta(days=1)


def _without(slot: Slot, taken: list[Slot]) -> Iterator[Slot]:
    """The slot minus what is taken; `taken` is sorted by start and may overlap itself."""
    start = slot.start
    for other in taken:
        if other.end <= start:
            continue
        if other.start >= slot.end:
            break
        if other.start > start:
            yield Slot(start, other.start)
        start = other.end
    if start < slot.end:
        yield Slot(start, slot.end)
