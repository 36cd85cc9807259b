"""Quiet hours against a slow oracle that walks the wall clock minute by minute."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from butlers.outbound.quiet_hours import QuietHours, QuietWindow

_MINUTE = timedelta(minutes=1)
_MARGIN = 1_620  # minutes; no window is longer

# Days on which a clock jumps: by an hour, by half an hour, over midnight, over a whole day, and days without a jump.
_JUMPS = (
    ("Europe/Berlin", date(2026, 3, 29)),
    ("Europe/Berlin", date(2026, 10, 25)),
    ("America/New_York", date(2026, 3, 8)),
    ("America/New_York", date(2026, 11, 1)),
    ("Australia/Lord_Howe", date(2026, 4, 5)),
    ("Australia/Lord_Howe", date(2026, 10, 4)),
    ("America/Goose_Bay", date(2010, 11, 7)),
    ("America/Goose_Bay", date(2010, 3, 14)),
    ("America/Havana", date(2026, 3, 8)),
    ("America/Sao_Paulo", date(2018, 11, 4)),
    ("America/Sao_Paulo", date(2019, 2, 17)),
    ("Africa/Cairo", date(2026, 4, 24)),
    ("Pacific/Apia", date(2011, 12, 30)),
    ("Asia/Kathmandu", date(2024, 2, 29)),
    ("UTC", date(2026, 1, 1)),
)


def _wall(minute: datetime, zone: ZoneInfo) -> datetime:
    return minute.astimezone(zone).replace(tzinfo=None, fold=0)


def _oracle_windows(window: QuietWindow, minutes: list[datetime]) -> list[tuple[datetime, datetime]]:
    """Each day's window, found by looking at what the clock shows in every minute."""
    zone = ZoneInfo(window.timezone)
    walls = [(minute, _wall(minute, zone)) for minute in minutes]
    start, end = time.fromisoformat(window.start), time.fromisoformat(window.end)
    found = []
    for day in {wall.date() + timedelta(days=shift) for _, wall in walls for shift in (-1, 0, 1)}:
        if day.isoweekday() not in window.days:
            continue
        begins = datetime.combine(day, start)
        ends = datetime.combine(day if end > start else day + timedelta(days=1), end)
        reached = [minute for minute, wall in walls if wall >= begins]
        before_end = [minute for minute, wall in walls if wall < ends]
        if reached and before_end:
            found.append((reached[0], before_end[-1] + _MINUTE))
    return found


def _oracle_quiet(window: QuietWindow, minutes: list[datetime]) -> set[datetime]:
    return {m for begins, ends in _oracle_windows(window, minutes) for m in minutes if begins <= m < ends}


_CLOCK = st.one_of(
    st.sampled_from(
        ["00:00", "00:01", "00:30", "01:00", "01:30", "01:45", "02:00", "02:15", "02:30", "03:00", "23:30"]
    ),
    st.builds("{:02d}:{:02d}".format, st.integers(0, 23), st.integers(0, 59)),
)
_DAYS = st.sets(st.integers(1, 7), min_size=1).map(lambda days: tuple(sorted(days)))


@st.composite
def _cases(draw: st.DrawFn) -> tuple[date, tuple[QuietWindow, ...]]:
    zone, day = draw(st.sampled_from(_JUMPS))
    zones = st.sampled_from([zone, zone, "UTC", "America/New_York"])
    windows = st.builds(QuietWindow, start=_CLOCK, end=_CLOCK, timezone=zones, days=_DAYS)
    return day, tuple(draw(st.lists(windows, min_size=1, max_size=2)))


