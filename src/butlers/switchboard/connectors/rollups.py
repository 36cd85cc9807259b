"""Statistics of connectors: what their counters grew by, hour by hour and day by day, and where messages went.

The work itself is the pipeline's, on Spark and in a process of its own (`butlers pipeline run connector-stats-hourly`
does the same by hand). Here it is decided which hours and days a run looks at. Every run looks again at the last day,
for rows that came late. Results are upserted, so a run may be repeated and two may run at once.

It goes back as far as the last result when runs were missed, and never further than where the source is whole: results
that stand must not be replaced by less.

    log kept      |<------------------- 7 days ------------------->| now
    hours rolled         |<-------------- at most 6 days --------->|
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, Protocol

from butlers.clock import Clock
from butlers.contracts.envelope import invalid
from butlers.storage.database import Database
from butlers.storage.queries import Queries

HOUR = timedelta(hours=1)
LOG_RETENTION = timedelta(days=7)
HOURLY_RETENTION = timedelta(days=30)
DAILY_RETENTION = timedelta(days=365)
HOURS_AGAIN = timedelta(hours=24)
HOURS_REACH = timedelta(days=6)
DAYS_AGAIN = timedelta(days=2)
DAYS_REACH = timedelta(days=27)  # the inbox keeps at least the month before the present one


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    start: datetime
    end: datetime  # not included


class RunJob(Protocol):
    """Has a job of the pipeline run, and says what it said at its end."""

    def __call__(self, job: str, window: Window, **arguments: str) -> Awaitable[dict[str, Any]]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollups:
    database: Database
    queries: Queries
    clock: Clock
    run_job: RunJob

    async def hourly(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """`connector_stats_hourly` from the heartbeats."""
        last = await self.database.fetchval(self.queries.last_hour)
        window = hours_to_roll(self.clock.now(), last=last, since=asked_since(arguments))
        return await self._run("connector-stats-hourly", window)

    async def daily(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """`connector_stats_daily` from the hours, `connector_fanout_daily` from the inbox."""
        last = await self.database.fetchval(self.queries.last_day)
        window = days_to_roll(self.clock.now(), last=last, since=asked_since(arguments))
        # The hours anew before their days, so that a missed one is not missing.
        return await self._run("connector-stats-daily", window, hours="again")

    async def pruning(self, _arguments: Mapping[str, Any]) -> dict[str, Any]:
        """What is older than it is kept, with a log of what was removed."""
        now = self.clock.now()
        return await self._run("connector-stats-pruning", Window(start=now - timedelta(days=1), end=now))

    async def _run(self, job: str, window: Window, **arguments: str) -> dict[str, Any]:
        if window.start >= window.end:
            return {"from": window.start.isoformat(), "to": window.end.isoformat(), "rows": 0}
        return await self.run_job(job, window, **arguments)


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
