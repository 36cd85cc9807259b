"""Tables of PostgreSQL as DataFrames: read by tasks on executors, as Arrow batches, all in one snapshot.

    read_table            on the driver: opens the snapshot, checks the columns, cuts the table into ranges
    PostgresTables        what Spark knows of it: options, all of them text
    PostgresReader        in a task: one range, one connection, one COPY

Columns and filters are pushed down by asking for them (`columns=`, `where=`, `window=`). Spark tells a Python source no
columns; it does tell filters (`pushFilters`), but Spark 4.3 keeps what was pushed for one use of a DataFrame for all
others: after `frame.where("n = 3").collect()` a `frame.collect()` has one row. So the reader takes none, and a filter
on the DataFrame is Spark's own work.

The address travels as the option `url`, which is the name that Spark masks in plans and logs.
"""

from __future__ import annotations

import contextlib
import json
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from uuid import UUID

import adbc_driver_manager
from adbc_driver_manager.dbapi import Connection, Cursor
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from butlers.contracts.envelope import invalid
from butlers.errors import InternalError
from butlers.pipeline.connection import autocommitting, connect, fetch_value, refused, transaction
from butlers.pipeline.job import JobContext, Window
from butlers.pipeline.sources.predicates import (
    batches_of,
    filter_condition,
    literal,
    real_columns,
    selected,
    window_condition,
)
from butlers.pipeline.tables import Table
from butlers.storage.queries import quote_identifier

if TYPE_CHECKING:
    import pyarrow

BEGIN = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
_block: ContextVar[contextlib.ExitStack | None] = ContextVar("block", default=None)


@contextlib.contextmanager
def snapshots() -> Iterator[None]:
    """A block in which scans are planned and executed; its end lets the server forget their snapshots."""
    with contextlib.ExitStack() as stack:
        token = _block.set(stack)
        try:
            yield
        finally:
            _block.reset(token)


def hold_snapshot(spark: SparkSession, dsn: str) -> tuple[Connection, str]:
    """A transaction that is kept open, and the name under which others see what it sees."""
    connection = connect(dsn, autocommit=True)
    block = _block.get()
    if block is not None:
        block.callback(_let_go, connection)
    else:
        weakref.finalize(spark, _let_go, connection)
    with connection.cursor() as cursor:
        cursor.execute(BEGIN)
        return connection, str(fetch_value(cursor, "SELECT pg_export_snapshot()"))


def _let_go(connection: Connection) -> None:
    # A server that is gone has let go already.
    with contextlib.suppress(adbc_driver_manager.Error):
        connection.close()


_BYTES_PER_TASK = 32 * 1024 * 1024
_MOST_TASKS = 64
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scale:
    """A type's values as whole numbers and back, so that a range of them can be divided."""

    number: Callable[[Any], int]
    text: Callable[[int], str | None]


_SCALES: Mapping[str, _Scale] = {
    "timestamp with time zone": _Scale(
        number=lambda moment: (moment - _EPOCH) // _MICROSECOND,
        text=lambda number: literal(_EPOCH + number * _MICROSECOND),
    ),
    "date": _Scale(number=date.toordinal, text=lambda number: literal(date.fromordinal(number))),
    "uuid": _Scale(number=lambda text: UUID(text).int, text=lambda number: f"'{UUID(int=number)}'::uuid"),
    **{kind: _Scale(number=int, text=literal) for kind in ("smallint", "integer", "bigint")},
}


def range_conditions(
    cursor: Cursor, table: Table, types: Mapping[str, str], *, where: str, requested: int | None
) -> list[str]:
    """One condition per task; a single "true" when there is nothing to divide by or no reason to."""
    column = table.time or table.key[0]
    scale = _SCALES.get(types[column])
    tasks = requested or _tasks_for(cursor, table)
    ends = _ends(cursor, table, column, where) if scale and tasks > 1 else None
    if scale is None or ends is None:
        return ["true"]
    cuts = _cuts(scale.number(ends[0]), scale.number(ends[1]), tasks)
    return _between(quote_identifier(column), [scale.text(cut) or "" for cut in cuts])


