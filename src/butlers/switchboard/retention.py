"""What is kept for how long: inbox months are made ahead and dropped when old, and what butlers asked to say goes with
them; dedupe keys are forgotten.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta

from butlers.clock import Clock
from butlers.storage.database import Database
from butlers.storage.partitions import add_months, drop_month_partitions_before, ensure_month_partitions
from butlers.storage.queries import Queries
from butlers.telemetry import get_logger

log = get_logger("butlers.retention")

MONTHS_AHEAD = 2
INBOX = "message_inbox"


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxKeeper:
    database: Database
    schema: str
    queries: Queries
    clock: Clock
    keep_months: int  # whole months kept beside the present one
    keep_dedupe_days: int

    async def keep(self) -> None:
        """Make the coming months, drop the old ones."""
        this_month = self.clock.now().date().replace(day=1)
        async with self.database.connection() as connection:
            await ensure_month_partitions(connection, self.schema, INBOX, this_month, MONTHS_AHEAD)
            oldest = add_months(this_month, -self.keep_months)
            dropped = await drop_month_partitions_before(connection, self.schema, INBOX, oldest)
        for partition in dropped:
            log.info("inbox month dropped", partition=partition.name, count=partition.rows)
        await self.database.execute(self.queries.forget_notifications, datetime.combine(oldest, time(), UTC))
        cutoff = self.clock.now() - timedelta(days=self.keep_dedupe_days)
        await self.database.execute(self.queries.forget_dedupe_keys, cutoff)