@settings(max_examples=20, deadline=None)
@given(_cases())
@example((date(2010, 11, 7), (QuietWindow(start="00:00", end="05:00", timezone="America/Goose_Bay", days=(7,)),)))
@example((date(2026, 10, 25), (QuietWindow(start="02:30", end="02:30", timezone="Europe/Berlin", days=(7,)),)))
@example((date(2026, 11, 1), (QuietWindow(start="00:00", end="01:00", timezone="America/New_York"),)))
@example((date(2026, 4, 5), (QuietWindow(start="22:00", end="01:30", timezone="Australia/Lord_Howe"),)))
def test_every_minute_around_a_jump_is_as_the_oracle_says(case: tuple[date, tuple[QuietWindow, ...]]) -> None:
    day, windows = case
    first = datetime.combine(day, time(), tzinfo=UTC) - timedelta(hours=18)
    # The margin lets windows begin before and end after the stretch that is judged.
    minutes = [first + n * _MINUTE for n in range(-_MARGIN, 2_880 + _MARGIN)]
    judged = minutes[_MARGIN:-_MARGIN]
    quiet = set().union(*(_oracle_quiet(window, minutes) for window in windows))
    hours = QuietHours(windows)

    assert [m for m in judged if hours.is_quiet(m)] == [m for m in judged if m in quiet]

    horizon = judged[-1]
    for moment in judged[::97]:
        expected = next((m for m in judged if m >= moment and m not in quiet and m < horizon), None)
        assert hours.next_delivery_window(moment, until=horizon) == expected


def _berlin(start: str, end: str, days: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 7)) -> QuietHours:
    return QuietHours((QuietWindow(start=start, end=end, timezone="Europe/Berlin", days=days),))


_FAR = datetime(2027, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("hours", "moment", "expected"),
    [
        pytest.param(_berlin("22:00", "07:00"), "2026-06-10T20:00Z", "2026-06-11T05:00Z", id="wraps midnight"),
        pytest.param(_berlin("22:00", "07:00"), "2026-06-10T19:59Z", "2026-06-10T19:59Z", id="start is the first"),
        pytest.param(_berlin("22:00", "07:00"), "2026-06-10T05:00Z", "2026-06-10T05:00Z", id="end is not in it"),
        pytest.param(_berlin("22:00", "07:00", (5,)), "2026-06-13T04:00Z", "2026-06-13T05:00Z", id="of Friday"),
        pytest.param(_berlin("22:00", "07:00", (6,)), "2026-06-13T04:00Z", "2026-06-13T04:00Z", id="not of Friday"),
        pytest.param(_berlin("09:00", "09:00", (3,)), "2026-06-10T08:00Z", "2026-06-11T07:00Z", id="equal is 24 hours"),
        pytest.param(_berlin("00:00", "00:00"), "2026-06-10T08:00Z", None, id="always"),
        pytest.param(_berlin("22:00", "02:30"), "2026-03-28T23:00Z", "2026-03-29T01:00Z", id="end in the gap"),
        pytest.param(_berlin("02:30", "04:00"), "2026-03-29T01:00Z", "2026-03-29T02:00Z", id="start in the gap"),
        pytest.param(_berlin("02:10", "02:50"), "2026-03-29T00:59Z", "2026-03-29T00:59Z", id="all in the gap"),
        pytest.param(_berlin("22:00", "02:30"), "2026-10-25T00:40Z", "2026-10-25T01:30Z", id="end in the fold"),
        pytest.param(
            _berlin("22:00", "02:00"), "2026-10-24T23:59Z", "2026-10-25T00:00Z", id="end where the fold begins"
        ),
        pytest.param(_berlin("22:00", "02:00"), "2026-10-25T00:30Z", "2026-10-25T00:30Z", id="and not after it"),
        pytest.param(_berlin("22:00", "02:01"), "2026-10-25T00:30Z", "2026-10-25T01:01Z", id="a minute into the fold"),
        pytest.param(_berlin("02:30", "06:00"), "2026-10-25T01:10Z", "2026-10-25T05:00Z", id="start in the fold"),
    ],
)
def test_the_next_delivery_window(hours: QuietHours, moment: str, expected: str | None) -> None:
    wanted = None if expected is None else datetime.fromisoformat(expected)

    assert hours.next_delivery_window(datetime.fromisoformat(moment), until=_FAR) == wanted


def test_two_windows_that_touch_are_one_silence() -> None:
    hours = _berlin("22:00", "06:00") | _berlin("06:00", "09:30")

    found = hours.next_delivery_window(datetime(2026, 6, 10, 21, 0, tzinfo=UTC), until=_FAR)

    assert found == datetime(2026, 6, 11, 7, 30, tzinfo=UTC)


def test_hours_survive_their_key() -> None:
    hours = _berlin("22:00", "06:00", (1, 7)) | QuietHours(
        (QuietWindow(start="00:00", end="00:00", timezone="Etc/GMT+5"),)
    )

    assert QuietHours.from_key(hours.key) == hours
    assert QuietHours.from_key("") == QuietHours()
