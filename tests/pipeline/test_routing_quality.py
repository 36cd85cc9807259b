"""`routing-quality` against an oracle in DuckDB's SQL, and from outside."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import uuid4

import duckdb
import pyarrow
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from butlers.errors import ValidationError
from butlers.pipeline.job import JobContext, JobResult, Window
from butlers.pipeline.jobs.routing_quality import Thresholds, baseline_of, completed, emptied, run
from butlers.pipeline.sources.postgres import snapshots
from butlers.pipeline.tables.routing import ROUTING_ALERTS, ROUTING_QUALITY, SLICE
from butlers.storage.embedded import EmbeddedPostgres
from tests.database import cloned_database_uri
from tests.pipeline.routing_record import MIGRATIONS, Record, alerts, by_slice, made_up, stored

ORACLE = Path(__file__).parent / "oracles" / "routing_quality.sql"
START = datetime(2026, 2, 27, tzinfo=UTC)
BASELINE = Window(start=START, end=START + timedelta(days=3))  # over the end of a month
WINDOW = Window(start=BASELINE.end, end=BASELINE.end + timedelta(days=3))


@pytest.fixture
async def dsn(postgres_server: EmbeddedPostgres) -> AsyncIterator[str]:
    async with cloned_database_uri(postgres_server, MIGRATIONS) as uri:
        yield uri


def _run(spark: SparkSession, dsn: str, window: Window = WINDOW, **arguments: str) -> JobResult:
    context = JobContext(spark=spark, dsn=dsn, lake=Path(), run_id=uuid4(), window=window, arguments=arguments)
    with snapshots():
        return run(context)


def _expected(record: Record, baseline: Window) -> list[dict[str, Any]]:
    with duckdb.connect() as connection:
        for name, rows in (("inbox", record.inbox), ("log", record.log), ("audit", record.audit)):
            connection.register(f"{name}_rows", pyarrow.Table.from_pylist([_flat(row) for row in rows]))
            documents = ", ".join(f"{key}::json AS {key}" for key in _DOCUMENTS if key in rows[0])
            connection.execute(f"CREATE TABLE {name} AS SELECT * REPLACE ({documents or 'id AS id'}) FROM {name}_rows")
        moments = {"ws": WINDOW.start, "we": WINDOW.end, "bs": baseline.start, "be": baseline.end}
        found = connection.execute(ORACLE.read_text(), {name: _naive(at) for name, at in moments.items()})
        names = [column[0] for column in found.description]
        return [dict(zip(names, map(_counted, row), strict=True)) for row in found.fetchall()]


_DOCUMENTS = ("routing_output", "override", "payload", "outcome_details")


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _plain(value) for name, value in row.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return json.dumps(value)
    return _naive(value) if isinstance(value, datetime) else value


def _counted(value: Any) -> Any:
    return int(value) if isinstance(value, Decimal) else value


def _naive(at: datetime) -> datetime:
    return at.astimezone(UTC).replace(tzinfo=None)


def _assert_equal(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    actual, wanted = by_slice(found), by_slice(expected)
    assert actual.keys() == wanted.keys()
    figures = [name for name in wanted[next(iter(wanted))] if name not in SLICE]
    assert set(ROUTING_QUALITY.columns.fieldNames()) == {*figures, *SLICE, *_OF_THE_RUN}
    for key, row in wanted.items():
        told = {name: actual[key][name] for name in figures}
        assert told == pytest.approx({name: row[name] for name in figures}, abs=1e-8), key


_OF_THE_RUN = {"window_start", "window_end", "baseline_start", "baseline_end"}


def _alerts_expected(rows: list[dict[str, Any]], limits: Thresholds) -> set[tuple[str, ...]]:
    found = set()
    for row in rows:
        whole, few = row["target_butler"] == "*", limits.min_decisions
        both = min(row["decisions"], row["baseline_decisions"])
        checks = {
            "correctness": (row["decisions"] >= few, lambda v: v < limits.min_correctness),
            "stability": (
                whole and row["repeats"] + row["redecided"] >= limits.min_repeats,
                lambda v: v < limits.min_stability,
            ),
            "fallback_rate": (
                whole and row["router"] == "*" and row["decisions"] >= few,
                lambda v: v > limits.max_fallback_rate,
            ),
            "multi_segment_change": (whole and both >= few, lambda v: abs(v) > limits.max_multi_segment_change),
            "dispatch_failure_rate": (row["dispatches"] >= few, lambda v: v > limits.max_dispatch_failure_rate),
            "partial_failure_rate": (row["requests"] >= few, lambda v: v > limits.max_partial_failure_rate),
            "total_failure_rate": (row["requests"] >= few, lambda v: v > limits.max_total_failure_rate),
            "shift": (whole and both >= few, lambda v: v > limits.max_shift),
        }
        for metric, (enough, is_bad) in checks.items():
            if enough and row[metric] is not None and is_bad(row[metric]):
                found.add((metric, *(row[name] for name in SLICE)))
    return found


@pytest.mark.heavy
@pytest.mark.timeout(600)  # on a busy machine
def test_figures_and_alerts_equal_the_oracle_and_a_second_run_changes_nothing(spark: SparkSession, dsn: str):
    days = [(START + timedelta(days=number), 130) for number in range(-1, 7)]
    record = made_up(11, days)
    record.store(dsn)

    result = _run(spark, dsn)

    quality, expected = stored(dsn, ROUTING_QUALITY.name), _expected(record, BASELINE)
    _assert_equal(quality, expected)
    assert result.rows_in == next(row["requests"] for row in expected if all(row[name] == "*" for name in SLICE))
    fired = _alerts_expected(expected, Thresholds())
    assert {metric for metric, *_ in fired} >= {"correctness", "stability", "shift", "partial_failure_rate"}
    assert alerts(dsn) == fired
    assert not result.satisfied
    assert result.details["alerts"] == len(fired)

    before = stored(dsn, ROUTING_QUALITY.name), stored(dsn, ROUTING_ALERTS.name)
    _run(spark, dsn)
    for old, table in zip(before, (ROUTING_QUALITY, ROUTING_ALERTS), strict=True):
        assert sorted(map(str, stored(dsn, table.name))) == sorted(map(str, old))


def test_what_a_later_run_no_longer_finds_is_cleared_and_emptied(spark: SparkSession):
    def alert(metric: str, state: str) -> tuple[Any, ...]:
        return (WINDOW.start, WINDOW.end, metric, *["*"] * len(SLICE), 0.5, 0.9, 40, state)

    schema = ROUTING_ALERTS.columns
    found = spark.createDataFrame([alert("shift", "firing")], schema)
    before = spark.createDataFrame([alert("shift", "firing"), alert("stability", "firing")], schema)
    rows = completed(found, before, ROUTING_ALERTS, {"state": sf.lit("cleared")}).collect()
    assert sorted(map(tuple, rows)) == [
        tuple(row)
        for row in spark.createDataFrame([alert("shift", "firing"), alert("stability", "cleared")], schema).collect()
    ]
    [gone] = before.limit(1).withColumns(emptied(ROUTING_ALERTS)).collect()
    assert (gone["value"], gone["samples"], gone["metric"]) == (None, 0, "shift")


def test_arguments_are_checked_before_anything_is_read():
    def context(**arguments: str) -> JobContext:
        return JobContext(
            spark=None,  # type: ignore[arg-type]  # not asked
            dsn="",
            lake=Path(),
            run_id=uuid4(),
            window=WINDOW,
            arguments=arguments,
        )

    assert baseline_of(WINDOW, {}) == BASELINE
    said = baseline_of(WINDOW, {"baseline_from": "2026-01-28", "baseline_to": "2026-02-07"})
    assert said == Window(start=datetime(2026, 1, 28, tzinfo=UTC), end=datetime(2026, 2, 7, tzinfo=UTC))
    for arguments, problem in (
        ({"baseline_from": "2026-01-01"}, "baseline_to: is missing"),
        ({"baseline_to": "2026-01-01"}, "baseline_from: is missing"),
        ({"baseline_from": "2026-03-01", "baseline_to": "2026-03-04"}, "must not overlap"),
        ({"max_shift": "a lot"}, "max_shift: must be a number"),
        ({"max_shift": "nan"}, "max_shift: must not be negative"),
    ):
        with pytest.raises(ValidationError, match=problem):
            run(context(**arguments))
