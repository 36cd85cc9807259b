"""Which hours and days a rollup looks at. Pure: the time is an argument.

Every run looks again at what late rows may have changed, and goes back as far as the last result when runs were missed.
It never goes further than where the source is whole: results that stand must not be replaced by less.

    log kept      |<------------------- 7 days ------------------->| now
    hours rolled         |<-------------- at most 6 days --------->|
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

from butlers.contracts.envelope import invalid

HOUR = timedelta(hours=1)
LOG_KEPT = timedelta(days=7)
HOURLY_KEPT = timedelta(days=30)
DAILY_KEPT = timedelta(days=365)
HOURS_AGAIN = timedelta(hours=24)
HOURS_REACH = timedelta(days=6)
DAYS_AGAIN = timedelta(days=2)
DAYS_REACH = timedelta(days=27)  # the inbox keeps at least the month before the present one


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    start: datetime
    end: datetime  # not included


def hours_to_roll(now: datetime, *, last: datetime | None, since: datetime | None = None) -> Window:
    """Whole hours up to the present one; `last`: the newest hour there is a result for."""
    end = now.replace(minute=0, second=0, microsecond=0)
    oldest = end - HOURS_REACH
    if since is not None:
        start = since.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
        return Window(start=_within(start, oldest, end), end=end)
    # As seen from the last run: a row may be late and the runs after it missed.
    start = min(last + HOUR, end) - HOURS_AGAIN if last else oldest
    return Window(start=max(start, oldest), end=end)


def rest_of_today(now: datetime, *, last: datetime | None) -> Window:
    """What no rollup has looked at yet; `last`: the newest hour there is a result for."""
    today = midnight(now.date())
    return Window(start=max(today, last + HOUR) if last else today, end=today + timedelta(days=1))


def days_to_roll(now: datetime, *, last: date | None, since: datetime | None = None) -> Window:
    """Whole days in UTC up to yesterday; `last`: the newest day there is a result for."""
    end = midnight(now.date())
    oldest = end - DAYS_REACH
    if since is not None:
        return Window(start=_within(midnight(since.astimezone(UTC).date()), oldest, end), end=end)
    start = min(midnight(last), end - DAYS_AGAIN) if last else oldest
    return Window(start=max(start, oldest), end=end)


def asked_since(arguments: Mapping[str, Any]) -> datetime | None:
    """`since` of a job's arguments: an operator wants more looked at again."""
    if unknown := sorted(arguments.keys() - {"since"}):
        raise invalid(unknown[0], "is not a known argument; there is since")
    given = arguments.get("since")
    if given is None:
        return None
    try:
        moment = datetime.fromisoformat(given)
    except (TypeError, ValueError):
        raise invalid("since", "must be an RFC 3339 timestamp") from None
    if moment.tzinfo is None:
        raise invalid("since", "must carry a UTC offset")
    return moment


def midnight(day: date) -> datetime:
    return datetime.combine(day, time(), UTC)


def _within(start: datetime, oldest: datetime, end: datetime) -> datetime:
    if not oldest <= start <= end:
        raise invalid("since", f"must lie between {oldest.isoformat()} and now: the rest of the source is gone")
    return start
