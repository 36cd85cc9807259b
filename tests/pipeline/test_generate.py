"""Made-up fleets: the same for the same seed, with everything in them that goes wrong in real ones."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from uuid import UUID

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.window import Window as Over

from butlers.errors import ValidationError
from butlers.pipeline.generate import FleetPlan, heartbeats, write_database, write_lake
from butlers.pipeline.lake.events import HEARTBEATS
from butlers.pipeline.lake.reading import read_versions
from butlers.storage.embedded import EmbeddedPostgres
from butlers.switchboard.connectors.deltas import ADDED
from tests.pipeline.heartbeats import heartbeat_database

PLAN = FleetPlan(connectors=40, start=date(2026, 3, 28), days=2, seed=9)


@pytest.mark.heavy
def test_heartbeats_have_all_that_goes_wrong_and_come_again(spark: SparkSession, tmp_path: Path) -> None:
    told: list[tuple[date, int]] = []
    rows = write_lake(spark, PLAN, tmp_path, tell=lambda day, count: told.append((day, count)))
    lake = read_versions(spark, tmp_path, HEARTBEATS).cache()
    assert [day for day, _ in told] == PLAN.dates
    assert sum(count for _, count in told) == rows == lake.count()
    assert 0.5 < rows / PLAN.about_rows < 2

    made = heartbeats(spark, PLAN, PLAN.dates[0]).unionByName(heartbeats(spark, PLAN, PLAN.dates[1]))
    stored = made.drop("error_message")
    assert _print(lake.select(*stored.columns)) == _print(stored)
    assert lake.where(sf.col(ADDED[0]).isNull()).isEmpty()
    other = FleetPlan(connectors=40, start=PLAN.start, days=2, seed=10)
    assert _print(heartbeats(spark, other, PLAN.start)) != _print(heartbeats(spark, PLAN, PLAN.start))
    found = _misfortunes(made).asDict()
    assert all(count > 0 for count in found.values()), found
    with pytest.raises(ValidationError):
        write_lake(spark, PLAN, tmp_path, tell=lambda *_: None)


def _print(frame: DataFrame) -> tuple[int, ...]:
    """Of rows in any order."""
    hashed = sf.xxhash64(*sorted(frame.columns)).cast("decimal(38,0)")
    return tuple(frame.agg(sf.count("*"), sf.sum(hashed)).first() or ())


def _misfortunes(made: DataFrame):
    """How often each of them befell the fleet."""
    process = Over.partitionBy("connector_type", "endpoint_identity", "instance_id").orderBy("received_at", "id")
    before = {name: sf.lag(name).over(process) for name in ("uptime_s", "sent_at", "source_api_calls")}
    younger = sf.col("uptime_s") < before["uptime_s"]
    later = sf.col("sent_at") > before["sent_at"]
    fell = sf.col("source_api_calls") < before["source_api_calls"]
    off_by_s = sf.abs(sf.unix_micros("sent_at") - sf.unix_micros("received_at")) / 1e6
    flagged = made.select(
        ((sf.col("uptime_s") == before["uptime_s"]) & (sf.col("sent_at") == before["sent_at"])).alias("twice"),
        (younger & later).alias("anew"),
        (younger & ~later).alias("overtaken"),
        (fell & ~younger).alias("reset"),
        (off_by_s > 1800).alias("wrong_clock"),
        (off_by_s.between(60, 1799)).alias("late"),
        (sf.col("received_at") >= sf.lit(datetime(2026, 3, 30, tzinfo=UTC))).alias("next_day"),
        (sf.col("state") == "error").alias("error"),
    )
    row = flagged.agg(*(sf.count_if(name).alias(name) for name in flagged.columns)).first()
    assert row is not None
    return row


async def test_generated_heartbeats_in_the_database(spark: SparkSession, postgres_server: EmbeddedPostgres) -> None:
    plan = FleetPlan(connectors=3, start=date(2026, 2, 28), days=1, seed=1)
    async with heartbeat_database(postgres_server, ()) as (dsn, database):
        for _ in range(2):  # a second time changes nothing
            rows = write_database(spark, plan, dsn, run_id=UUID(int=1), tell=lambda *_: None)
            stored = "SELECT count(*), count(DISTINCT id), max(received_at) FROM switchboard.connector_heartbeat_log"
            count, ids, newest = tuple(await database.fetchrow(stored) or ())
            assert rows == count == ids > 1000
            assert newest < datetime(2026, 3, 1, tzinfo=UTC) + timedelta(hours=1)
