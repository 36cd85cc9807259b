"""Column expressions and exact percentiles that several outputs share.

    values -> how often each occurs -> running count in order of value -> the one or two values around the wanted place

Counting first lets Spark combine before it shuffles, and the running count is a sort that goes to disk when it must: no
group is ever held in memory, as it would be by collecting it. The arithmetic of percentiles is PostgreSQL's, step by
step, so what a service answers online and what is found here agree to the last bit:

    interpolated   percentile_cont: between the neighbours of the place `share * (n - 1)`
    covering       percentile_disc: the least value that covers the share
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import Window as Over
from pyspark.sql import functions as sf

from butlers.pipeline.job import Window

_PER_MS = 1000.0


def within(moment: str, window: Window) -> Column:
    return (sf.col(moment) >= sf.lit(window.start)) & (sf.col(moment) < sf.lit(window.end))


def whole_minutes(window: Window) -> Window:
    """For what is counted by the minute: from the minute that the window begins in."""
    return replace(window, start=window.start.replace(second=0, microsecond=0))


def elapsed_ms(start: str, end: str) -> Column:
    """Milliseconds with microseconds behind the point; unknown when either moment is."""
    return (sf.unix_micros(end) - sf.unix_micros(start)) / sf.lit(_PER_MS)


def hour_text(moment: str) -> Column:
    """2026-03-01T12:00:00Z; sessions are in UTC."""
    return sf.date_format(sf.date_trunc("hour", sf.col(moment)), "yyyy-MM-dd'T'HH:00:00'Z'")


def rate(part: Column, whole: Column) -> Column:
    """Of nothing it is unknown."""
    return sf.when(whole > 0, part / whole)


def named(*columns: str, **expressions: Column) -> Column:
    """The values of a group as one JSON text, in the order given; unknown is null and not left out."""
    fields = [sf.col(name) for name in columns] + [value.alias(name) for name, value in expressions.items()]
    return sf.to_json(sf.struct(*fields), {"ignoreNullFields": "false"}) if fields else everything()


def everything() -> Column:
    """The name of the group of all."""
    return sf.lit("{}")


SHARES: Final[Mapping[str, float]] = {"p50_ms": 0.50, "p95_ms": 0.95, "p99_ms": 0.99}

_EXACT_COUNT = "double"  # whole numbers up to 2 to the 53rd


def interpolated(frame: DataFrame, keys: tuple[str, ...], value: str, shares: Mapping[str, float]) -> DataFrame:
    """One row per group with a column per share; nulls are no values, and a group without values has no row."""
    ranked = _ranked(frame, keys, value, sf.lit(1))
    bounds = [
        bound
        for name, share in shares.items()
        for bound in (
            _first_at(sf.floor(_place(share)) + 1).alias(f"{name}_low"),
            _first_at(sf.ceil(_place(share)) + 1).alias(f"{name}_high"),
        )
    ]
    around = ranked.groupBy(*keys).agg(sf.max("_total").alias("_total"), *bounds)
    return around.select(*keys, *(_between(name, share).alias(name) for name, share in shares.items()))


def covering(
    frame: DataFrame, keys: tuple[str, ...], value: str, shares: Mapping[str, float], *, times: str
) -> DataFrame:
    """The same over values that are counted already: `times` says how often each occurred."""
    ranked = _ranked(frame, keys, value, sf.col(times))
    found = [_first_at(share * sf.col("_total")).cast("double").alias(name) for name, share in shares.items()]
    return ranked.groupBy(*keys).agg(*found)


def _ranked(frame: DataFrame, keys: tuple[str, ...], value: str, times: Column) -> DataFrame:
    """Every value that occurs, with how many are not greater (`_up_to`) and how many there are (`_total`)."""
    values = frame.where(sf.col(value).isNotNull()).select(*keys, sf.col(value).alias("_value"), times.alias("_times"))
    counted = values.groupBy(*keys, "_value").agg(sf.sum("_times").alias("_times"))
    group = Over.partitionBy(*keys)
    return counted.select(
        *keys,
        "_value",
        sf.sum("_times").over(group.orderBy("_value").rowsBetween(Over.unboundedPreceding, 0)).alias("_up_to"),
        sf.sum("_times").over(group).alias("_total"),
    )


def _first_at(rank: Column) -> Column:
    """The least value that at least `rank` values do not exceed."""
    return sf.min(sf.when(sf.col("_up_to") >= rank, sf.col("_value")))


def _place(share: float) -> Column:
    """Counted from zero."""
    return sf.lit(share) * (sf.col("_total") - 1).cast(_EXACT_COUNT)


def _between(name: str, share: float) -> Column:
    low, high = sf.col(f"{name}_low").cast("double"), sf.col(f"{name}_high").cast("double")
    return low + (_place(share) - sf.floor(_place(share))) * (high - low)
