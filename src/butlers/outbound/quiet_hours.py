"""When somebody must not be disturbed, and when that ends.

A window is written in local time, on a wall clock: from `start` of a day among `days` to `end`, which is the next day's
when it is not later than `start` (equal: 24 hours). It belongs to the day it starts on and holds in [start, end).

The wall clock jumps. A window begins at the first moment the clock shows `start` or later, and ends at the last moment
before it shows `end` or later for good:

    start or end in a gap     the moment of the jump (both in one gap: there is no window that day)
    start in a fold           its first occurrence
    end in a fold             its second occurrence
    end where a fold begins   its first: the clock goes back to `end`, and never again behind it

So nobody is disturbed twice a year because an hour came back. Several windows (a person's and a policy's) hold
together: it is quiet while any of them says so.

All zones of our time are whole minutes from UTC, so a minute in UTC is quiet as a whole or not at all; pacing relies on
that.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from typing import Self
from zoneinfo import ZoneInfo

EVERY_DAY = frozenset(range(1, 8))
zone = lru_cache(maxsize=1_024)(ZoneInfo)  # its own cache holds eight of them, and reads files for the rest
_DAY = timedelta(days=1)
_MINUTE = timedelta(minutes=1)
# A window of today, of yesterday that wraps, or of tomorrow when the clock has just gone back over midnight.
_START_DAYS = (timedelta(days=-1), timedelta(), timedelta(days=1))


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class QuietWindow:
    start: str  # HH:MM, local
    end: str  # HH:MM, local
    timezone: str  # IANA
    days: tuple[int, ...] = tuple(sorted(EVERY_DAY))  # 1 is Monday, 7 is Sunday; sorted

    @property
    def key(self) -> str:
        """The window as one word."""
        return f"{self.start}-{self.end}/{''.join(map(str, self.days))}@{self.timezone}"

    @classmethod
    def from_key(cls, key: str) -> Self:
        hours, _, rest = key.partition("/")
        days, _, timezone = rest.partition("@")
        start, _, end = hours.partition("-")
        return cls(start=start, end=end, timezone=timezone, days=tuple(map(int, days)))

    def end_if_quiet(self, moment: datetime) -> datetime | None:
        """The end of the window that `moment` lies in, the latest when there are two; None outside."""
        today = moment.astimezone(zone(self.timezone)).date()
        ends = (self._end_if_within(today + shift, moment) for shift in _START_DAYS)
        return max((end for end in ends if end), default=None)

    def _end_if_within(self, day: date, moment: datetime) -> datetime | None:
        if day.isoweekday() not in self.days:
            return None
        begins, ends = _interval(self, day)
        return ends if begins <= moment < ends else None


@dataclass(frozen=True, slots=True)
class QuietHours:
    """Windows that hold together."""

    windows: tuple[QuietWindow, ...] = ()

    def __or__(self, other: QuietHours) -> QuietHours:
        return QuietHours(tuple(sorted({*self.windows, *other.windows})))

    @property
    def key(self) -> str:
        """The windows as one text; equal texts mean equal hours."""
        return " ".join(window.key for window in sorted(self.windows))

    @classmethod
    def from_key(cls, key: str) -> Self:
        return cls(tuple(QuietWindow.from_key(word) for word in key.split()))

    def is_quiet(self, moment: datetime) -> bool:
        return any(window.end_if_quiet(moment) for window in self.windows)

    def next_delivery_window(self, moment: datetime, *, until: datetime) -> datetime | None:
        """The first moment from `moment` on that is not quiet, None when there is none before `until`."""
        while moment < until:
            end = _latest(window.end_if_quiet(moment) for window in self.windows)
            if end is None:
                return moment
            moment = end
        return None


def _latest(ends: Iterable[datetime | None]) -> datetime | None:
    return max((end for end in ends if end), default=None)


@lru_cache(maxsize=16_384)
def _interval(window: QuietWindow, day: date) -> tuple[datetime, datetime]:
    """From when to when the window of a day holds, in UTC."""
    start, end = _clock(window.start), _clock(window.end)
    place = zone(window.timezone)
    end_day = day if end > start else day + _DAY
    begins, _ = _crossings(day, start, place)
    first, second = _crossings(end_day, end, place)
    return begins, first if _is_jump(second, place) else second


@lru_cache(maxsize=1_440)
def _clock(text: str) -> time:
    return time.fromisoformat(text)


def _crossings(day: date, clock: time, place: ZoneInfo) -> tuple[datetime, datetime]:
    """The first and the second moment the wall clock shows a time, mostly the same; in a gap the jump itself."""
    wall = datetime.combine(day, clock, tzinfo=place)
    first, second = (wall.replace(fold=fold).astimezone(UTC) for fold in (0, 1))
    if second < first:  # a gap: with the offset of before it lies after the jump, and the other way round
        first = second = _jump(second, first, place)
    return first, second


def _is_jump(moment: datetime, place: ZoneInfo) -> bool:
    """Whether the wall clock is put forward or back at this moment."""
    return (moment - _MINUTE).astimezone(place).utcoffset() != moment.astimezone(place).utcoffset()


def _jump(before: datetime, after: datetime, place: ZoneInfo) -> datetime:
    """The moment between the two from which the later offset holds."""
    offset = after.astimezone(place).utcoffset()
    while after - before > _MINUTE:
        middle = before + (after - before) // (2 * _MINUTE) * _MINUTE
        if middle.astimezone(place).utcoffset() == offset:
            after = middle
        else:
            before = middle
    return after
