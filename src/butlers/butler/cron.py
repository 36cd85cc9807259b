"""Cron expressions: five fields, in UTC, and a moment that really comes."""

from __future__ import annotations

from datetime import UTC, datetime

from croniter import CroniterError, croniter

_ANY_MOMENT = datetime(2026, 1, 1, tzinfo=UTC)


def cron_problem(cron: str) -> str | None:
    """What is wrong with an expression, if anything."""
    if len(cron.split()) != 5 or not croniter.is_valid(cron):
        return "must be a cron expression of five fields"
    try:
        next_run(cron, _ANY_MOMENT)
    except CroniterError:
        return "names a moment that never comes"
    return None


def next_run(cron: str, after: datetime) -> datetime:
    """The first moment after `after` that a cron expression names."""
    following: datetime = croniter(cron, after).get_next(datetime)
    return following
