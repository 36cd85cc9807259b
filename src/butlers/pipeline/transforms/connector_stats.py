"""What connectors did by hour and by day, and where their messages went: sums of what each heartbeat added."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import DecimalType, LongType, StructField, StructType

from butlers.pipeline.job import Window
from butlers.switchboard.connectors.deltas import ADDED, COUNTERS, SECOND, Counts, Lives, Reading, add

if TYPE_CHECKING:
    import pyarrow

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


FANOUT_COLUMNS = ("source_channel", "source_endpoint_identity", "target_butler", "day", "message_count")
_KEY = FANOUT_COLUMNS[:-1]
_OUTCOMES = "array<struct<target_butler: string, skipped: string>>"


def fanout(inbox: DataFrame) -> DataFrame:
    """`connector_fanout_daily` from rows of `message_inbox`."""
    parts = inbox.select(
        "request_id",
        sf.get_json_object("request_context", "$.source_channel").alias("source_channel"),
        sf.get_json_object("request_context", "$.source_endpoint_identity").alias("source_endpoint_identity"),
        sf.to_date("received_at").alias("day"),
        sf.explode(_outcomes(sf.col("dispatch_outcomes"))).alias("outcome"),
    )
    got = parts.where(sf.col("outcome.skipped").isNull())
    named = got.withColumn("target_butler", sf.col("outcome.target_butler")).dropna(subset=list(_KEY))
    return named.groupBy(*_KEY).agg(sf.countDistinct("request_id").alias("message_count")).select(*FANOUT_COLUMNS)


def _outcomes(text: Column) -> Column:
    """Only of a list: Spark would take a lone object for a list of one."""
    return sf.when(text.startswith("["), sf.from_json(text, _OUTCOMES))


PROCESS = ("connector_type", "endpoint_identity", "instance_id")
COMPARED_COLUMNS = (*PROCESS, "id", "uptime_s", *COUNTERS, "received_at", "sent_at")
Row = tuple[Any, ...]  # of COMPARED_COLUMNS


def with_deltas(heartbeats: DataFrame) -> DataFrame:
    """The same heartbeats in any order, each once, with what each added; columns that are no part of it stay."""
    remaining = heartbeats.drop(*ADDED)
    ordered = remaining.repartition(*PROCESS).sortWithinPartitions(*PROCESS, "received_at", "id")
    return ordered.mapInArrow(
        _compare, StructType([*remaining.schema, *(StructField(name, LongType()) for name in ADDED)])
    )


def _compare(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
    import pyarrow  # noqa: PLC0415 - on executors only

    state = _State()
    for batch in batches:
        added = [state.add(row) for row in _rows(batch)]
        columns = zip(*(counts or (None,) * len(ADDED) for counts in added), strict=True)
        arrays = [pyarrow.array(column, pyarrow.int64()) for column in columns]
        whole = pyarrow.RecordBatch.from_arrays([*batch.columns, *arrays], names=[*batch.schema.names, *ADDED])
        yield whole.filter(pyarrow.array([counts is not None for counts in added]))


def _rows(batch: pyarrow.RecordBatch) -> Iterator[Row]:
    moments = ("received_at", "sent_at")
    columns = [batch.column(name).cast("int64") if name in moments else batch.column(name) for name in COMPARED_COLUMNS]
    return zip(*(column.to_pylist() for column in columns), strict=True)


class _State:
    """Where a pass over ordered rows has come to."""

    def __init__(self) -> None:
        self._process: Row = ()
        self._last: Row = ()
        self._lives: Lives = ()

    def add(self, row: Row) -> Counts | None:
        """What a row added; None: it is the same row once more."""
        process, (ident, uptime_s, *counts, received, sent) = row[: len(PROCESS)], row[len(PROCESS) :]
        if process != self._process:
            self._process, self._lives = process, ()
        elif (ident, received) == self._last:
            return None
        self._last = (ident, received)
        reading = Reading(uptime=round(uptime_s * SECOND), sent=sent, received=received, counts=tuple(counts))
        self._lives, added = add(self._lives, reading)
        return added
