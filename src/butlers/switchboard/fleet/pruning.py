"""How long the record of the connectors is kept, and its months made ahead. The registry itself is kept for ever."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from butlers.clock import Clock
from butlers.storage.database import Database, Executor
from butlers.storage.partitions import drop_month_partitions_before, ensure_month_partitions
from butlers.storage.queries import Queries
from butlers.switchboard.fleet.windows import DAILY_KEPT, HOURLY_KEPT, LOG_KEPT
from butlers.telemetry import get_logger

log = get_logger("butlers.fleet")

HEARTBEAT_LOG = "connector_heartbeat_log"
MONTHS_AHEAD = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetKeeper:
    database: Database
    schema: str
    queries: Queries
    clock: Clock

    async def make_months(self) -> None:
        this_month = self.clock.now().date().replace(day=1)
        async with self.database.connection() as connection:
            await ensure_month_partitions(connection, self.schema, HEARTBEAT_LOG, this_month, MONTHS_AHEAD)

    async def prune(self, _arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Remove what is older than it is kept; says how much, from when to when."""
        now = self.clock.now()
        kept_days = (now - DAILY_KEPT).date()
        async with self.database.connection() as connection:
            removed = [
                *await self._drop_months(connection),
                # The rest of a month that is not over yet.
                await self._removed(connection, HEARTBEAT_LOG, self.queries.prune_heartbeats, now - LOG_KEPT),
                await self._removed(connection, "connector_stats_hourly", self.queries.prune_hours, now - HOURLY_KEPT),
                await self._removed(connection, "connector_stats_daily", self.queries.prune_days, kept_days),
                await self._removed(connection, "connector_fanout_daily", self.queries.prune_fanout, kept_days),
            ]
        for what in removed:
            if what["rows"]:
                log.info("connector statistics pruned", count=what["rows"], **_told(what))
        return {"removed": removed}

    async def _drop_months(self, connection: Executor) -> list[dict[str, Any]]:
        oldest = (self.clock.now() - LOG_KEPT).date()
        dropped = await drop_month_partitions_before(connection, self.schema, HEARTBEAT_LOG, oldest)
        return [
            {"table": HEARTBEAT_LOG, "partition": partition.name, "rows": partition.rows, **_month(partition.name)}
            for partition in dropped
        ]

    async def _removed(self, connection: Executor, table: str, query: str, before: Any) -> dict[str, Any]:
        row = await connection.fetchrow(query, before)
        rows, oldest, newest = tuple(row) if row else (0, None, None)
        return {"table": table, "rows": rows, "oldest": oldest, "newest": newest}


def _month(partition: str) -> dict[str, str]:
    digits = partition.rpartition("_p")[2]
    month = f"{digits[:4]}-{digits[4:]}"
    return {"oldest": month, "newest": month}


def _told(what: Mapping[str, Any]) -> dict[str, str]:
    place = {"partition": what["partition"]} if "partition" in what else {}
    return {"table": what["table"], "oldest": str(what["oldest"]), "newest": str(what["newest"]), **place}