def _tasks_for(cursor: Cursor, table: Table) -> int:
    size = "SELECT sum(pg_table_size(relid))::bigint FROM pg_partition_tree($1::regclass)"
    found = int(fetch_value(cursor, size, (table.qualified,)) or 0)
    return max(1, min(_MOST_TASKS, found // _BYTES_PER_TASK))


def _ends(cursor: Cursor, table: Table, column: str, where: str) -> tuple[Any, Any] | None:
    """The smallest and the largest value; `min` and `max` do not exist for every type, an index does the same."""
    quoted = quote_identifier(column)
    shown = f"{quoted}::text" if table.columns[column].dataType.simpleString() == "string" else quoted
    rows = f"SELECT {shown} FROM {table.qualified} WHERE {where} AND {quoted} IS NOT NULL ORDER BY {quoted}"
    low, high = (fetch_value(cursor, f"{rows} {order} LIMIT 1") for order in ("ASC", "DESC"))
    return None if low is None else (low, high)


def _cuts(low: int, high: int, tasks: int) -> list[int]:
    return sorted({low + (high - low + 1) * part // tasks for part in range(1, tasks)} - {low})


def _between(column: str, cuts: list[str]) -> list[str]:
    if not cuts:
        return ["true"]
    middle = [f"{column} >= {low} AND {column} < {high}" for low, high in pairwise(cuts)]
    return [f"({column} < {cuts[0]} OR {column} IS NULL)", *middle, f"{column} >= {cuts[-1]}"]


FORMAT = "butlers_postgres"


def read_table(
    spark: SparkSession,
    dsn: str,
    table: Table,
    *,
    columns: Sequence[str] | None = None,
    window: Window | None = None,
    where: Sequence[Filter] = (),
    partitions: int | None = None,
) -> DataFrame:
    """A table, or the rows of a window or of conditions (all of them); every column of the contract unless named."""
    schema = table.only(columns) if columns is not None else table.columns
    connection, snapshot = hold_snapshot(spark, dsn)
    with connection.cursor() as cursor:
        types = real_columns(cursor, table)
        condition = _condition(table, types, window, where)
        ranges = range_conditions(cursor, table, types, where=condition, requested=partitions)
    spark.dataSource.register(PostgresTables)
    options = {
        "url": dsn,
        "snapshot": snapshot,
        "table": table.qualified,
        "types": json.dumps({name: types[name] for name in schema.fieldNames()}),
        "where": condition,
        "ranges": json.dumps(ranges),
    }
    return spark.read.format(FORMAT).schema(schema).options(**options).load()


class PostgresTables(DataSource):
    @classmethod
    def name(cls) -> str:
        return FORMAT

    def reader(self, schema: StructType) -> DataSourceReader:
        return PostgresReader(self.options, schema)


class RangeOfRows(InputPartition):
    """One range, and the whole condition that its task reads by."""


class PostgresReader(DataSourceReader):
    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = dict(options)
        self._schema = schema
        self._types: Mapping[str, str] = json.loads(options["types"])

    def partitions(self) -> Sequence[InputPartition]:
        return [RangeOfRows(f"({self._options['where']}) AND ({one})") for one in json.loads(self._options["ranges"])]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        query = f"SELECT {selected(self._schema.fieldNames(), self._types)} FROM {self._options['table']} "
        return _batches(
            self._options["url"], self._options["snapshot"], f"{query}WHERE {partition.value}", self._schema
        )


def _condition(table: Table, types: Mapping[str, str], window: Window | None, where: Sequence[Filter]) -> str:
    parts = [] if window is None else [_inside(table, types, window)]
    for one in where:
        text = filter_condition(one, types)
        if text is None:
            raise InternalError(
                f"the server cannot do {type(one).__name__} on {table} as Spark does it: filter in Spark"
            )
        parts.append(text)
    return " AND ".join(f"({part})" for part in parts) or "true"


def _inside(table: Table, types: Mapping[str, str], window: Window) -> str:
    if table.time is None:
        raise InternalError(f"{table} has no time column, so no window of it can be read")
    return window_condition(table.time, types[table.time], window)


def _batches(dsn: str, snapshot: str, query: str, schema: StructType) -> Iterator[pyarrow.RecordBatch]:
    try:
        with autocommitting(dsn) as cursor:
            cursor.execute(BEGIN)
            cursor.execute(f"SET TRANSACTION SNAPSHOT '{snapshot}'")
            cursor.execute(query)
            yield from batches_of(cursor, schema)
    except adbc_driver_manager.Error as error:
        raise refused("reading a range of a table", error) from error


def must_be_whole(context: JobContext, table: Table) -> None:
    """Refuse a window from before the moment up to which rows of its source were removed."""
    retained_from = pruned_until(context, table)
    if retained_from is not None and context.window.start < retained_from:
        raise invalid("from", f"must not be before {retained_from.isoformat()}: older rows of {table.name} are gone")


def whole_months(context: JobContext, table: Table) -> Window | None:
    """What of the window lies in months that the table still has; None: nothing does."""
    with transaction(context.dsn) as cursor:
        oldest = fetch_value(cursor, _OLDEST_MONTH, (table.qualified,))
    if oldest is None:
        return None
    start = max(context.window.start, oldest)
    return replace(context.window, start=start) if start < context.window.end else None


# By the names that the services give to the parts of a table (storage/retention.py).
_OLDEST_MONTH = r"""
SELECT to_timestamp(min(substring(part.relname FROM '_p(\d{6})$')) || '01 00+00', 'YYYYMMDD HH24TZH')
FROM pg_inherits JOIN pg_class AS part ON part.oid = inhrelid WHERE inhparent = to_regclass($1)
"""


def pruned_until(context: JobContext, table: Table) -> datetime | None:
    newest = "SELECT max(before) FROM pipeline.pruning_log WHERE table_name = $1"
    with transaction(context.dsn) as cursor:
        found: datetime | None = fetch_value(cursor, newest, (table.name,))
    return found
