"""Two ways on Spark, over the same files: the rollup, and the least that any rollup has to do."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from butlers.pipeline.generate import FleetPlan
from butlers.pipeline.job import Window
from butlers.pipeline.lake.events import HEARTBEATS
from butlers.pipeline.lake.reading import read_versions
from butlers.pipeline.transforms.connector_stats import STATES, hourly
from butlers.switchboard.connectors.deltas import COUNTERS


def window_of(plan: FleetPlan) -> Window:
    """All days of a fleet, and the one on which its last heartbeats arrive."""
    start = datetime.combine(plan.start, time(), UTC)
    return Window(start=start, end=start + timedelta(days=plan.days + 1))


def roll_up(spark: SparkSession, lake: Path, plan: FleetPlan) -> DataFrame:
    return hourly(read_versions(spark, lake, HEARTBEATS, window_of(plan)), window_of(plan))


def scan_and_group(spark: SparkSession, lake: Path) -> DataFrame:
    """The same files, the same groups and the same number of sums, of the counters as they are."""
    hour = sf.date_trunc("hour", "received_at").alias("hour")
    groups = read_versions(spark, lake, HEARTBEATS).groupBy("connector_type", "endpoint_identity", hour)
    return groups.agg(
        *(sf.sum(name).alias(name) for name in COUNTERS),
        sf.count("*").alias("heartbeat_count"),
        *(sf.count_if(sf.col("state") == state).alias(name) for name, state in STATES.items()),
    )


def carry_out(frame: DataFrame) -> None:
    """All rows made, none kept."""
    frame.write.format("noop").mode("overwrite").save()


def totals(frame: DataFrame) -> tuple[int, ...]:
    """What the rows add up to: for comparing ways, not rows."""
    names = (*COUNTERS, "heartbeat_count", *STATES)
    row = frame.agg(sf.count("*"), *(sf.sum(name) for name in names)).first()
    return tuple(int(value) for value in row or ())
