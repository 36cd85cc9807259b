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

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from butlers.errors import InternalError
from butlers.pipeline.connection import connect, refused
from butlers.pipeline.sources.predicates import filter_condition, window_condition
from butlers.pipeline.sources.ranges import range_conditions
from butlers.pipeline.sources.real_columns import real_columns, selected
from butlers.pipeline.sources.snapshots import BEGIN, hold_snapshot
from butlers.pipeline.tables import Table
from butlers.pipeline.windows import Window

if TYPE_CHECKING:
    import pyarrow

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
    wanted = table.only(columns) if columns is not None else table.columns
    connection, snapshot = hold_snapshot(spark, dsn)
    with connection.cursor() as cursor:
        types = real_columns(cursor, table)
        condition = _condition(table, types, window, where)
        ranges = range_conditions(cursor, table, types, where=condition, wanted=partitions)
    spark.dataSource.register(PostgresTables)
    options = {
        "url": dsn,
        "snapshot": snapshot,
        "table": table.qualified,
        "types": json.dumps({name: types[name] for name in wanted.fieldNames()}),
        "where": condition,
        "ranges": json.dumps(ranges),
    }
    return spark.read.format(FORMAT).schema(wanted).options(**options).load()


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
    # Reason for the late imports: they are needed on executors only.
    import adbc_driver_manager  # noqa: PLC0415

    expected = to_arrow_schema(schema, timezone="UTC")
    try:
        with connect(dsn, autocommit=True) as connection, connection.cursor() as cursor:
            cursor.execute(BEGIN)
            cursor.execute(f"SET TRANSACTION SNAPSHOT '{snapshot}'")
            cursor.execute(query)
            for batch in cursor.fetch_record_batch():
                yield _as_expected(batch, expected)
    except adbc_driver_manager.Error as error:
        raise refused("reading a range of a table", error) from error


def _as_expected(batch: Any, expected: Any) -> pyarrow.RecordBatch:
    """The types Spark wants to the letter: a numeric arrives as text, and fields carry notes of the driver's."""
    import pyarrow  # noqa: PLC0415

    arrays = [column.cast(field.type) for column, field in zip(batch.columns, expected, strict=True)]
    return pyarrow.RecordBatch.from_arrays(arrays, schema=expected)
