"""What connectors did, day by day: hours summed by the day in UTC, whatever the clocks of people do that day."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import DecimalType

from butlers.pipeline.transforms.hourly import STATES, capped_sum
from butlers.switchboard.connectors.deltas import COUNTERS

DAILY_COLUMNS = ("connector_type", "endpoint_identity", "day", *COUNTERS, "heartbeat_count", *STATES, "uptime_pct")
_COUNTS = ("heartbeat_count", *STATES)
_EXACT = DecimalType(19, 0)


def daily(hours: DataFrame) -> DataFrame:
    """`connector_stats_daily` from rows of `connector_stats_hourly`."""
    day = sf.to_date("hour").alias("day")
    return (
        hours.groupBy("connector_type", "endpoint_identity", day)
        .agg(
            *(capped_sum(name).alias(name) for name in COUNTERS),
            *(sf.sum(name).alias(name) for name in _COUNTS),
        )
        .withColumn("uptime_pct", _percent(sf.col("healthy_count"), sf.col("heartbeat_count")))
        .select(*DAILY_COLUMNS)
    )


def _percent(part: Column, whole: Column) -> Column:
    """Two decimals, halves away from zero as PostgreSQL rounds; in whole numbers, so that a half is a half."""
    hundredths = sf.floor((part * 20_000 + whole).cast(_EXACT) / (whole * 2).cast(_EXACT))
    return sf.when(whole > 0, (hundredths.cast("decimal(7,0)") / 100).cast(DecimalType(5, 2)))
