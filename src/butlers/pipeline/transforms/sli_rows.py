"""The one shape that every service level indicator has.

sli         its name
dimensions  what it is about, as JSON: {"channel":"telegram","identity_scope":"bot"}; {}: in all
events      what was counted
part        those of them that the rate speaks of; unknown where there is no rate
rate        part / events; of nothing it is unknown
p50_ms ...  where times were measured
counts      what else was counted, as JSON
"""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from butlers.pipeline.transforms.expressions import everything, rate
from butlers.pipeline.transforms.percentiles import SHARES


def sli_rows(
    frame: DataFrame,
    name: str,
    *,
    dimensions: Column,
    events: Column,
    part: Column | None = None,
    counts: Column | None = None,
    timed: bool = False,  # the frame has the percentiles
) -> DataFrame:
    return frame.select(
        sf.lit(name).alias("sli"),
        dimensions.alias("dimensions"),
        events.cast("long").alias("events"),
        (part if part is not None else sf.lit(None)).cast("long").alias("part"),
        (rate(part, events) if part is not None else sf.lit(None)).cast("double").alias("rate"),
        *(sf.col(share) if timed else sf.lit(None).cast("double").alias(share) for share in SHARES),
        (counts if counts is not None else everything()).alias("counts"),
    )


def counts_text(*columns: str) -> Column:
    return sf.to_json(sf.struct(*columns))


def together(frames: list[DataFrame]) -> DataFrame:
    return reduce(DataFrame.unionByName, frames)
