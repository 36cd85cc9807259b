"""Differences between heartbeats one by one: every row is moved to its process and sorted.

All of it is decided in one pass over the rows of a process. No window is partitioned by the life, which would sort
again: lives only ever grow along that order, so the furthest heartbeat so far, by (life, age, place), is the one to
compare with. It is of this life or of an earlier one, and whoever is younger than it within one life is overtaken.
One shuffle, one sort.

    received    age   sent     life   furthest before   what it is
    10:00       60    09:59    0      -                 counts from zero
    10:04       300   10:03    0      60                300 compared with 60
    10:05       180   10:01    0      300               overtaken
    10:09       5     10:08    1      300 of life 0     anew: counts from zero
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, WindowSpec
from pyspark.sql import functions as sf
from pyspark.sql.window import Window as Over

from butlers.pipeline.transforms.hourly_joining import YOUNG_S
from butlers.pipeline.transforms.hourly_stretches import COUNTERS, HOUR_US, PROCESS, STATE_COUNTS


def steps(heartbeats: DataFrame) -> DataFrame:
    """What each heartbeat adds to its hour, counted from 1970; one that is there twice does so once."""
    hour = sf.floor(sf.unix_micros("received_at") / sf.lit(HOUR_US)).alias("hour")
    states = ((sf.col("state") == place).cast("long").alias(name) for place, name in enumerate(STATE_COUNTS))
    counted = sf.lit(1).cast("long").alias("heartbeat_count")
    stepped = _compared(_lived(_beside(heartbeats))).where(~sf.col("twice"))
    return stepped.select("connector_type", "endpoint_identity", hour, *COUNTERS, counted, *states)


def _come() -> WindowSpec:
    return Over.partitionBy(*PROCESS).orderBy("received_at", "id")


def _so_far(last: int) -> WindowSpec:
    return _come().rowsBetween(Over.unboundedPreceding, last)


def _beside(heartbeats: DataFrame) -> DataFrame:
    """Each next to the one before it."""
    come = _come()
    younger = sf.col("uptime_s") < sf.lag("uptime_s").over(come)
    later = sf.col("sent_at") > sf.lag("sent_at").over(come)
    twice = (sf.col("id") == sf.lag("id").over(come)) & (sf.col("received_at") == sf.lag("received_at").over(come))
    return heartbeats.select(
        "*",
        sf.coalesce(younger & later, sf.lit(False)).alias("anew"),
        sf.coalesce(twice, sf.lit(False)).alias("twice"),
        sf.row_number().over(come).alias("place"),
    )


def _lived(beside: DataFrame) -> DataFrame:
    return beside.withColumn("life", sf.sum(sf.col("anew").cast("int")).over(_so_far(0)))


def _compared(lived: DataFrame) -> DataFrame:
    furthest = sf.max(sf.struct("life", "uptime_s", "place", *COUNTERS)).over(_so_far(-1))
    same_life = sf.coalesce(sf.col("furthest.life") == sf.col("life"), sf.lit(False))
    unknown = (sf.col("uptime_s") > YOUNG_S) & ~sf.col("anew")
    compared = lived.withColumn("furthest", furthest)
    return compared.select(
        *("connector_type", "endpoint_identity", "received_at", "state", "twice"),
        *(_grown(name, same_life, unknown).alias(name) for name in COUNTERS),
    )


def _grown(counter: str, same_life: Column, unknown: Column) -> Column:
    now, before = sf.col(counter), sf.col(f"furthest.{counter}")
    overtaken = sf.col("uptime_s") < sf.col("furthest.uptime_s")
    step = now - sf.when(now < before, 0).otherwise(before)
    from_nothing = sf.when(unknown, 0).otherwise(now)
    return sf.when(same_life & overtaken, 0).when(same_life, step).otherwise(from_nothing)
