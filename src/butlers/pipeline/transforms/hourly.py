"""What connectors did, hour by hour: sums of what each heartbeat added, which its row carries since the intake."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from butlers.pipeline.windows import Window
from butlers.switchboard.connectors.deltas import ADDED, COUNTERS

ENDPOINT = ("connector_type", "endpoint_identity")
STATES: Mapping[str, str] = {"healthy_count": "healthy", "degraded_count": "degraded", "error_count": "error"}
DELTA_COLUMNS = (*ENDPOINT, "state", "received_at", *ADDED)
HOURLY_COLUMNS = (*ENDPOINT, "hour", *COUNTERS, "heartbeat_count", *STATES)
MOST = 9_223_372_036_854_775_807
_HOUR_S = 3600


def hourly(heartbeats: DataFrame, window: Window) -> DataFrame:
    """`connector_stats_hourly` of a window of whole hours, from rows that carry what they added."""
    received = sf.col("received_at")
    inside = (received >= sf.lit(window.start)) & (received < sf.lit(window.end))
    # By number: the hour of a moment depends on the zone of the session, and the number of hours since 1970 does not.
    number = sf.floor(sf.unix_seconds(received) / sf.lit(_HOUR_S)).alias("hour")
    sums = (
        heartbeats.where(inside)
        .groupBy(*ENDPOINT, number)
        .agg(
            *(capped_sum(added).alias(name) for name, added in zip(COUNTERS, ADDED, strict=True)),
            sf.count(sf.lit(1)).alias("heartbeat_count"),
            *(sf.count_if(sf.col("state") == state).alias(name) for name, state in STATES.items()),
        )
    )
    return sums.withColumn("hour", sf.timestamp_seconds(sf.col("hour") * _HOUR_S)).select(*HOURLY_COLUMNS)


def capped_sum(counter: str) -> Column:
    """A sum may be larger than any of its parts: what cannot be stored must not stop the others."""
    return sf.coalesce(sf.try_sum(counter), sf.lit(MOST))
