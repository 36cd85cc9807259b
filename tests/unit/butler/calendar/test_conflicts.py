"""Create, refuse or suggest: the decision alone."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from butlers.butler.calendar.events import (
    SEARCH,
    SUGGESTIONS,
    Busy,
    Policy,
    Slot,
    Taken,
    WorkingHours,
    decide,
    free_gaps,
)

VIENNA = ZoneInfo("Europe/Vienna")
HOURS = WorkingHours(opens=time(8), closes=time(20), zone=VIENNA)
NOW = datetime(2026, 3, 2, 6, tzinfo=UTC)  # a Monday


def slot(start: str, end: str, zone: ZoneInfo = VIENNA) -> Slot:
    """Local times as `03-02 10:00`."""
    return Slot(*(datetime.fromisoformat(f"2026-{text}").replace(tzinfo=zone).astimezone(UTC) for text in (start, end)))


def taken(*slots: Slot) -> list[Busy]:
    return [Busy(slot=one, event_id=f"e{number}") for number, one in enumerate(slots)]


def decided(wanted: Slot, *busy: Slot, policy: Policy = "suggest", now: datetime = NOW) -> Taken | None:
    return decide(wanted, taken(*busy), policy=policy, hours=HOURS, now=now)


def suggested(wanted: Slot, *busy: Slot, now: datetime = NOW, hours: WorkingHours = HOURS) -> list[str]:
    decision = decide(wanted, taken(*busy), policy="suggest", hours=hours, now=now)
    assert isinstance(decision, Taken)
    return [one.start.astimezone(hours.zone).strftime("%m-%d %H:%M") for one in decision.alternatives]


def test_a_free_time_is_created_whatever_the_policy() -> None:
    wanted, beside = slot("03-02 10:00", "03-02 11:00"), slot("03-02 11:00", "03-02 12:00")
    for policy in ("suggest", "reject", "allow"):
        assert decided(wanted, beside, policy=policy) is None


def test_a_taken_time_is_refused_suggested_or_allowed_by_policy() -> None:
    wanted, over = slot("03-02 10:00", "03-02 11:00"), slot("03-02 10:30", "03-02 11:30")
    elsewhere = slot("03-03 10:30", "03-03 11:30")
    assert decided(wanted, elsewhere, over, policy="reject") == Taken((Busy(slot=over, event_id="e1"),))
    assert decided(wanted, over, policy="allow") is None
    suggestion = decided(wanted, over)
    assert isinstance(suggestion, Taken)
    assert suggestion.conflicts == (Busy(slot=over, event_id="e0"),)


def test_the_nearest_free_times_come_first() -> None:
    busy = slot("03-02 10:30", "03-02 11:30")
    assert suggested(slot("03-02 10:00", "03-02 11:00"), busy) == ["03-02 09:30", "03-02 08:30", "03-02 11:30"]


def test_nothing_in_the_past_is_suggested() -> None:
    now = slot("03-02 09:50", "03-02 10:00").start
    found = suggested(slot("03-02 10:00", "03-02 11:00"), slot("03-02 10:30", "03-02 11:30"), now=now)
    assert found == ["03-02 11:30", "03-02 12:30", "03-02 13:30"]


def test_a_full_day_leads_to_the_next_ones_within_the_working_hours() -> None:
    found = suggested(slot("03-02 18:00", "03-02 20:00"), slot("03-02 00:00", "03-03 00:00"))
    assert found == ["03-03 08:00", "03-03 10:00", "03-03 12:00"]


def test_a_full_week_leaves_nothing_to_suggest() -> None:
    assert suggested(slot("03-10 10:00", "03-10 11:00"), slot("03-02 00:00", "03-20 00:00")) == []


@pytest.mark.parametrize(
    ("day", "hours"),
    [(date(2026, 3, 28), 12), (date(2026, 3, 29), 12), (date(2026, 10, 25), 12)],
)
def test_working_hours_are_local_on_days_when_the_clocks_change(day: date, hours: int) -> None:
    open_hours = HOURS.on(day)
    assert open_hours.start.astimezone(VIENNA).time() == time(8)
    assert open_hours.length == timedelta(hours=hours)


def test_an_hour_stays_an_hour_across_a_change_of_the_clocks() -> None:
    always = WorkingHours(opens=time(0), closes=time(23, 59), zone=VIENNA)
    busy = Slot(datetime(2026, 3, 28, 12, tzinfo=UTC), datetime(2026, 3, 29, 0, 30, tzinfo=UTC))
    wanted = Slot(datetime(2026, 3, 29, 0, tzinfo=UTC), datetime(2026, 3, 29, 1, tzinfo=UTC))
    decision = decide(wanted, taken(busy), policy="suggest", hours=always, now=busy.start)
    assert isinstance(decision, Taken)
    # 01:30 to 03:30 on the wall is one hour: 02:00 to 03:00 does not exist that night.
    assert decision.alternatives[0] == Slot(busy.end, busy.end + timedelta(hours=1))
    assert decision.alternatives[0].end.astimezone(VIENNA).time() == time(3, 30)


def test_free_gaps_are_the_working_hours_without_what_is_taken() -> None:
    window = slot("03-02 00:00", "03-04 00:00")
    busy = [slot("03-02 09:00", "03-02 10:00"), slot("03-02 09:30", "03-02 12:00"), slot("03-02 19:00", "03-03 09:00")]
    now = slot("03-02 08:30", "03-02 08:30").start
    assert list(free_gaps(window, busy, hours=HOURS, now=now)) == [
        slot("03-02 08:30", "03-02 09:00"),
        slot("03-02 12:00", "03-02 19:00"),
        slot("03-03 09:00", "03-03 20:00"),
    ]


# --- properties ------------------------------------------------------------------------------------------------------

ZONES = st.sampled_from(["UTC", "Europe/Vienna", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu"])
STARTS = st.integers(0, 365 * 1440).map(lambda minutes: datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=minutes))
LENGTHS = st.integers(5, 600).map(lambda minutes: timedelta(minutes=minutes))


@st.composite
def around(draw: st.DrawFn, start: datetime) -> Slot:
    begin = start + timedelta(minutes=draw(st.integers(-10_000, 10_000)))
    return Slot(begin, begin + draw(LENGTHS) * draw(st.integers(1, 4)))


@given(start=STARTS, length=LENGTHS, zone=ZONES, late=st.integers(-9000, 9000), data=st.data())
def test_suggestions_are_free_equally_long_near_not_past_and_within_hours(
    start: datetime, length: timedelta, zone: str, late: int, data: st.DataObject
) -> None:
    wanted, now = Slot(start, start + length), start + timedelta(minutes=late)
    busy = [wanted, *data.draw(st.lists(around(start), max_size=12))]
    hours = WorkingHours(opens=time(8), closes=time(20), zone=ZoneInfo(zone))
    decision = decide(wanted, taken(*busy), policy="suggest", hours=hours, now=now)
    assert isinstance(decision, Taken)
    found = decision.alternatives
    assert len(found) <= SUGGESTIONS
    distances = [abs(one.start - start) for one in found]
    assert distances == sorted(distances)
    for number, one in enumerate(found):
        assert one.length == length
        assert not any(one.overlaps(other) for other in (*busy, *found[:number]))
        assert one.start >= now
        assert distances[number] <= SEARCH
        opened = hours.on(one.start.astimezone(hours.zone).date())
        assert opened.start <= one.start and one.end <= opened.end


@given(start=STARTS, length=LENGTHS, data=st.data())
def test_a_conflict_is_exactly_what_overlaps(start: datetime, length: timedelta, data: st.DataObject) -> None:
    wanted = Slot(start, start + length)
    busy = taken(*data.draw(st.lists(around(start), max_size=12)))
    decision = decide(wanted, busy, policy="reject", hours=HOURS, now=start)
    overlapping = tuple(one for one in busy if max(one.slot.start, start) < min(one.slot.end, wanted.end))
    assert decision == (Taken(overlapping) if overlapping else None)
