"""Results are merged once: whatever Spark repeats, fails at or leaves behind, the target is as before or wholly new."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructField, StructType

from butlers.errors import ConfigurationError, InternalError
from butlers.pipeline.connection import connect, transaction
from butlers.pipeline.job import Window
from butlers.pipeline.sinks import merge
from butlers.pipeline.sinks.merge import StagingWriter, merge_into, staging_for
from butlers.pipeline.tables import TYPES, Table, columns
from butlers.storage.embedded import EmbeddedPostgres
from tests.database import cloned_database_uri

RUN = UUID(int=5)
TALLY = Table(
    schema="public",
    name="tally",
    columns=columns("who string, day date, id string, count bigint, at timestamp, share decimal(5,2), document string"),
    key=("who", "day"),
    time="day",
)
_CREATE = """
CREATE TABLE tally (who text, day date, id uuid, count bigint NOT NULL, at timestamptz, share numeric(5,2),
    document jsonb, added text DEFAULT 'kept', PRIMARY KEY (who, day))
"""
MARCH = Window(start=datetime(2026, 3, 1, tzinfo=UTC), end=datetime(2026, 4, 1, tzinfo=UTC))


@pytest.fixture
async def dsn(postgres_server: EmbeddedPostgres) -> AsyncIterator[str]:
    async with cloned_database_uri(postgres_server) as uri:
        with transaction(uri) as cursor:
            cursor.execute(_CREATE)
        yield uri


def _row(who: str, day: int, count: int | None = 1, month: int = 3, **other: Any) -> tuple[Any, ...]:
    values = {"id": str(UUID(int=day)), "share": Decimal("1.25"), "document": '{"a": 1}'} | other
    at = datetime(2026, month, day, 23, 59, 59, 123456, tzinfo=UTC)
    return (who, date(2026, month, day), values["id"], count, at, values["share"], values["document"])


def _frame(spark: SparkSession, *rows: tuple[Any, ...], partitions: int = 2) -> DataFrame:
    return spark.createDataFrame(list(rows), TALLY.columns).repartition(partitions)


def _stored(dsn: str) -> list[tuple[Any, ...]]:
    with connect(dsn) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT who, day, count, added, xmin::text FROM tally ORDER BY who, day")
        return cursor.fetchall()


def _staged_tables(dsn: str) -> int:
    with connect(dsn) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'pipeline_staging'")
        return int((cursor.fetchone() or (0,))[0])


def test_a_result_is_merged_and_a_second_run_changes_nothing(spark: SparkSession, dsn: str):
    old = _frame(spark, _row("ann", 1), _row("ann", 2), _row("bob", 3), _row("ann", 28, month=2))
    assert merge_into(old, dsn, TALLY, run_id=RUN) == 4
    before = _stored(dsn)
    assert merge_into(old, dsn, TALLY, run_id=RUN) == 4
    assert _stored(dsn) == before  # xmin too: not a row was written again

    new = _frame(spark, _row("ann", 1, count=7), _row("cat", 4))
    assert merge_into(new, dsn, TALLY, run_id=RUN, window=MARCH) == 2
    after = [row[:4] for row in _stored(dsn)]
    assert after == [
        ("ann", date(2026, 2, 28), 1, "kept"),
        ("ann", date(2026, 3, 1), 7, "kept"),
        ("cat", date(2026, 3, 4), 1, "kept"),
    ]
    with connect(dsn) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT id::text, at, share::text, document ->> 'a' FROM tally WHERE who = 'cat'")
        moment = datetime(2026, 3, 4, 23, 59, 59, 123456, tzinfo=UTC)
        assert cursor.fetchone() == (str(UUID(int=4)), moment, "1.25", "1")
    assert merge_into(new.limit(0), dsn, TALLY, run_id=RUN, window=MARCH) == 0
    assert len(_stored(dsn)) == 1
    assert _staged_tables(dsn) == 0


def test_what_does_not_fit_is_named_and_nothing_is_written(spark: SparkSession, dsn: str):
    merge_into(_frame(spark, _row("ann", 1)), dsn, TALLY, run_id=RUN)
    before = _stored(dsn)
    good = _row("bob", 2)
    frame = _frame(spark, good)
    for wrong, problem in [
        (frame.drop("count"), "count is missing"),
        (frame.withColumnRenamed("at", "when"), "at is missing; when is not a column of it"),
        (frame.withColumn("count", frame["count"].cast("int")), "count is int, not bigint"),
        (_frame(spark, good, _row("ann", 3, count=None)), "SQLSTATE 23502"),
        (_frame(spark, good, _row("ann", 3, id="no uuid")), "SQLSTATE 22P02"),
        (_frame(spark, good, _row("ann", 3), _row("ann", 3, count=2)), "a key of public.tally twice"),
    ]:
        with pytest.raises(InternalError, match=problem):
            merge_into(wrong, dsn, TALLY, run_id=RUN, window=MARCH)
    with pytest.raises(ConfigurationError, match="there is no such table"):
        merge_into(frame, dsn, replace(TALLY, schema="elsewhere"), run_id=RUN)
    assert _stored(dsn) == before
    assert _staged_tables(dsn) == 0


def test_a_task_that_fails_leaves_the_target_alone(spark: SparkSession, dsn: str):
    # Three rows in one task each; the last one fails after the others may have been staged.
    failing = _frame(spark, _row("ann", 1), _row("bob", 2), _row("cat", 3), partitions=3).selectExpr(
        "who", "day", "id", "if(who = 'cat', raise_error('lost'), count) AS count", "at", "share", "document"
    )
    with pytest.raises(Exception, match="lost"):
        merge_into(failing, dsn, TALLY, run_id=RUN)
    assert _stored(dsn) == []
    assert _staged_tables(dsn) == 0


def test_only_accepted_attempts_are_merged(dsn: str, monkeypatch: pytest.MonkeyPatch):
    """Spark repeats a task: both attempts staged their rows, a third one is half-way, one is accepted."""

    def stage(_frame: object, address: str, staging: Any) -> None:
        writer = StagingWriter(address, staging, TALLY.columns)
        lost, kept = (writer.write(_batches([_row("ann", 1, count=count)])) for count in (1, 2))
        assert lost != kept
        with pytest.raises(Exception, match="half-way"):
            writer.write(_breaking_off())
        writer.commit([kept, None])
        writer.write(_batches([_row("ann", 1, count=3)]))  # after the commit: too late

    monkeypatch.setattr(merge, "stage", stage)
    frame = _Frame()
    assert merge_into(frame, dsn, TALLY, run_id=RUN) == 1  # type: ignore[arg-type]
    assert [row[2] for row in _stored(dsn)] == [2]


def test_rows_that_a_fallen_server_forgot_are_missed(dsn: str, monkeypatch: pytest.MonkeyPatch):
    """Staged rows are not logged: a server that falls comes back without them."""

    def stage(_frame: object, address: str, staging: Any) -> None:
        writer = StagingWriter(address, staging, TALLY.columns)
        writer.commit([writer.write(_batches([_row("ann", 1, count=1)]))])
        if forgets:
            with transaction(address) as cursor:
                cursor.execute(f"TRUNCATE {staging.rows}")

    monkeypatch.setattr(merge, "stage", stage)
    slices = [{"who": "ann"}]
    forgets = False
    assert merge_into(_Frame(), dsn, TALLY, run_id=RUN, slices=slices) == 1  # type: ignore[arg-type]
    before, forgets = _stored(dsn), True
    with pytest.raises(InternalError, match="lost staged rows"):
        merge_into(_Frame(), dsn, TALLY, run_id=RUN, slices=slices)  # type: ignore[arg-type]
    assert _stored(dsn) == before


class _Frame:
    schema = TALLY.columns

    def select(self, *_names: str) -> _Frame:
        return self


def _batches(rows: list[tuple[Any, ...]]) -> Iterator[pyarrow.RecordBatch]:
    kinds = [
        pyarrow.string(),
        pyarrow.date32(),
        pyarrow.string(),
        pyarrow.int64(),
        pyarrow.timestamp("us", "UTC"),
        pyarrow.decimal128(5, 2),
        pyarrow.string(),
    ]
    arrays = [pyarrow.array(values, kind) for values, kind in zip(zip(*rows, strict=True), kinds, strict=True)]
    yield pyarrow.RecordBatch.from_arrays(arrays, names=TALLY.columns.fieldNames())


def _breaking_off() -> Iterator[pyarrow.RecordBatch]:
    yield from _batches([_row("ann", 1, count=9)])
    raise RuntimeError("half-way")


def test_what_a_dead_run_left_is_cleared_and_a_living_one_is_not(dsn: str):
    kinds = StructType([StructField("n", TYPES["bigint"])])
    with staging_for(dsn, kinds, UUID(int=1)) as living:
        with connect(dsn, autocommit=True) as connection, connection.cursor() as cursor:
            cursor.execute("CREATE TABLE pipeline_staging.s_dead (n bigint)")
            cursor.execute("CREATE TABLE pipeline_staging.s_dead_accepted (n bigint)")
        with staging_for(dsn, kinds, UUID(int=2)), connect(dsn) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT tablename::text FROM pg_tables WHERE schemaname = 'pipeline_staging' ORDER BY 1")
            names = [name for (name,) in cursor.fetchall()]
        assert living.name in names
        assert "s_dead" not in names
        assert len(names) == 4
    assert _staged_tables(dsn) == 0
