"""Removing what is no longer kept, and the log of it.

A table loses its old rows together with the entry that says so, in one transaction. A table that is partitioned by
month loses whole months by dropping them, under the rules of `storage/retention.py`, which the services go by as well;
what is too old in a month that is not over is deleted. Nothing here needs Spark: the rows never leave the server.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from typing import Any
from uuid import UUID

from butlers.pipeline.tables import DAY, Table
from butlers.storage.database import Database, Executor
from butlers.storage.queries import quote_identifier
from butlers.storage.retention import drop_month_partitions_before, list_month_partitions

_RECORD = """
INSERT INTO {schema}.pruning_log (run_id, job, table_name, partition_name, rows, oldest, newest, before)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    table: str
    rows: int
    before: datetime
    oldest: datetime | None = None
    newest: datetime | None = None
    partition: str | None = None

    def described(self) -> dict[str, Any]:
        """As the service's own job says it: a month by its name, a day by its date."""
        place = {"partition": self.partition} if self.partition else {}
        return {"table": self.table, **place, "rows": self.rows} | {
            "oldest": self._told(self.oldest),
            "newest": self._told(self.newest),
        }

    def _told(self, moment: datetime | None) -> str | None:
        if moment is None:
            return None
        if self.partition:
            return f"{moment:%Y-%m}"
        return moment.date().isoformat() if self.table.endswith("_daily") else moment.isoformat()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruner:
    database: Database
    schema: str  # of the log
    job: str
    run_id: UUID

    async def prune(self, table: Table, before: datetime) -> Removed:
        """Delete the rows of before a moment; of a table of days, those of before its day."""
        column = quote_identifier(str(table.time))
        cut: datetime | date = before.date() if table.columns[str(table.time)].dataType == DAY else before
        async with self.database.transaction() as connection:
            row = await connection.fetchrow(
                f"WITH gone AS (DELETE FROM {table.qualified} WHERE {column} < $1 RETURNING {column} AS at)"
                " SELECT count(*), min(at), max(at) FROM gone",
                cut,
            )
            rows, oldest, newest = tuple(row) if row else (0, None, None)
            removed = Removed(
                table=table.name, rows=rows, before=_moment(cut), oldest=_known(oldest), newest=_known(newest)
            )
            await self._record(connection, removed)
        return removed

    async def drop_months(self, table: Table, before: datetime) -> list[Removed]:
        """Drop the months that ended before a moment's month."""
        async with self.database.transaction() as connection:
            reach = await self._reach(connection, table, before.date())
            dropped = await drop_month_partitions_before(connection, table.schema, table.name, before.date())
            removed = [
                Removed(
                    table=table.name,
                    partition=month.name,
                    rows=month.rows,
                    before=before,
                    oldest=reach[month.name][0],
                    newest=reach[month.name][1],
                )
                for month in dropped
            ]
            for what in removed:
                await self._record(connection, what)
        return removed

    async def _reach(self, connection: Executor, table: Table, before: date) -> dict[str, Sequence[Any]]:
        """From when to when the rows of each old month are."""
        months = await list_month_partitions(connection, table.schema, table.name)
        column = quote_identifier(str(table.time))
        reach: dict[str, Sequence[Any]] = {}
        for month in months:
            if month.month < before.replace(day=1):
                name = f"{quote_identifier(table.schema)}.{quote_identifier(month.name)}"
                row = await connection.fetchrow(f"SELECT min({column}), max({column}) FROM {name}")
                reach[month.name] = tuple(row) if row else (None, None)
        return reach

    async def _record(self, connection: Executor, removed: Removed) -> None:
        await connection.execute(
            _RECORD.format(schema=quote_identifier(self.schema)),
            self.run_id,
            self.job,
            removed.table,
            removed.partition,
            removed.rows,
            removed.oldest,
            removed.newest,
            removed.before,
        )


def _known(at: datetime | date | None) -> datetime | None:
    return None if at is None else _moment(at)


def _moment(at: datetime | date) -> datetime:
    return at if isinstance(at, datetime) else datetime.combine(at, time(), UTC)
