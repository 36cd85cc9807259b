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

To look at neighbours, Spark moves and sorts every row, which costs many times a plain sum. So (decision 0069):

    heartbeats -- each task folds its rows where they lie --> stretches     some rows for each process and task
    stretches  -- put in order, as single heartbeats are ---> hours         of processes whose stretches fit together
    heartbeats of the others, one by one -------------------> hours         most often nobody's: then they are not read

The result is the same for every way in which the rows lie; how much of it costs little is not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import from_arrow_schema

from butlers.pipeline.transforms.hourly_steps import (
    OF_STRETCHES,
    ONE_BY_ONE,
    SUMS,
    YOUNG_S,
    of_heartbeats,
    of_stretches,
    steps,
)
from butlers.pipeline.transforms.hourly_stretches import COUNTERS, MOST_ROWS, PROCESS, folded, stretch_schema
from butlers.pipeline.windows import Window

if TYPE_CHECKING:
    import pyarrow

__all__ = ["COUNTERS", "HEARTBEAT_COLUMNS", "HOURLY_COLUMNS", "MOST", "STATES", "YOUNG_S", "capped_sum", "hourly"]

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
HOURLY_COLUMNS = ("connector_type", "endpoint_identity", "hour", *SUMS)
MOST = 9_223_372_036_854_775_807


def hourly(heartbeats: DataFrame, window: Window) -> DataFrame:
    """`connector_stats_hourly` of a window of whole hours, from the heartbeats within it and those before it."""
    return joined(stretches(heartbeats), heartbeats, window)


def one_by_one(heartbeats: DataFrame, window: Window) -> DataFrame:
    """The same without stretches: every row is moved and sorted."""
    return _summed(of_heartbeats(steps(_numbered(heartbeats), ONE_BY_ONE)), window)


def stretches(heartbeats: DataFrame) -> DataFrame:
    """Heartbeats folded by the tasks that read them. Of an id it is only asked whether it is the same."""
    short = _numbered(heartbeats).withColumn("id", sf.xxhash64("id"))
    return short.mapInArrow(_fold, from_arrow_schema(stretch_schema()))


def joined(stretches: DataFrame, heartbeats: DataFrame, window: Window) -> DataFrame:
    """Hours from stretches, and from the heartbeats of processes whose stretches do not fit together."""
    told = steps(stretches, OF_STRETCHES)
    troubled = told.where("troubled").select(*PROCESS).distinct()
    again = _numbered(heartbeats).join(sf.broadcast(troubled), list(PROCESS), how="left_semi")
    parts = of_stretches(told.where(~sf.col("troubled"))).unionByName(of_heartbeats(steps(again, ONE_BY_ONE)))
    return _summed(parts, window)


def _numbered(heartbeats: DataFrame) -> DataFrame:
    """What is needed, with the state as a place in the list of states."""
    state = sf.lit(-1)
    for place, name in enumerate(STATES.values()):
        state = sf.when(sf.col("state") == name, place).otherwise(state)
    return heartbeats.select(*HEARTBEAT_COLUMNS).withColumn("state", state.cast("long"))


def _fold(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
    """The rows of a task, so many at a time that they fit into its memory."""
    import pyarrow  # noqa: PLC0415 - on executors only

    held: list[pyarrow.RecordBatch] = []
    for batch in batches:
        held.append(batch)
        if sum(one.num_rows for one in held) >= MOST_ROWS:
            yield from folded(pyarrow.Table.from_batches(held)).to_batches()
            held = []
    if held:
        yield from folded(pyarrow.Table.from_batches(held)).to_batches()


def _summed(parts: DataFrame, window: Window) -> DataFrame:
    hour = sf.timestamp_seconds(sf.col("hour") * 3600)
    return (
        parts.groupBy("connector_type", "endpoint_identity", hour.alias("hour"))
        .agg(*(capped_sum(name).alias(name) for name in SUMS))
        .where(sf.col("hour") >= sf.lit(window.start))
        .select(*HOURLY_COLUMNS)
    )


def capped_sum(counter: str) -> Column:
    """A sum may be larger than any of its parts: what cannot be stored must not stop the others."""
    return sf.coalesce(sf.try_sum(counter), sf.lit(MOST))
