"""Results into a table, once: tasks stage their rows, one transaction of the driver takes them over.

    task      COPY into the staging table, marked with this attempt
    commit    in Spark's committer: the list of accepted attempts
    driver    BEGIN; delete what the window no longer has; INSERT ... ON CONFLICT DO UPDATE; COMMIT

A kill at any moment leaves the target as it was or wholly merged. Rows that did not change are not written, so a second
run over the same window leaves the table alone. Merges into one table wait for each other.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

import adbc_driver_manager
from adbc_driver_manager.dbapi import Cursor
from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceWriter, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from butlers.errors import InternalError
from butlers.pipeline.connection import refused, transaction
from butlers.pipeline.sinks.staging import ATTEMPT, SCHEMA, Staging, staging_for
from butlers.pipeline.sources.predicates import window_condition
from butlers.pipeline.sources.real_columns import real_columns
from butlers.pipeline.tables import Table
from butlers.pipeline.windows import Window
from butlers.storage.identifiers import quote_identifier

if TYPE_CHECKING:
    import pyarrow

FORMAT = "butlers_merge"
_TWICE = "21000"  # cardinality_violation: one statement would touch a row a second time


def merge_into(
    frame: DataFrame,
    dsn: str,
    table: Table,
    *,
    run_id: UUID,
    replace: str | None = None,
    window: Window | None = None,
) -> int:
    """Merge a result by the table's key; the number of its rows.

    With a window, rows of the table inside it that the result does not have are deleted. `replace` names the column
    that the window is about, where that is not the table's time column.
    """
    _check_columns(frame.schema, table)
    about = replace or table.time
    if window is not None and about is None:
        raise InternalError(f"{table} has no time column, so no window of it can be replaced")
    with transaction(dsn) as cursor:
        types = real_columns(cursor, table)
    inside = window_condition(about, types[about], window) if window is not None and about is not None else None
    with staging_for(dsn, table.columns, run_id) as staging:
        _stage(frame.select(*table.columns.fieldNames()), dsn, staging)
        return _take_over(dsn, table, types, staging, inside)


def _check_columns(schema: StructType, table: Table) -> None:
    offered = {field.name: field.dataType for field in schema}
    contract = {field.name: field.dataType for field in table.columns}
    wrong = [f"{name} is missing" for name in contract if name not in offered]
    wrong += [f"{name} is not a column of it" for name in offered if name not in contract]
    wrong += [
        f"{name} is {offered[name].simpleString()}, not {kind.simpleString()}"
        for name, kind in contract.items()
        if name in offered and offered[name] != kind
    ]
    if wrong:
        raise InternalError(f"the result does not fit {table}: {'; '.join(wrong)}")


def _stage(frame: DataFrame, dsn: str, staging: Staging) -> None:
    frame.sparkSession.dataSource.register(MergeSink)
    frame.write.format(FORMAT).mode("append").options(url=dsn, staging=staging.name).save()


def _take_over(dsn: str, table: Table, types: Mapping[str, str], staging: Staging, inside: str | None) -> int:
    try:
        with transaction(dsn) as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))::text", (table.qualified,))
            cursor.fetchone()
            if inside is not None:
                cursor.execute(_deletion(table, types, staging, inside))
            cursor.execute(_merge(table, types, staging))
            return _count(cursor, staging)
    except adbc_driver_manager.Error as error:
        if error.sqlstate == _TWICE:
            raise InternalError(f"the result has a key of {table} twice, so nothing was written") from error
        raise refused(f"merging into {table}", error) from error


def _merge(table: Table, types: Mapping[str, str], staging: Staging) -> str:
    names = table.columns.fieldNames()
    listed = ", ".join(map(quote_identifier, names))
    cast = ", ".join(f"{quote_identifier(name)}::{types[name]}" for name in names)
    key = ", ".join(map(quote_identifier, table.key))
    return (
        f"INSERT INTO {table.qualified} AS target ({listed}) SELECT {cast} FROM {_accepted(staging)} "
        f"ON CONFLICT ({key}) DO {_update([name for name in names if name not in table.key])}"
    )


def _update(names: list[str]) -> str:
    if not names:
        return "NOTHING"
    quoted = [quote_identifier(name) for name in names]
    changes = ", ".join(f"{name} = excluded.{name}" for name in quoted)
    old, new = (", ".join(f"{side}.{name}" for name in quoted) for side in ("target", "excluded"))
    return f"UPDATE SET {changes} WHERE ROW({old}) IS DISTINCT FROM ROW({new})"


def _deletion(table: Table, types: Mapping[str, str], staging: Staging, inside: str) -> str:
    same = " AND ".join(
        f"staged.{quote_identifier(name)}::{types[name]} = target.{quote_identifier(name)}" for name in table.key
    )
    return (
        f"DELETE FROM {table.qualified} AS target WHERE {inside} "
        f"AND NOT EXISTS (SELECT FROM {_accepted(staging)} AS staged WHERE {same})"
    )


def _accepted(staging: Staging) -> str:
    return f"(SELECT * FROM {staging.rows} WHERE {ATTEMPT} IN (SELECT {ATTEMPT} FROM {staging.accepted}))"


def _count(cursor: Cursor, staging: Staging) -> int:
    cursor.execute(f"SELECT count(*) FROM {_accepted(staging)} AS staged")
    row = cursor.fetchone()
    return int(row[0]) if row else 0


class MergeSink(DataSource):
    @classmethod
    def name(cls) -> str:
        return FORMAT

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return StagingWriter(self.options["url"], Staging(name=self.options["staging"]), schema)


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    attempt: str


class StagingWriter(DataSourceArrowWriter):
    """Runs on executors (`write`) and beside the driver (`commit`); what it leaves behind, `staging_for` drops."""

    def __init__(self, dsn: str, staging: Staging, schema: StructType) -> None:
        self._dsn = dsn
        self._staging = staging
        self._schema = schema

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> WriterCommitMessage:
        import pyarrow  # noqa: PLC0415

        attempt = uuid4().hex
        marked = to_arrow_schema(self._schema, timezone="UTC").append(pyarrow.field(ATTEMPT, pyarrow.string()))
        batches = (_marked(batch, attempt, marked) for batch in iterator)
        with transaction(self._dsn) as cursor:
            reader = pyarrow.RecordBatchReader.from_batches(marked, batches)
            cursor.adbc_ingest(self._staging.name, reader, mode="append", db_schema_name=SCHEMA)
        return Staged(attempt=attempt)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        attempts = [message.attempt for message in messages if isinstance(message, Staged)]
        with transaction(self._dsn) as cursor:
            cursor.execute(
                f"INSERT INTO {self._staging.accepted} SELECT jsonb_array_elements_text($1::jsonb)",
                (json.dumps(attempts),),
            )


def _marked(batch: pyarrow.RecordBatch, attempt: str, schema: pyarrow.Schema) -> pyarrow.RecordBatch:
    import pyarrow  # noqa: PLC0415

    mark = pyarrow.array([attempt] * batch.num_rows, pyarrow.string())
    arrays = [column.cast(schema.field(place).type) for place, column in enumerate(batch.columns)]
    return pyarrow.RecordBatch.from_arrays([*arrays, mark], schema=schema)
