"""The months of the heartbeat log, made ahead. What is old is removed by the pipeline (`connector-stats-pruning`)."""

from __future__ import annotations

from dataclasses import dataclass

from butlers.clock import Clock
from butlers.storage.database import Database
from butlers.storage.partitions import ensure_month_partitions

HEARTBEAT_LOG = "connector_heartbeat_log"
MONTHS_AHEAD = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetKeeper:
    database: Database
    schema: str
    clock: Clock

    async def make_months(self) -> None:
        this_month = self.clock.now().date().replace(day=1)
        async with self.database.connection() as connection:
            await ensure_month_partitions(connection, self.schema, HEARTBEAT_LOG, this_month, MONTHS_AHEAD)
