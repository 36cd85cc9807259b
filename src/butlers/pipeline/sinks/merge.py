"""Results into a table, once: tasks stage their rows, one transaction of the driver takes them over.

    task      COPY into the staging table, marked with this attempt
    commit    in Spark's committer: the list of accepted attempts
    driver    BEGIN; delete what the window or slice no longer has; INSERT ... ON CONFLICT DO UPDATE; COMMIT

A kill at any moment leaves the target as it was or wholly merged, and so does a server that falls and forgets staged
rows: those that were accepted are counted before they are taken over. Rows that did not change are not written, so a
second run over the same window leaves the table alone. Merges into one table wait for each other.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

import adbc_driver_manager
from adbc_driver_manager.dbapi import Cursor
from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceWriter, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import DataType, DecimalType, StructType

from butlers.errors import InternalError
from butlers.pipeline.connection import autocommitting, fetch_value, refused, transaction
from butlers.pipeline.job import Window
from butlers.pipeline.sources.predicates import literal, real_columns, window_condition
from butlers.pipeline.tables import Table
from butlers.storage.queries import quote_identifier

if TYPE_CHECKING:
    import pyarrow

SCHEMA = "pipeline_staging"
TURN = "SELECT pg_advisory_xact_lock(hashtextextended($1, 0))::text"
ATTEMPT, ROWS = "staged_by", "staged_rows"

# By what Spark calls a type: COPY is binary, so a column must be of the very type that Arrow has.
_KINDS: Mapping[str, str] = {
    "string": "text",
    "timestamp": "timestamptz",
    "date": "date",
    "boolean": "boolean",
    "smallint": "smallint",
    "int": "integer",
    "bigint": "bigint",
    "double": "double precision",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Staging:
    name: str

    @property
    def rows(self) -> str:
        return f"{SCHEMA}.{quote_identifier(self.name)}"

    @property
    def accepted(self) -> str:
        return f"{SCHEMA}.{quote_identifier(self.accepted_name)}"

    @property
    def accepted_name(self) -> str:
        return f"{self.name}_accepted"

    @property
    def accepted_rows(self) -> str:
        """What to select from: the rows that count."""
        return f"(SELECT * FROM {self.rows} WHERE {ATTEMPT} IN (SELECT {ATTEMPT} FROM {self.accepted})) AS staged"

    def count(self, cursor: Cursor) -> int:
        """How many they are; refused when they are not all that tasks wrote."""
        found: int = fetch_value(cursor, f"SELECT count(*) FROM {self.accepted_rows}")
        if found != fetch_value(cursor, f"SELECT coalesce(sum({ROWS}), 0)::bigint FROM {self.accepted}"):
            raise InternalError(
                "the server was restarted and lost staged rows, so nothing was written: run the job again"
            )
        return found


@contextmanager
def staging_for(dsn: str, columns: StructType, run_id: UUID) -> Iterator[Staging]:
    """A staging table for these columns; dropped at the end, whatever happens."""
    staging = Staging(name=f"s_{run_id.hex}_{uuid4().hex[:8]}")
    _prepare_schema(dsn)
    # Not in a transaction: tasks must see the table while the lock is held.
    with autocommitting(dsn) as cursor:
        _clear_abandoned(cursor)
        fetch_value(cursor, "SELECT pg_advisory_lock(hashtextextended($1, 0))::text", (staging.name,))
        cursor.execute(f"CREATE UNLOGGED TABLE {staging.rows} ({_definitions(columns)}, {ATTEMPT} text NOT NULL)")
        cursor.execute(f"CREATE TABLE {staging.accepted} ({ATTEMPT} text PRIMARY KEY, {ROWS} bigint NOT NULL)")
        try:
            yield staging
        finally:
            _drop(cursor, staging)


def _definitions(columns: StructType) -> str:
    return ", ".join(f"{quote_identifier(field.name)} {_kind(field.dataType)}" for field in columns)


def _kind(kind: DataType) -> str:
    return f"numeric({kind.precision},{kind.scale})" if isinstance(kind, DecimalType) else _KINDS[kind.simpleString()]


def _prepare_schema(dsn: str) -> None:
    with transaction(dsn) as cursor:
        # Two processes that create the same schema at once would collide in the catalog.
        fetch_value(cursor, TURN, (SCHEMA,))
        cursor.execute(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}")


def _clear_abandoned(cursor: Cursor) -> None:
    cursor.execute(
        "SELECT tablename::text FROM pg_tables WHERE schemaname = $1 AND tablename NOT LIKE '%\\_accepted'", (SCHEMA,)
    )
    for (name,) in cursor.fetchall():
        if fetch_value(cursor, "SELECT pg_try_advisory_lock(hashtextextended($1, 0))", (name,)):
            _drop(cursor, Staging(name=name))


def _drop(cursor: Cursor, staging: Staging) -> None:
    cursor.execute(f"DROP TABLE IF EXISTS {staging.rows}, {staging.accepted}")
    fetch_value(cursor, "SELECT pg_advisory_unlock(hashtextextended($1, 0))", (staging.name,))


FORMAT = "butlers_merge"
Place = Mapping[str, str | datetime]  # the key columns that name a slice: one window and grouping, say, among many
_TWICE = "21000"  # cardinality_violation: one statement would touch a row a second time


def merge_into(
    frame: DataFrame,
    dsn: str,
    table: Table,
    *,
    run_id: UUID,
    window: Window | None = None,
    slices: Sequence[Place] = (),
    newest: str | None = None,
) -> int:
    """Merge a result by the table's key; the number of its rows.

    With a window or slices the result is all there is of them: rows of the table in there that it does not have are
    deleted. `newest` names a column by which a later row that is there stays as it is.
    """
    _check_columns(frame.schema, table)
    with transaction(dsn) as cursor:
        types = real_columns(cursor, table)
    inside = _inside(table, types, window, slices)
    with staging_for(dsn, table.columns, run_id) as staging:
        stage(frame.select(*table.columns.fieldNames()), dsn, staging)
        statements = [_deletion(table, types, staging, inside)] if inside is not None else []
        return _take_over(dsn, table, staging, [*statements, _merge(table, types, staging, newest)])


def _inside(table: Table, types: Mapping[str, str], window: Window | None, slices: Sequence[Place]) -> str | None:
    """What the result fills, as SQL; None: nothing but its own keys."""
    if window is None:
        return " OR ".join(f"({_named(place)})" for place in slices) or None
    if table.time is None:
        raise InternalError(f"{table} has no time column, so no window of it can be replaced")
    return window_condition(table.time, types[table.time], window)


def _named(place: Place) -> str:
    return " AND ".join(f"{quote_identifier(name)} = {literal(value)}" for name, value in place.items())


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


def stage(frame: DataFrame, dsn: str, staging: Staging) -> None:
    frame.sparkSession.dataSource.register(MergeSink)
    frame.write.format(FORMAT).mode("append").options(url=dsn, staging=staging.name).save()


def _take_over(dsn: str, table: Table, staging: Staging, statements: Sequence[str]) -> int:
    try:
        with transaction(dsn) as cursor:
            fetch_value(cursor, TURN, (table.qualified,))
            rows = staging.count(cursor)
            for statement in statements:
                cursor.execute(statement)
            return rows
    except adbc_driver_manager.Error as error:
        if error.sqlstate == _TWICE:
            raise InternalError(f"the result has a key of {table} twice, so nothing was written") from error
        raise refused(f"merging into {table}", error) from error


def _merge(table: Table, types: Mapping[str, str], staging: Staging, newest: str | None) -> str:
    names = table.columns.fieldNames()
    listed = ", ".join(map(quote_identifier, names))
    cast = ", ".join(f"{quote_identifier(name)}::{types[name]}" for name in names)
    key = ", ".join(map(quote_identifier, table.key))
    return (
        f"INSERT INTO {table.qualified} AS target ({listed}) SELECT {cast} FROM {staging.accepted_rows} "
        f"ON CONFLICT ({key}) DO {_update([name for name in names if name not in table.key], newest)}"
    )


def _update(names: list[str], newest: str | None) -> str:
    if not names:
        return "NOTHING"
    quoted = [quote_identifier(name) for name in names]
    changes = ", ".join(f"{name} = excluded.{name}" for name in quoted)
    old, new = (", ".join(f"{side}.{name}" for name in quoted) for side in ("target", "excluded"))
    later = f" AND target.{quote_identifier(newest)} <= excluded.{quote_identifier(newest)}" if newest else ""
    return f"UPDATE SET {changes} WHERE ROW({old}) IS DISTINCT FROM ROW({new}){later}"


def _deletion(table: Table, types: Mapping[str, str], staging: Staging, inside: str) -> str:
    same = " AND ".join(
        f"staged.{quote_identifier(name)}::{types[name]} = target.{quote_identifier(name)}" for name in table.key
    )
    return (
        f"DELETE FROM {table.qualified} AS target WHERE ({inside}) "
        f"AND NOT EXISTS (SELECT FROM {staging.accepted_rows} WHERE {same})"
    )


class MergeSink(DataSource):
    @classmethod
    def name(cls) -> str:
        return FORMAT

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return StagingWriter(self.options["url"], Staging(name=self.options["staging"]), schema)


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    attempt: str
    rows: int


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
        rows = 0

        def counted() -> Iterator[pyarrow.RecordBatch]:
            nonlocal rows
            for batch in iterator:
                rows += batch.num_rows
                yield _marked(batch, attempt, marked)

        with transaction(self._dsn) as cursor:
            reader = pyarrow.RecordBatchReader.from_batches(marked, counted())
            cursor.adbc_ingest(self._staging.name, reader, mode="append", db_schema_name=SCHEMA)
        return Staged(attempt=attempt, rows=rows)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        accepted = {message.attempt: message.rows for message in messages if isinstance(message, Staged)}
        with transaction(self._dsn) as cursor:
            cursor.execute(
                f"INSERT INTO {self._staging.accepted} SELECT key, value::bigint FROM jsonb_each_text($1::jsonb)",
                (json.dumps(accepted),),
            )


def _marked(batch: pyarrow.RecordBatch, attempt: str, schema: pyarrow.Schema) -> pyarrow.RecordBatch:
    import pyarrow  # noqa: PLC0415

    mark = pyarrow.array([attempt] * batch.num_rows, pyarrow.string())
    arrays = [column.cast(schema.field(place).type) for place, column in enumerate(batch.columns)]
    return pyarrow.RecordBatch.from_arrays([*arrays, mark], schema=schema)
