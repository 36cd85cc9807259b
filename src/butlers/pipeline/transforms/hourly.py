"""What connectors did, hour by hour: differences between consecutive heartbeats.

A heartbeat carries counters since its process started. What happened between two heartbeats of a process is their
difference, and it belongs to the hour in which the later one came. In the order in which they came (`received_at`,
`id`):

    restart        another instance_id: its first heartbeat counts from zero
    counter reset  a smaller number than before counts from zero
    anew           the same instance_id, younger than the one before although sent later: a new life, from zero
    overtaken      younger than one of its life that came earlier: it says nothing new, only that the connector lived
    unknown        the first heartbeat of a process that is old: what it did before is not this window's business
    twice          the same row again (`received_at` and `id`): it counts once

All of it is decided in one pass over the rows of a process (`hourly_steps`). To look at neighbours, Spark moves and
sorts every row, which costs many times a plain sum. Rows that lie in files need not be moved: see `hourly_files`.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from butlers.pipeline.transforms.hourly_joining import SUMS, YOUNG_S
from butlers.pipeline.transforms.hourly_steps import steps
from butlers.pipeline.transforms.hourly_stretches import COUNTERS, ENDPOINT
from butlers.pipeline.windows import Window

__all__ = [
    "COUNTERS",
    "HEARTBEAT_COLUMNS",
    "HOURLY_COLUMNS",
    "MOST",
    "STATES",
    "YOUNG_S",
    "capped_sum",
    "hourly",
    "numbered",
    "summed",
    "within",
]

STATES: Mapping[str, str] = {"healthy_count": "healthy", "degraded_count": "degraded", "error_count": "error"}
HEARTBEAT_COLUMNS = (
    "id",
    "connector_type",
    "endpoint_identity",
    "instance_id",
    "state",
    "uptime_s",
    *COUNTERS,
    "received_at",
    "sent_at",
)
HOURLY_COLUMNS = (*ENDPOINT, "hour", *SUMS)
MOST = 9_223_372_036_854_775_807


def hourly(heartbeats: DataFrame, window: Window) -> DataFrame:
    """`connector_stats_hourly` of a window of whole hours, from the heartbeats within it and those before it."""
    return summed(steps(numbered(heartbeats)), window)


def numbered(heartbeats: DataFrame) -> DataFrame:
    """What is needed, with the state as a place in the list of states."""
    state = sf.lit(-1)
    for place, name in enumerate(STATES.values()):
        state = sf.when(sf.col("state") == name, place).otherwise(state)
    return heartbeats.select(*HEARTBEAT_COLUMNS).withColumn("state", state.cast("long"))


def summed(parts: DataFrame, window: Window) -> DataFrame:
    """Hours from what their heartbeats add to them."""
    sums = (capped_sum(name).alias(name) for name in SUMS)
    return within(parts.groupBy(*ENDPOINT, "hour").agg(*sums), window)


def within(hours: DataFrame, window: Window) -> DataFrame:
    """The hours of a window, as moments."""
    hour = sf.timestamp_seconds(sf.col("hour") * 3600)
    moments = hours.withColumn("hour", hour)
    inside = (sf.col("hour") >= sf.lit(window.start)) & (sf.col("hour") < sf.lit(window.end))
    return moments.where(inside).select(*HOURLY_COLUMNS)


def capped_sum(counter: str) -> Column:
    """A sum may be larger than any of its parts: what cannot be stored must not stop the others."""
    return sf.coalesce(sf.try_sum(counter), sf.lit(MOST))
