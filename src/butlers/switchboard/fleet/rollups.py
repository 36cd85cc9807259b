"""Statistics of connectors: what their counters grew by, hour by hour and day by day, and where messages went.

Every run looks again at the last day, for rows that came late. Results are upserted, so a run may be repeated and two
may run at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from butlers.clock import Clock
from butlers.storage.database import Database, Record
from butlers.storage.queries import Queries
from butlers.switchboard.fleet.steps import steps
from butlers.switchboard.fleet.windows import Window, asked_since, days_to_roll, hours_to_roll


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollups:
    database: Database
    queries: Queries
    clock: Clock

    async def hourly(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """`connector_stats_hourly` from the heartbeats."""
        since = asked_since(arguments)
        last = await self.database.fetchval(self.queries.last_hour)
        window = hours_to_roll(self.clock.now(), last=last, since=since)
        async with self.database.transaction() as connection:
            await connection.execute(self.queries.take_turn)
            rows = await steps(connection, self.queries, window, "hour")
            await connection.executemany(self.queries.keep_hour, [tuple(row) for row in rows])
        return _result(window, connectors=_connectors(rows), rows=len(rows))

    async def daily(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """`connector_stats_daily` from the hours, `connector_fanout_daily` from the inbox."""
        since = asked_since(arguments)
        await self.hourly({})  # so that a missed hour is not missing in its day
        last = await self.database.fetchval(self.queries.last_day)
        window = days_to_roll(self.clock.now(), last=last, since=since)
        async with self.database.transaction() as connection:
            await connection.execute(self.queries.take_turn)
            rows = await connection.fetch(self.queries.roll_up_days, window.start, window.end)
            fanout = await connection.fetchval(self.queries.roll_up_fanout, window.start, window.end)
        return _result(window, connectors=_connectors(rows), rows=len(rows), fanout_rows=fanout)


def _result(window: Window, **counts: int) -> dict[str, Any]:
    return {"from": window.start.isoformat(), "to": window.end.isoformat(), **counts}


def _connectors(rows: Sequence[Record]) -> int:
    return len({(row["connector_type"], row["endpoint_identity"]) for row in rows})
