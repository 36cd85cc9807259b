"""Pacing: limits hold, nobody is disturbed, nobody waits without need."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from butlers.outbound.pacing import PaceGroup, Pacing, Timetable, allocate
from butlers.outbound.quiet_hours import QuietHours, QuietWindow

_NOON = datetime(2026, 6, 10, 12, 0, 30, tzinfo=UTC)
_WEEK = _NOON + timedelta(days=7)
_HOURS = ("", *(QuietWindow(start=s, end=e, timezone="UTC").key for s, e in (("12:03", "13:00"), ("22:00", "11:00"))))
_UNLIMITED = Pacing(max_per_minute=None, max_per_hour=None, max_per_day=None)
_GROUPS = st.dictionaries(
    st.builds(
        PaceGroup,
        earliest=st.integers(0, 600).map(lambda s: _NOON + timedelta(seconds=s)),
        quiet=st.sampled_from(_HOURS),
    ).filter(lambda group: not QuietHours.from_key(group.quiet).is_quiet(group.earliest)),
    st.integers(1, 60),
    min_size=1,
    max_size=8,
)
_LIMITS = st.builds(
    Pacing,
    max_per_minute=st.none() | st.integers(1, 9),
    max_per_hour=st.none() | st.integers(1, 30),
    max_per_day=st.none() | st.integers(5, 90),
)
_BOOKED = st.dictionaries(
    st.integers(-60, 60).map(lambda m: _NOON.replace(second=0) + timedelta(minutes=m)), st.integers(1, 9), max_size=6
)


def _slots(counts, timetable):
    return {(group, rank): timetable.slot(group, rank) for group, count in counts.items() for rank in range(count)}


def _moments(timetable: Timetable, group: PaceGroup, count: int) -> list[datetime]:
    slots = [timetable.slot(group, rank) for rank in range(count)]
    return [slot for slot in slots if slot]


@settings(max_examples=80, deadline=None)
@given(_GROUPS, _LIMITS, _BOOKED, st.integers(1, 4 * 1_440))
def test_the_limits_hold_and_no_room_is_left_unused(counts, limits, booked, horizon_minutes) -> None:
    until = _NOON + timedelta(minutes=horizon_minutes + 20)
    slots = _slots(counts, allocate(counts, pacing=limits, booked=booked, until=until))

    taken = Counter(booked)
    for (group, _), moment in slots.items():
        if moment is not None:
            assert group.earliest <= moment < until
            assert not QuietHours.from_key(group.quiet).is_quiet(moment)
            taken[moment.replace(second=0)] += 1

    def used(span: int, minute: datetime) -> int:
        number = int(minute.timestamp()) // 60 // span
        return sum(count for each, count in taken.items() if int(each.timestamp()) // 60 // span == number)

    ours = {moment.replace(second=0) for moment in slots.values() if moment}
    assert all(used(span, minute) <= limit for span, limit in limits.spans() for minute in ours)

    # Whoever got nothing, or something late, passed no open minute in which there was room.
    for group in counts:
        last = max(slots[group, rank] or until for rank in range(counts[group]))
        minute = group.earliest.replace(second=0)
        while minute < last.replace(second=0) and minute < group.earliest + timedelta(hours=3):
            moment = max(minute, group.earliest)
            if not QuietHours.from_key(group.quiet).is_quiet(moment):
                assert any(used(span, minute) >= limit for span, limit in limits.spans())
            minute += timedelta(minutes=1)


@settings(max_examples=50, deadline=None)
@given(_GROUPS, _LIMITS, st.randoms(use_true_random=False))
def test_the_order_of_the_groups_does_not_matter(counts, limits, chance: random.Random) -> None:
    shuffled = list(counts.items())
    chance.shuffle(shuffled)

    one = allocate(counts, pacing=limits, booked={}, until=_WEEK)
    other = allocate(dict(shuffled), pacing=limits, booked={}, until=_WEEK)

    assert _slots(counts, one) == _slots(counts, other)


def test_whoever_waits_longest_goes_first() -> None:
    early, late = PaceGroup(earliest=_NOON), PaceGroup(earliest=_NOON + timedelta(minutes=1))
    limits = Pacing(max_per_minute=2, max_per_hour=None, max_per_day=None)

    timetable = allocate({late: 2, early: 3}, pacing=limits, booked={}, until=_WEEK)

    assert [moment.minute for moment in _moments(timetable, early, 3)] == [0, 0, 1]
    assert [moment.minute for moment in _moments(timetable, late, 2)] == [1, 2]


def test_the_default_limits_send_a_thousand_a_day() -> None:
    everybody = PaceGroup(earliest=_NOON)

    timetable = allocate(
        {everybody: 5_000},
        pacing=Pacing(max_per_minute=60, max_per_hour=500, max_per_day=1_000),
        booked={},
        until=_NOON + timedelta(days=2),
    )

    days = Counter(
        slot.date().isoformat() for rank in range(5_000) if (slot := timetable.slot(everybody, rank)) is not None
    )
    assert days == {"2026-06-10": 1_000, "2026-06-11": 1_000, "2026-06-12": 1_000}
    assert timetable.slot(everybody, 3_000) is None


def test_without_limits_everybody_goes_at_once() -> None:
    everybody = PaceGroup(earliest=_NOON)

    timetable = allocate({everybody: 1_000_000}, pacing=_UNLIMITED, booked={_NOON: 10**9}, until=_WEEK)

    assert timetable.slot(everybody, 999_999) == _NOON


def test_what_was_scheduled_before_takes_its_place() -> None:
    everybody = PaceGroup(earliest=_NOON)
    limits = Pacing(max_per_minute=10, max_per_hour=12, max_per_day=None)

    timetable = allocate({everybody: 4}, pacing=limits, booked={_NOON.replace(second=0, minute=30): 9}, until=_WEEK)

    assert [moment.hour for moment in _moments(timetable, everybody, 4)] == [12, 12, 12, 13]
