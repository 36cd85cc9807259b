"""Hourly statistics on Spark are those of an independent oracle and of the plain Python, over days of all kinds."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from random import Random
from uuid import UUID

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from butlers.contracts.envelope import MAX_COUNT
from butlers.errors import ValidationError
from butlers.pipeline.generate import FleetPlan, heartbeats, logged_heartbeats
from butlers.pipeline.job import Window
from butlers.pipeline.jobs.connector_stats import HOURLY, PRUNING
from butlers.pipeline.transforms.connector_stats import hourly, with_deltas
from butlers.storage.embedded import EmbeddedPostgres
from butlers.switchboard.connectors.deltas import ADDED, YOUNG_S
from tests.pipeline.heartbeats import (
    COLUMNS,
    STARTS,
    context_of,
    figures,
    frame_of,
    heartbeat_database,
    many_reports,
    oracle,
    plain,
    reports_of,
    said,
    upgraded,
)
from tests.unit.switchboard.connectors import reports as told
from tests.unit.switchboard.connectors.reports import INSERT, Report, expected_hours

EVER = Window(start=datetime(2026, 1, 1, tzinfo=UTC), end=datetime(2029, 1, 1, tzinfo=UTC))
START = STARTS[0]
ONE_BY_ONE: dict[str, tuple[list[int], list[Report]]] = {}


def _cases() -> None:
    def one(name: str, wanted: list[int], *reports: Report) -> None:
        ONE_BY_ONE[name] = (wanted, [replace(report, endpoint=name) for report in reports])

    def beat(number: int, minutes: float, *counters: int, **changes: object) -> Report:
        return said(number, minutes, *counters, endpoint="", **changes)

    one("the hour of the later one", [25, 15], beat(1, 50, 10), beat(2, 59.9, 25), beat(3, 60, 40))
    one("restart", [10, 30], beat(1, 50, 10), beat(2, 70, 30, instance_id=UUID(int=2), uptime_s=5.0))
    one("counter reset", [10, 9], beat(1, 50, 10), beat(2, 70, 4), beat(3, 80, 9))
    late = beat(2, 65, 10, sent_at=START + timedelta(minutes=40), uptime_s=2400.0)
    one("overtaken", [20, 5], beat(1, 50, 20), late, beat(3, 70, 25))
    one("anew", [10, 15], beat(1, 50, 10), beat(2, 70, 15, uptime_s=1.0))
    one(
        "anew and overtaken by its old life",
        [10, 20],
        beat(1, 50, 10),
        beat(2, 70, 15, uptime_s=1.0),
        beat(3, 71, 11, uptime_s=0.5, sent_at=START),
        beat(4, 80, 20, uptime_s=600.0),
    )
    one("from the future", [20, 5], beat(1, 50, 20, sent_at=START + timedelta(days=3650)), beat(2, 70, 25))
    one("old", [0, 7], beat(1, 50, 100_000, uptime_s=YOUNG_S + 1), beat(2, 70, 100_007, uptime_s=YOUNG_S + 1201))
    one("just young", [5], beat(1, 50, 5, uptime_s=YOUNG_S))
    one("twice", [20, 10], beat(1, 50, 20), beat(2, 70, 30), beat(2, 70, 30), beat(2, 70, 30))
    one("same age", [10, 6], beat(1, 50, 10), beat(2, 70, 12, uptime_s=3000.0), beat(3, 71, 16, uptime_s=3000.0))
    one("same moment", [10], beat(1, 50, 4), beat(2, 50, 10))
    one("beyond measure", [MAX_COUNT], *(beat(n, 10 + n, MAX_COUNT, instance_id=UUID(int=n)) for n in (1, 2, 3)))


_cases()


def test_rows_without_deltas_are_told_as_by_the_oracle_and_by_plain_python(spark: SparkSession) -> None:
    """All rows are compared here; the cases one by one have clocks that are set, of which the oracle knows nothing."""
    reports = many_reports()
    plan = FleetPlan(connectors=6, start=date(2028, 2, 28), days=2, seed=5)
    made = [heartbeats(spark, plan, day) for day in plan.dates]
    nothing = [sf.lit(None).cast("long").alias(name) for name in ADDED]
    rows = made[0].unionByName(made[1]).select(*COLUMNS[: -len(ADDED)], *nothing)
    frame = frame_of(spark, Random(3).sample(reports, len(reports))).unionByName(rows).cache()
    hours = hourly(with_deltas(frame), EVER).collect()

    assert plain(hours) == plain(oracle("hourly", heartbeats=frame))
    wanted = expected_hours(reports_of(frame.collect()))
    assert figures(hours) == {key[1:]: numbers for key, numbers in wanted.items()}
    frame.unpersist()


def test_each_misfortune_by_itself(spark: SparkSession) -> None:
    reports = [report for _, reports in ONE_BY_ONE.values() for report in reports]
    hours = hourly(with_deltas(frame_of(spark, reports)), EVER).collect()
    for name, (messages, _) in ONE_BY_ONE.items():
        found = sorted((row["hour"], row["messages_ingested"]) for row in hours if row["endpoint_identity"] == name)
        assert [count for _, count in found] == messages, name


def test_rows_with_deltas_are_summed_up_and_not_moved(spark: SparkSession, tmp_path: Path) -> None:
    """A made-up fleet is logged day by day as the intake would have done it in one go; a file may lack the columns."""
    plan = FleetPlan(connectors=8, start=date(2028, 2, 28), days=3, seed=6)
    days = [logged_heartbeats(spark, plan, day).select(*COLUMNS) for day in plan.dates]
    for day in days:
        day.write.mode("append").parquet(str(tmp_path / "logged"))
    logged = spark.read.parquet(str(tmp_path / "logged"))
    hours = hourly(logged, EVER)
    assert plain(hours.collect()) == plain(oracle("hourly", heartbeats=logged))
    spoken = hours._jdf.queryExecution().executedPlan().toString()
    assert "MapInArrow" not in spoken
    assert "id#" not in spoken.partition("ReadSchema")[2], "only what is summed up is read"

    logged.drop(*ADDED).write.parquet(str(tmp_path / "older"))
    older = spark.read.schema(logged.schema).parquet(str(tmp_path / "older"))
    assert older.where(sf.col(ADDED[0]).isNull()).count() == logged.count()
    assert logged.where(sf.col(ADDED[0]).isNull()).isEmpty()


async def test_the_job_may_be_repeated_and_sees_what_came_before_rows_without_deltas(
    spark: SparkSession, postgres_server: EmbeddedPostgres
) -> None:
    """A system that was upgraded in the middle of the window."""
    reports = [report for report in many_reports() if report.endpoint.startswith(f"{START:%y%m%d}")]
    silent = [said(1, 5, 7, endpoint="silent"), said(2, 30 * 60, 9, endpoint="silent")]
    everything = [*upgraded(reports), *silent]
    window = Window(start=START + timedelta(hours=16), end=START + timedelta(hours=36))
    async with heartbeat_database(postgres_server, (date(2026, 3, 1), date(2026, 4, 1))) as (dsn, database):
        await database.executemany(INSERT, [report.row() for report in everything])
        rows = "SELECT *, xmin::text FROM switchboard.connector_stats_hourly ORDER BY 1, 2, 3"
        first = HOURLY.run(context_of(spark, dsn, window))
        stored = await database.fetch(rows)
        again = HOURLY.run(context_of(spark, dsn, window))
        assert await database.fetch(rows) == stored  # not even written again
        # What is late replaces what stands.
        late = said(3, 29 * 60, 8, endpoint="silent")
        await database.executemany(INSERT, [late.row()])
        HOURLY.run(context_of(spark, dsn, window))
        after = await database.fetch(rows)

    come = [report for report in everything if report.received_at < window.end]
    assert {report.added is None for report in come if report.received_at >= window.start} == {True, False}
    wanted = {key: numbers for key, numbers in expected_hours(come).items() if key[2] >= window.start}
    assert {tuple(row)[:3]: [*tuple(row)[3:11]] for row in stored} == wanted
    assert first == again
    assert first.rows_in == sum(1 for report in come if report.received_at >= window.start)
    assert first.rows_out == len(wanted)
    steps = {row["hour"]: row["messages_ingested"] for row in after if row["endpoint_identity"] == "silent"}
    assert [*steps.values()] == [1, 1]


async def test_a_rerun_after_pruning_changes_nothing(spark: SparkSession, postgres_server: EmbeddedPostgres) -> None:
    """From the edge of what was pruned; rows without deltas would need what came before, and are refused there."""
    reports = told.with_deltas(report for report in many_reports() if report.endpoint.startswith(f"{START:%y%m%d}"))
    edge = START + timedelta(hours=12)
    window = Window(start=edge, end=START + timedelta(hours=40))
    pruned = Window(start=edge + timedelta(days=6), end=edge + timedelta(days=7))
    rows = "SELECT * FROM switchboard.connector_stats_hourly ORDER BY 1, 2, 3"
    async with heartbeat_database(postgres_server, (date(2026, 3, 1), date(2026, 4, 1))) as (dsn, database):
        await database.executemany(INSERT, [report.row() for report in reports])
        first = HOURLY.run(context_of(spark, dsn, window))
        stored = await database.fetch(rows)
        removed = await asyncio.to_thread(PRUNING.run, context_of(spark, dsn, pruned))
        assert removed.rows_in > 50
        assert HOURLY.run(context_of(spark, dsn, window)) == first
        assert await database.fetch(rows) == stored
        await database.execute(f"UPDATE switchboard.connector_heartbeat_log SET {ADDED[0]} = NULL")
        with pytest.raises(ValidationError, match="must not be before 2026-03-30T06:00:00"):
            HOURLY.run(context_of(spark, dsn, window))
        assert await database.fetch(rows) == stored


async def test_a_window_that_would_replace_results_by_less_is_refused(
    spark: SparkSession, postgres_server: EmbeddedPostgres
) -> None:
    async with heartbeat_database(postgres_server, ()) as (dsn, database):
        await database.execute(
            "INSERT INTO pipeline.pruning_log (run_id, job, table_name, rows, before)"
            " VALUES (gen_random_uuid(), 'connector-stats-pruning', 'connector_heartbeat_log', 0, $1)",
            START,
        )
        for start, end in ((START - timedelta(hours=1), START), (START, START + timedelta(minutes=90))):
            with pytest.raises(ValidationError):
                HOURLY.run(context_of(spark, dsn, Window(start=start, end=end)))
