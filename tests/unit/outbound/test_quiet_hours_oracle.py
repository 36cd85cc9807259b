"""Quiet hours against an oracle that knows nothing of their arithmetic: it looks at the wall clock in every minute.

Every zone of the IANA list, windows of every kind, moments around the days on which a zone puts its clock forward or
back. `BUTLERS_ORACLE_CASES=200000` asks as often as the record in docs/systems/outbound.md says.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo, available_timezones

import numpy as np
import numpy.typing as npt
import pytest

from butlers.outbound.quiet_hours import QuietHours, QuietWindow

CASES = int(os.environ.get("BUTLERS_ORACLE_CASES", "6000"))
_ZONES = sorted(name for name in available_timezones() if name not in ("localtime", "posixrules", "Factory"))
_MINUTE = timedelta(minutes=1)
_DAYS = 5
_MARGIN = 2_160  # minutes at both ends in which windows may begin and end, and none is asked about
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001  what the wall clock shows has no zone


@dataclass(frozen=True, slots=True)
class Stretch:
    """What the clock of a zone shows in each minute of some days."""

    zone: str
    first: datetime  # in UTC
    walls: npt.NDArray[np.int64]  # minutes since 1970 on the wall clock

    @classmethod
    def around(cls, zone: str, day: date) -> Stretch:
        place = ZoneInfo(zone)
        first = datetime.combine(day, time(), tzinfo=UTC) - timedelta(days=_DAYS / 2)
        walls = np.empty(_DAYS * 1_440, dtype=np.int64)
        for number in range(len(walls)):
            wall = (first + number * _MINUTE).astimezone(place).replace(tzinfo=None)
            walls[number] = (wall - _EPOCH) // _MINUTE
        return cls(zone, first, walls)

    def quiet_minutes(self, window: QuietWindow) -> npt.NDArray[np.bool_]:
        """A window of a day begins in the first minute that shows its start or later, and ends behind the last one
        that shows a time before its end.
        """
        quiet = np.zeros(len(self.walls), dtype=bool)
        start, end = time.fromisoformat(window.start), time.fromisoformat(window.end)
        first_day = (_EPOCH + int(self.walls.min()) * _MINUTE).date() - timedelta(days=2)
        for number in range(_DAYS + 4):
            day = first_day + timedelta(days=number)
            if day.isoweekday() not in window.days:
                continue
            begins = (datetime.combine(day, start) - _EPOCH) // _MINUTE
            last_day = day if end > start else day + timedelta(days=1)
            ends = (datetime.combine(last_day, end) - _EPOCH) // _MINUTE
            reached, before = np.flatnonzero(self.walls >= begins), np.flatnonzero(self.walls < ends)
            if len(reached) and len(before) and reached[0] <= before[-1]:
                quiet[reached[0] : before[-1] + 1] = True
        return quiet


def _jumps(zone: str) -> list[date]:
    """The days between 1990 and 2037 on which the zone puts its clock forward or back."""
    place = ZoneInfo(zone)
    weeks = [datetime(1990, 1, 1, tzinfo=UTC) + timedelta(days=number) for number in range(0, 47 * 366, 7)]
    offsets = [week.astimezone(place).utcoffset() for week in weeks]
    found = []
    for week, before, after in zip(weeks, offsets, offsets[1:], strict=False):
        if before != after:
            days = (week + timedelta(days=number) for number in range(1, 8))
            found.append(next(day for day in days if day.astimezone(place).utcoffset() == after).date())
    return found


def _clock(chance: random.Random) -> str:
    if chance.random() < 0.5:
        return chance.choice(("00:00", "00:30", "01:00", "01:30", "02:00", "02:30", "03:00", "22:00", "23:59"))
    return f"{chance.randrange(24):02d}:{chance.randrange(60):02d}"


def _window(chance: random.Random, zone: str) -> QuietWindow:
    start = _clock(chance)
    end = start if chance.random() < 0.05 else _clock(chance)
    days = (
        tuple(range(1, 8)) if chance.random() < 0.5 else tuple(sorted(chance.sample(range(1, 8), chance.randint(1, 6))))
    )
    return QuietWindow(start=start, end=end, timezone=zone, days=days)


def _check(stretch: Stretch, windows: tuple[QuietWindow, ...], minute: int, seconds: int) -> None:
    quiet = np.logical_or.reduce([stretch.quiet_minutes(window) for window in windows])
    hours, moment = QuietHours(windows), stretch.first + minute * _MINUTE + timedelta(seconds=seconds)
    assert hours.is_quiet(moment) == bool(quiet[minute]), (windows, moment)
    last = len(quiet) - _MARGIN // 4
    free = np.flatnonzero(~quiet[minute:last])
    until = stretch.first + last * _MINUTE
    expected = None
    if len(free):
        expected = moment if free[0] == 0 else stretch.first + (minute + int(free[0])) * _MINUTE
    assert hours.next_delivery_window(moment, until=until) == expected, (windows, moment)


@pytest.mark.timeout(1_200)
def test_quiet_hours_agree_with_the_wall_clock_in_every_zone() -> None:
    chance = random.Random(15)
    zones = _ZONES if CASES >= 100_000 else chance.sample(_ZONES, 120)
    per_zone = CASES // len(zones) + 1
    asked = around_a_jump = 0
    for zone in zones:
        jumps = _jumps(zone)
        day = chance.choice(jumps) if jumps else date(1990, 1, 1) + timedelta(days=chance.randrange(17_000))
        stretch = Stretch.around(zone, day)
        for _ in range(per_zone):
            windows = tuple(_window(chance, zone) for _ in range(chance.choice((1, 1, 2, 3))))
            minute = chance.randrange(_MARGIN, len(stretch.walls) - _MARGIN)
            _check(stretch, windows, minute, chance.choice((0, 0, 17, 59)))
            asked += 1
            around_a_jump += bool(jumps)
    print(f"{asked} cases in {len(zones)} zones, {around_a_jump} of them within days of a gap or a fold")
    assert asked >= CASES
    assert around_a_jump > asked // 2
