"""`routing-quality` against an oracle in DuckDB's SQL, and from outside."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any
from uuid import uuid4

import duckdb
import pyarrow
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from butlers.errors import ValidationError
from butlers.pipeline.connection import transaction
from butlers.pipeline.job import JobContext, JobResult, Window
from butlers.pipeline.jobs.routing_quality import baseline_of, run
from butlers.pipeline.sources.postgres import snapshots
from butlers.pipeline.tables.routing import ROUTING_ALERTS, ROUTING_QUALITY, SLICE
from butlers.pipeline.transforms.routing_quality import Thresholds, completed, emptied
from butlers.storage.embedded import EmbeddedPostgres
from tests.database import cloned_database_uri
from tests.pipeline.routing_record import MIGRATIONS, Record, made_up

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


def _stored(dsn: str, table: str) -> list[dict[str, Any]]:
    with transaction(dsn) as cursor:
        cursor.execute(f"SELECT *, xmin::text AS written_by FROM pipeline.{table}")
        return [dict(row) for row in cursor.fetch_arrow_table().to_pylist()]


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


def _by_slice(rows: list[dict[str, Any]]) -> dict[tuple[str, ...], dict[str, Any]]:
    found = {tuple(row[name] for name in SLICE): row for row in rows}
    assert len(found) == len(rows)
    return found


def _assert_equal(stored: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    actual, wanted = _by_slice(stored), _by_slice(expected)
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


def _alerts(dsn: str, state: str = "firing") -> set[tuple[str, ...]]:
    rows = _stored(dsn, ROUTING_ALERTS.name)
    return {(row["metric"], *(row[name] for name in SLICE)) for row in rows if row["state"] == state}


@pytest.mark.heavy
@pytest.mark.timeout(600)  # on a busy machine
def test_figures_and_alerts_equal_the_oracle_and_a_second_run_changes_nothing(spark: SparkSession, dsn: str):
    days = [(START + timedelta(days=number), 130) for number in range(-1, 7)]
    record = made_up(11, days)
    record.store(dsn)

    result = _run(spark, dsn)

    quality, expected = _stored(dsn, ROUTING_QUALITY.name), _expected(record, BASELINE)
    _assert_equal(quality, expected)
    assert result.rows_in == next(row["requests"] for row in expected if all(row[name] == "*" for name in SLICE))
    fired = _alerts_expected(expected, Thresholds())
    assert {metric for metric, *_ in fired} >= {"correctness", "stability", "shift", "partial_failure_rate"}
    assert _alerts(dsn) == fired
    assert not result.satisfied
    assert result.details["alerts"] == len(fired)

    before = _stored(dsn, ROUTING_QUALITY.name), _stored(dsn, ROUTING_ALERTS.name)
    _run(spark, dsn)
    for old, table in zip(before, (ROUTING_QUALITY, ROUTING_ALERTS), strict=True):
        assert sorted(map(str, _stored(dsn, table.name))) == sorted(map(str, old))


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


def _drifting() -> Record:
    """A day that went well, and a day after it on which a new prompt sends half of the messages to the wrong butler."""
    record = Record(random=Random(5))
    for minute in range(40):
        row = record.message(BASELINE.start + timedelta(minutes=minute), f"before {minute}")
        record.decide(row, ("llm", "claude:big", "triage-1"), ["finance" if minute % 2 else "health"])
        record.dispatch(row, 1)
    for minute in range(60):
        prompt = "triage-2" if minute % 3 else "triage-1"
        row = record.message(WINDOW.start + timedelta(minutes=minute), "the same words", channel="email")
        split = ["travel", "general"] if minute % 2 else ["travel"]
        record.decide(row, ("llm", "claude:big", prompt), split if prompt == "triage-2" else ["health"])
        record.dispatch(row, 1, failing={"s1"} if minute % 4 == 0 else {"s2"})
        if minute % 4 == 0:
            record.reroute(row, 30, "health", was="errored")
    for minute in range(40):
        row = record.message(WINDOW.start + timedelta(hours=2, minutes=minute), f"unclear {minute}", channel="api")
        record.decide(row, ("fallback", "local-1", None), ["general"])
        record.dispatch(row, 1)
    return record


@pytest.mark.heavy
@pytest.mark.timeout(600)  # on a busy machine
@pytest.mark.scenario("S3-106")
def test_quality_drift_dimensions(dsn: str, tmp_path: Path):
    _drifting().store(dsn)
    command = [sys.executable, "-m", "butlers.daemon.cli", "pipeline", "run", "routing-quality", "--master", "local[2]"]
    options = [
        "--from",
        WINDOW.start.isoformat(),
        "--to",
        WINDOW.end.isoformat(),
        "--data-dir",
        str(tmp_path),
        "--json",
    ]
    environment = os.environ | {"DATABASE_URL": dsn}
    done = subprocess.run([*command, *options], env=environment, capture_output=True, text=True, check=False)

    # Thresholds trigger alerts, and whoever started the job hears of it.
    assert done.returncode == 1, done.stderr
    told = json.loads(done.stdout)
    assert told["outcome"] == "needs_attention"
    assert told["details"]["alerts"] == len(_alerts(dsn))

    # Every dimension is there, by model and prompt version, by source and by target butler.
    rows = _by_slice(_stored(dsn, ROUTING_QUALITY.name))
    old, new = rows["*", "claude:big", "triage-1", "*", "*"], rows["*", "claude:big", "triage-2", "*", "*"]
    assert (old["correctness"], new["correctness"]) == (1.0, 0.75)
    assert (new["repeats"], new["repeats_same"], new["stability"]) == (29, 4, pytest.approx(4 / 29))
    assert (new["multi_segment_change"], new["shift"]) == (0.5, 1.0)
    assert rows["*", "*", "*", "api", "*"]["fallback_rate"] == 1.0
    assert rows["*", "*", "*", "email", "*"]["total_failures"] == 15
    assert rows["*", "*", "*", "*", "travel"]["total_failures"] == 10
    assert rows["*", "*", "*", "*", "general"]["partial_failures"] == 20

    fired = _alerts(dsn)
    assert ("correctness", "*", "claude:big", "triage-2", "*", "*") in fired
    assert not any(metric == "correctness" and slice_[2] == "triage-1" for metric, *slice_ in fired)
    assert {metric for metric, *_ in fired} >= {
        "correctness",
        "stability",
        "fallback_rate",
        "partial_failure_rate",
        "total_failure_rate",
        "dispatch_failure_rate",
        "shift",
    }
    assert ("total_failure_rate", "*", "*", "*", "email", "*") in fired
    assert ("total_failure_rate", "*", "*", "*", "*", "travel") in fired


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
