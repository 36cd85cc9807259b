"""What heartbeats add to what came before them, for heartbeats one by one and for stretches of them alike.

All of it is decided in one pass over a process, in the order in which its heartbeats came. No window is partitioned by
the life, which would sort again: lives only ever grow along that order, so the furthest heartbeat so far, by (life,
age, place), is the one to compare with. It is of this life or of an earlier one, and whoever is younger than it within
one life is overtaken. One shuffle, one sort.

    received    age   sent     life   furthest before   what it is
    10:00       60    09:59    0      -                 counts from zero
    10:04       300   10:03    0      60                300 compared with 60
    10:05       180   10:01    0      300               overtaken
    10:09       5     10:08    1      300 of life 0     anew: counts from zero

A stretch is compared by its first heartbeat and handed on by its last and its furthest one. That is right as long as
nothing comes between its heartbeats and its first one is not overtaken; otherwise its process is `troubled`.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, WindowSpec
from pyspark.sql import functions as sf
from pyspark.sql.window import Window as Over

from butlers.pipeline.transforms.hourly_stretches import COUNTERS, FURTHEST, PROCESS, STATE_COUNTS

# What came before the first heartbeat of a younger process cannot have been pruned: there was nothing.
YOUNG_S = 12 * 3600.0
SUMS = (*COUNTERS, "heartbeat_count", *STATE_COUNTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """The columns that tell where a row leaves its process: with one heartbeat to a row, that heartbeat's own."""

    received_at: str = "received_at"
    sent_at: str = "sent_at"
    uptime_s: str = "uptime_s"
    furthest_uptime_s: str = "uptime_s"
    furthest: tuple[str, ...] = COUNTERS
    lives: str = "0"  # how many began within, as an expression


ONE_BY_ONE = Ends()
OF_STRETCHES = Ends(
    received_at="last_received_at",
    sent_at="last_sent_at",
    uptime_s="last_uptime_s",
    furthest_uptime_s="furthest_uptime_s",
    furthest=FURTHEST,
    lives="lives",
)


def steps(rows: DataFrame, ends: Ends) -> DataFrame:
    """Every row, with what the counters of its first heartbeat grew by; without those that are there twice."""
    return _compared(_lived(_beside(rows, ends), ends), ends).where(~sf.col("twice"))


def of_heartbeats(stepped: DataFrame) -> DataFrame:
    """What single heartbeats add to their hours."""
    return stepped.select("connector_type", "endpoint_identity", *_told())


def of_stretches(stepped: DataFrame) -> DataFrame:
    """What stretches add to their hours: their first heartbeat, and the sums of the others."""
    every = sf.concat(sf.array(sf.struct(*_told())), sf.col("hours"))
    return stepped.select("connector_type", "endpoint_identity", sf.inline(every))


def _come() -> WindowSpec:
    return Over.partitionBy(*PROCESS).orderBy("received_at", "id")


def _so_far(last: int) -> WindowSpec:
    return _come().rowsBetween(Over.unboundedPreceding, last)


def _beside(rows: DataFrame, ends: Ends) -> DataFrame:
    """Each next to the one before it."""
    come = _come()
    younger = sf.col("uptime_s") < sf.lag(ends.uptime_s).over(come)
    later = sf.col("sent_at") > sf.lag(ends.sent_at).over(come)
    left_at = sf.lag(ends.received_at).over(come)
    twice = (sf.col("id") == sf.lag("id").over(come)) & (sf.col("received_at") == left_at) & ~_is_body(ends)
    twice &= sf.col("received_at") == sf.lag("received_at").over(come)  # the one before is a single one too
    return rows.select(
        "*",
        sf.coalesce(younger & later, sf.lit(False)).alias("anew"),
        sf.coalesce(twice, sf.lit(False)).alias("twice"),
        sf.coalesce(sf.col("received_at") <= left_at, sf.lit(False)).alias("too_early"),
        sf.row_number().over(come).alias("place"),
    )


def _is_body(ends: Ends) -> Column:
    return sf.col("received_at") != sf.col(ends.received_at)


def _lived(beside: DataFrame, ends: Ends) -> DataFrame:
    began = sf.sum(sf.col("anew").cast("int")).over(_so_far(0))
    within = sf.coalesce(sf.sum(sf.expr(ends.lives)).over(_so_far(-1)), sf.lit(0))
    return beside.withColumn("life", began if ends is ONE_BY_ONE else began + within)


def _compared(lived: DataFrame, ends: Ends) -> DataFrame:
    """With the furthest one before it. `troubled` is the process that cannot be told from its stretches."""
    life = sf.col("life") + sf.expr(ends.lives)
    counters = (sf.col(there).alias(name) for there, name in zip(ends.furthest, COUNTERS, strict=True))
    reached = sf.struct(life.alias("life"), sf.col(ends.furthest_uptime_s).alias("uptime_s"), "place", *counters)
    compared = lived.withColumn("furthest", sf.max(reached).over(_so_far(-1)))
    same_life = sf.coalesce(sf.col("furthest.life") == sf.col("life"), sf.lit(False))
    overtaken = same_life & (sf.col("uptime_s") < sf.col("furthest.uptime_s"))
    unknown = (sf.col("uptime_s") > YOUNG_S) & ~sf.col("anew")
    return compared.select(
        *(*PROCESS, "received_at", "state", "twice"),
        *(_grown(name, same_life, overtaken, unknown).alias(name) for name in COUNTERS),
        *(() if ends is ONE_BY_ONE else ("hours", _troubled(overtaken, ends).alias("troubled"))),
    )


def _troubled(overtaken: Column, ends: Ends) -> Column:
    in_between = sf.col("too_early") & ~sf.col("twice")
    trouble = in_between | sf.col("tied") | (overtaken & _is_body(ends))
    return sf.max(trouble).over(Over.partitionBy(*PROCESS))


def _grown(counter: str, same_life: Column, overtaken: Column, unknown: Column) -> Column:
    now, before = sf.col(counter), sf.col(f"furthest.{counter}")
    step = now - sf.when(now < before, 0).otherwise(before)
    from_nothing = sf.when(unknown, 0).otherwise(now)
    return sf.when(overtaken, 0).when(same_life, step).otherwise(from_nothing)


def _told() -> tuple[Column, ...]:
    """A heartbeat as a part of its hour; the hour is counted from 1970."""
    hour = sf.floor(sf.unix_micros("received_at") / sf.lit(3_600_000_000)).alias("hour")
    states = ((sf.col("state") == place).cast("long").alias(name) for place, name in enumerate(STATE_COUNTS))
    return (hour, *map(sf.col, COUNTERS), sf.lit(1).cast("long").alias("heartbeat_count"), *states)
