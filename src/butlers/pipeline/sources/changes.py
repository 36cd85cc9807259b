"""Changes of a table as a stream: every row that was written, once per version, with none missed.

Each row carries `changed_in`, the number of the transaction that wrote it as it is now. Numbers are given when a
transaction begins to write and become visible when it commits, which may be much later, so the highest number that was
seen says nothing about lower ones. The horizon does (`pg_snapshot_xmin`): every transaction below it has ended.

        100 committed   101 open   102 committed   103 open
                      ^ horizon = 101: read up to 100; 102 waits, although it is visible

An offset is a change number; a batch is all rows with `start <= changed_in < end`, where `end` is at most the horizon.
Nothing can appear in that range any more. Rows only leave it, when they are written again and get a number past the
horizon: they come in a later batch in their newer version. So a batch that is read again after a crash holds the same
rows or fewer, and slices of a batch, which are ranges of numbers too, never share a row and never lose one.

    latestOffset      in Spark's planner: an end with about as many rows before it as are wanted
    partitions        in Spark's planner: slices of about equal size; a large transaction is cut by a digest of the key
    read              on executors: one slice, one connection, Arrow batches
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import adbc_driver_manager
from adbc_driver_manager.dbapi import Cursor
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from butlers.errors import ConfigurationError
from butlers.pipeline.connection import autocommitting, fetch_value, refused
from butlers.pipeline.sources.predicates import batches_of, real_columns
from butlers.pipeline.tables import Table
from butlers.storage.queries import quote_identifier

if TYPE_CHECKING:
    import pyarrow


@dataclass(frozen=True, slots=True, kw_only=True)
class Horizon:
    server: str  # the server's own name for its data: a copy that was restored elsewhere has another
    change: int  # all transactions below have ended
    held_s: (
        float | None
    )  # age of the oldest transaction that writes and has not ended; None: there is none, or it is hidden


# Transactions that only read have no number and hold nothing up. Those of other databases of the server do.
_HORIZON = """
SELECT (SELECT system_identifier::text FROM pg_control_system()),
       pg_snapshot_xmin(pg_current_snapshot())::text::bigint,
       extract(epoch FROM clock_timestamp() - least(
           (SELECT min(xact_start) FROM pg_stat_activity WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid()),
           (SELECT min(prepared) FROM pg_prepared_xacts)))::double precision
"""


def read_horizon(cursor: Cursor) -> Horizon:
    cursor.execute(_HORIZON)
    row = cursor.fetchone()
    assert row is not None
    return Horizon(server=str(row[0]), change=int(row[1]), held_s=None if row[2] is None else float(row[2]))


def check_numbers(cursor: Cursor, table: Table) -> None:
    """A dump brings the numbers of the server it was made on; those ahead of this one's would not be read for years."""
    if fetch_value(cursor, _FROM_THE_FUTURE.format(table=table.qualified)):
        raise ConfigurationError(
            "rows carry change numbers that this server has not given yet, so they come from a dump of another one",
            source="database",
            key=str(table),
            remedy=f"run once: UPDATE {table.qualified} SET changed_in = DEFAULT",
        )


# All in one snapshot: what it sees was written by transactions below its end.
_FROM_THE_FUTURE = """
SELECT EXISTS (SELECT 1 FROM {table} WHERE changed_in >= pg_snapshot_xmax(pg_current_snapshot())::text::bigint)
"""


FORMAT = "butlers_changes"
ROWS_PER_BATCH = 200_000
_ROWS_PER_SLICE = 50_000
_MOST_SLICES = 32  # of one large transaction


def read_changes(
    spark: SparkSession,
    dsn: str,
    table: Table,
    *,
    select: Mapping[str, str],  # name -> SQL expression, in the order of `schema`
    schema: StructType,
    start: int = 0,  # where a stream without a checkpoint begins
    server: str | None = None,  # which one the stream belongs to; None: whichever answers
    rows_per_batch: int = ROWS_PER_BATCH,
) -> DataFrame:
    """The stream of a table's changes; the table must have `changed_in`."""
    with autocommitting(dsn) as cursor:
        real_columns(cursor, table)
        check_numbers(cursor, table)
        server = server or read_horizon(cursor).server
    spark.dataSource.register(Changes)
    options = stream_options(dsn, table, select=select, start=start, server=server, rows_per_batch=rows_per_batch)
    return spark.readStream.format(FORMAT).schema(schema).options(**options).load()


def stream_options(
    dsn: str, table: Table, *, select: Mapping[str, str], start: int, server: str, rows_per_batch: int
) -> dict[str, str]:
    """What a reader has to know, as Spark carries it: all of it text."""
    return {
        "url": dsn,  # the name that Spark masks in plans and logs
        "table": table.qualified,
        "key": " || '/' || ".join(f"{quote_identifier(name)}::text" for name in table.key),
        "select": json.dumps(dict(select)),
        "start": str(start),
        "server": server,
        "rows": str(rows_per_batch),
    }


