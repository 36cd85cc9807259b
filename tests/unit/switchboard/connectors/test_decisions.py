"""Liveness, windows and the life of a backfill job, decided without a database."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import pytest

from butlers.channels.connector import state_after
from butlers.contracts.backfill_state import TRANSITIONS, JobAction, Status, status_after_report
from butlers.switchboard.connectors.registry import liveness
from butlers.switchboard.connectors.rollups import HOURS_REACH, days_to_roll, hours_to_roll

NOW = datetime(2026, 3, 1, 12, 5, tzinfo=UTC)
NOON = NOW.replace(minute=0)


@pytest.mark.parametrize(
    ("silence", "expected"),
    [
        (timedelta(seconds=-5), "online"),
        (timedelta(minutes=2) - timedelta(microseconds=1), "online"),
        (timedelta(minutes=2), "stale"),
        (timedelta(minutes=4), "stale"),
        (timedelta(minutes=4, microseconds=1), "offline"),
        (timedelta(days=999), "offline"),
    ],
)
def test_liveness(silence: timedelta, expected: str) -> None:
    assert liveness(NOW - silence, NOW) == expected


@pytest.mark.parametrize(("failures", "state"), [(0, "healthy"), (1, "degraded"), (4, "degraded"), (5, "error")])
def test_a_source_that_goes_on_failing_is_an_error(failures: int, state: str) -> None:
    assert state_after(failures) == state


@pytest.mark.parametrize(
    ("last", "start"),
    [
        (None, NOON - HOURS_REACH),
        (NOON - timedelta(hours=1), NOON - timedelta(hours=24)),  # the run before this one
        (NOON - timedelta(hours=4), NOON - timedelta(hours=27)),  # three runs were missed
        (NOON - timedelta(days=40), NOON - HOURS_REACH),
    ],
)
def test_hours_that_are_looked_at(last: datetime | None, start: datetime) -> None:
    window = hours_to_roll(NOW, last=last)
    assert (window.start, window.end) == (start, NOON)


@pytest.mark.parametrize(
    ("last", "first_day"),
    [
        (None, date(2026, 2, 2)),
        (date(2026, 2, 28), date(2026, 2, 27)),
        (date(2026, 2, 20), date(2026, 2, 20)),
        (date(2025, 2, 20), date(2026, 2, 2)),
    ],
)
def test_days_that_are_looked_at(last: date | None, first_day: date) -> None:
    window = days_to_roll(NOW, last=last)
    assert (window.start.date(), window.end) == (first_day, datetime(2026, 3, 1, tzinfo=UTC))


@pytest.mark.parametrize("first", [date(2026, month, 1) for month in range(1, 13)])
def test_no_day_is_looked_at_that_the_inbox_has_dropped(first: date) -> None:
    """It keeps the month before the present one."""
    now = datetime(first.year, first.month, 1, 0, 15, tzinfo=UTC)
    kept_from = (first - timedelta(days=1)).replace(day=1)
    assert days_to_roll(now, last=None).start.date() >= kept_from


# --- backfill --------------------------------------------------------------------------------------------------------


def test_resume_is_valid_only_from_paused_or_cost_capped() -> None:
    assert TRANSITIONS[JobAction.RESUME] == ((Status.PAUSED, Status.COST_CAPPED), Status.PENDING)
    for before, _ in TRANSITIONS.values():
        assert not {Status.COMPLETED, Status.CANCELLED, Status.ERROR} & {*before}  # ended is ended


@pytest.mark.parametrize(
    ("reported", "spent", "expected"),
    [
        (None, 499, Status.ACTIVE),
        (None, 500, Status.COST_CAPPED),
        (Status.ACTIVE, 900, Status.COST_CAPPED),
        (Status.COMPLETED, 900, Status.COMPLETED),
        (Status.ERROR, 0, Status.ERROR),
    ],
)
def test_how_a_job_stands_after_a_report(reported: Status | None, spent: int, expected: Status) -> None:
    after = status_after_report(Status.ACTIVE, reported=reported, spent_today_cents=spent, daily_cost_cap_cents=500)
    assert after is expected


@pytest.mark.parametrize("status", [status for status in Status if status is not Status.ACTIVE])
def test_a_report_does_not_move_a_job_that_is_not_active(status: Status) -> None:
    for reported in (None, Status.COMPLETED, Status.ERROR):
        assert status_after_report(status, reported=reported, spent_today_cents=999, daily_cost_cap_cents=500) is status
