"""Statistics of connectors: what their counters grew by, hour by hour and day by day, and where messages went.

The work itself is the pipeline's, on Spark and in a process of its own (`butlers pipeline run connector-stats-hourly`
does the same by hand). Here it is decided which hours and days a run looks at. Every run looks again at the last day,
for rows that came late. Results are upserted, so a run may be repeated and two may run at once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

from butlers.clock import Clock
from butlers.storage.database import Database
from butlers.storage.queries import Queries
from butlers.switchboard.fleet.windows import Window, asked_since, days_to_roll, hours_to_roll


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