class Changes(DataSource):
    @classmethod
    def name(cls) -> str:
        return FORMAT

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return ChangesReader(dict(self.options), schema)


@dataclass
class Slice(InputPartition):
    """The part of a batch that one task reads."""

    start: int
    end: int
    part: int = 0  # of `parts`, by a digest of the key
    parts: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """An end of a slice, and about how many rows lie before it and behind the mark before."""

    end: int
    rows: int


class ChangesReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._target: int | None = None  # of a run that ends
        self._marks: list[Mark] = []  # planned and not yet handed out, so that a backlog is counted once

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return self._offset(int(self._options["start"]))

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        with autocommitting(self._options["url"]) as cursor:
            self._target = read_horizon(cursor).change

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(int(self._options["rows"]))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        begin = int(start["change"])
        self._marks = [mark for mark in self._marks if mark.end > begin] or self._plan(start)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return self._offset(_end(self._marks, most, default=begin))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begin, until = int(start["change"]), int(end["change"])
        marks = self._count(begin, until) if begin < until else []
        return _slices(begin, marks)

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        assert isinstance(partition, Slice)
        try:
            with autocommitting(self._options["url"]) as cursor:
                cursor.execute(_rows_of(self._options, self._schema.fieldNames(), partition))
                yield from batches_of(cursor, self._schema)
        except adbc_driver_manager.Error as error:
            raise refused("reading changes of a table", error) from error

    def _offset(self, change: int) -> dict[str, Any]:
        return {"server": self._options["server"], "change": change}

    def _plan(self, start: dict[str, Any]) -> list[Mark]:
        """How the backlog is cut, counted once for all its batches."""
        with autocommitting(self._options["url"]) as cursor:
            horizon = read_horizon(cursor)
        begin = int(start["change"])
        _check_origin(horizon, server=str(start["server"]), change=begin)
        until = horizon.change if self._target is None else min(horizon.change, self._target)
        return self._count(begin, until) if begin < until else []

    def _count(self, begin: int, until: int) -> list[Mark]:
        query = _MARKS.format(table=self._options["table"], begin=begin, until=until, step=_ROWS_PER_SLICE)
        try:
            with autocommitting(self._options["url"]) as cursor:
                cursor.execute(query)
                return [Mark(end=int(end), rows=int(rows)) for end, rows in cursor.fetchall()]
        except adbc_driver_manager.Error as error:
            raise refused("counting changes of a table", error) from error


# A transaction is never divided: the last number of a bucket takes all of its rows along.
_MARKS = """
SELECT until, sum(rows)::bigint
FROM (SELECT max(changed_in) + 1 AS until, count(*) AS rows
      FROM (SELECT changed_in, (row_number() OVER (ORDER BY changed_in) - 1) / {step} AS bucket
            FROM {table} WHERE changed_in >= {begin} AND changed_in < {until}) AS numbered
      GROUP BY bucket) AS buckets
GROUP BY until
ORDER BY until
"""


def _end(marks: Sequence[Mark], most: int | None, *, default: int) -> int:
    """The last mark with no more rows before it than wanted; the first one in any case, so that there is progress."""
    end, rows = default, 0
    for place, mark in enumerate(marks):
        rows += mark.rows
        if place and most is not None and rows > most:
            break
        end = mark.end
    return end


def _slices(begin: int, marks: Sequence[Mark]) -> list[Slice]:
    slices: list[Slice] = []
    for mark in marks:
        parts = min(max(mark.rows // _ROWS_PER_SLICE, 1), _MOST_SLICES)
        slices += [Slice(start=begin, end=mark.end, part=part, parts=parts) for part in range(parts)]
        begin = mark.end
    return slices


def _rows_of(options: Mapping[str, str], names: Sequence[str], chosen: Slice) -> str:
    select: Mapping[str, str] = json.loads(options["select"])
    listed = ", ".join(f"{select[name]} AS {quote_identifier(name)}" for name in names)
    where = f"changed_in >= {chosen.start} AND changed_in < {chosen.end}"
    if chosen.parts > 1:
        # The key of a row never changes, so it stays in its part however often the row is written meanwhile.
        where += f" AND (hashtextextended({options['key']}, 0) & 2147483647) % {chosen.parts} = {chosen.part}"
    return f"SELECT {listed} FROM {options['table']} WHERE {where}"


def _check_origin(horizon: Horizon, *, server: str, change: int) -> None:
    if horizon.server == server and horizon.change >= change:
        return
    problem = "it is another server" if horizon.server != server else "it is older than what was read from it"
    raise ConfigurationError(
        f"this is not the database that the lake was filled from: {problem}",
        source="lake",
        key=f"change {change}",
        remedy="name the database it came from, or begin a new lake for this one",
    )
