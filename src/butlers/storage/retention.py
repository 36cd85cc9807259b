"""Old rows: month partitions that are made ahead and dropped, and rows that are deleted in batches."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date, datetime

from butlers.storage.database import Database, Executor
from butlers.storage.queries import quote_identifier

_ATTACHED = """
select child.relname as name
from pg_inherits
join pg_class child on child.oid = pg_inherits.inhrelid
join pg_class parent on parent.oid = pg_inherits.inhparent
join pg_namespace on pg_namespace.oid = parent.relnamespace
where pg_namespace.nspname = $1 and parent.relname = $2
order by child.relname
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class MonthPartition:
    """One month of a table."""

    name: str  # without the schema
    month: date  # its first day


@dataclass(frozen=True, slots=True, kw_only=True)
class DroppedPartition:
    """What went away."""

    name: str  # without the schema
    rows: int


async def ensure_month_partitions(
    connection: Executor, schema: str, table: str, first_month: date, months_ahead: int
) -> list[MonthPartition]:
    """Make the partitions of a month and of the months after it; returns the ones that were missing."""
    needed = [_partition(table, add_months(first_month, ahead)) for ahead in range(months_ahead + 1)]
    if not _missing(needed, await list_month_partitions(connection, schema, table)):
        return []
    async with connection.transaction():
        await _take_turn(connection, schema, table)
        missing = _missing(needed, await list_month_partitions(connection, schema, table))
        for partition in missing:
            await _create(connection, schema, table, partition)
    return missing


async def drop_month_partitions_before(
    connection: Executor, schema: str, table: str, month: date
) -> list[DroppedPartition]:
    """Drop every month before a month; says how many rows each one took with it."""
    async with connection.transaction():
        await _take_turn(connection, schema, table)
        partitions = await list_month_partitions(connection, schema, table)
        return [
            await _drop(connection, schema, table, partition)
            for partition in partitions
            if partition.month < month.replace(day=1)
        ]


async def list_month_partitions(connection: Executor, schema: str, table: str) -> list[MonthPartition]:
    """The months that are attached to a table, oldest first; other partitions are left out."""
    rows = await connection.fetch(_ATTACHED, schema, table)
    name = re.compile(re.escape(table) + r"_p(?P<year>\d{4})(?P<month>0[1-9]|1[0-2])")
    found = [matched for row in rows if (matched := name.fullmatch(row["name"]))]
    return [
        MonthPartition(name=matched[0], month=date(int(matched["year"]), int(matched["month"]), 1)) for matched in found
    ]


def add_months(month: date, count: int) -> date:
    """The first day of the month that many months later."""
    years, index = divmod(month.month - 1 + count, 12)
    return date(month.year + years, index + 1, 1)


async def _create(connection: Executor, schema: str, table: str, partition: MonthPartition) -> None:
    parent, child = _qualified(schema, table), _qualified(schema, partition.name)
    await connection.execute(
        f"create table {child} (like {parent} including defaults including constraints including generated"
        " including storage including compression)"
    )
    await connection.execute(
        f"alter table {parent} attach partition {child} for values"
        f" from ('{_utc(partition.month)}') to ('{_utc(add_months(partition.month, 1))}')"
    )


async def _drop(connection: Executor, schema: str, table: str, partition: MonthPartition) -> DroppedPartition:
    name = _qualified(schema, partition.name)
    # Counted while others go on: nobody writes into a month that is over.
    rows = await connection.fetchval(f"select count(*) from {name}")
    # The table first, as everybody else takes them; the other way round a reader and this would wait for each other.
    await connection.execute(f"lock table only {_qualified(schema, table)} in access exclusive mode")
    await connection.execute(f"drop table {name}")
    return DroppedPartition(name=partition.name, rows=rows)


async def _take_turn(connection: Executor, schema: str, table: str) -> None:
    key = f"partitions of {_qualified(schema, table)}"
    await connection.execute("select pg_advisory_xact_lock(hashtextextended($1, 0))", key)


def _missing(needed: list[MonthPartition], present: list[MonthPartition]) -> list[MonthPartition]:
    return [partition for partition in needed if partition not in present]


def _partition(table: str, month: date) -> MonthPartition:
    return MonthPartition(name=f"{table}_p{month:%Y%m}", month=month)


def _qualified(schema: str, name: str) -> str:
    return f"{quote_identifier(schema)}.{quote_identifier(name)}"


def _utc(month: date) -> str:
    return f"{month:%Y-%m-%d} 00:00:00+00"


@dataclass(frozen=True, slots=True, kw_only=True)
class AgingTable:
    """A table whose rows are forgotten by their age."""

    table: str
    moment: str = "created_at"
    key: str = "id"


async def forget(database: Database, schema: str, aging: AgingTable, *, before: datetime, batch: int) -> int:
    """The rows of before; how many they were."""
    statement, gone = _statement(schema, aging), 0
    while True:
        count: int = await database.fetchval(statement, before, batch)
        gone += count
        if count < batch:
            return gone


def _statement(schema: str, aging: AgingTable) -> str:
    table = f"{quote_identifier(schema)}.{quote_identifier(aging.table)}"
    moment, key = quote_identifier(aging.moment), quote_identifier(aging.key)
    oldest = f"SELECT {key} FROM {table} WHERE {moment} < $1 ORDER BY {moment} LIMIT $2"
    return f"WITH gone AS (DELETE FROM {table} WHERE {key} IN ({oldest}) RETURNING 1) SELECT count(*) FROM gone"
