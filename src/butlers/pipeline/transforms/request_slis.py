"""How well Switchboard took messages in and brought them to their end in a window (seed 003, "SLO/SLI").

    accept_latency       from a message's arrival to the durable accept, over counts by the minute
    completion_latency   from the accept to the end of the request, the whole fanout included
    interactive_latency  from PROGRESS to PARSED or ERRORED, where somebody waits
    route_success        dispatches to butlers that succeeded / dispatches

What counts is as in switchboard/service_levels/queries.sql.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from butlers.channels.registry import reacting_names
from butlers.contracts.request_state import ENDED, OPEN
from butlers.pipeline.transforms.expressions import everything, named, whole_minutes, within
from butlers.pipeline.transforms.percentiles import SHARES, covering, interpolated
from butlers.pipeline.transforms.sli_rows import counts_text, sli_rows
from butlers.pipeline.windows import Window

_COMPLETION_COUNTS = ("open", "parsed", "errored", "shed", "decided_by_a_person")
_KEY = ("dimensions",)


def accept_latency(accept_times: DataFrame, window: Window) -> DataFrame:
    times = accept_times.where(within("minute", whole_minutes(window))).withColumn(
        "dimensions", named("source_channel")
    )
    counted = times.groupBy(*_KEY).agg(sf.sum("messages").alias("events"))
    return _timed(counted, covering(times, _KEY, "accept_ms", SHARES, times="messages"), "accept_latency")


def completion_latency(requests: DataFrame, window: Window) -> DataFrame:
    """What was shed at the door, and what a person decided about, is counted apart and in no percentile."""
    decided, state = sf.col("override").isNotNull(), sf.col("lifecycle_state")
    shed = ~decided & sf.col("progress_at").isNull() & sf.col("final_state_at").isNotNull()
    measured = sf.when(~decided & sf.col("progress_at").isNotNull(), _took_ms("received_at", "final_state_at"))
    came = requests.where(within("received_at", window)).select(
        named("source_channel", "policy_tier").alias("dimensions"),
        state.isin(*OPEN).alias("open"),
        ((state == "parsed") & ~decided).alias("parsed"),
        ((state == "errored") & ~decided & ~shed).alias("errored"),
        shed.alias("shed"),
        (decided & state.isin(*ENDED)).alias("decided_by_a_person"),
        measured.alias("took_ms"),
    )
    counted = came.groupBy(*_KEY).agg(
        sf.count("*").alias("events"), *(sf.count_if(name).alias(name) for name in _COMPLETION_COUNTS)
    )
    times = interpolated(came, _KEY, "took_ms", SHARES)
    return _timed(counted, times, "completion_latency", counts_text(*_COMPLETION_COUNTS))


def interactive_latency(requests: DataFrame, window: Window) -> DataFrame:
    waits = sf.col("source_channel").isin(*reacting_names()) | (sf.col("policy_tier") == "interactive")
    ended = sf.col("final_state_at").isNotNull() & sf.col("progress_at").isNotNull() & sf.col("override").isNull()
    took = requests.where(within("received_at", window) & waits & ended).select(
        named("source_channel", "lifecycle_state").alias("dimensions"),
        _took_ms("progress_at", "final_state_at").alias("took_ms"),
    )
    counted = took.groupBy(*_KEY).agg(sf.count("*").alias("events"))
    return _timed(counted, interpolated(took, _KEY, "took_ms", SHARES), "interactive_latency")


def route_success(routes: DataFrame, window: Window) -> DataFrame:
    """Per butler, with the classes of what failed, and in all."""
    made = routes.where(within("created_at", window))
    errors = (
        made.where(~sf.col("success"))
        .groupBy("target_butler", sf.coalesce(sf.col("error_class"), sf.lit("unknown")).alias("error_class"))
        .agg(sf.count("*").alias("routes"))
        .groupBy("target_butler")
        .agg(sf.map_from_entries(sf.sort_array(sf.collect_list(sf.struct("error_class", "routes")))).alias("errors"))
    )
    counts = (sf.count("*").alias("routes"), sf.count_if("success").alias("succeeded"))
    per_butler = made.groupBy("target_butler").agg(*counts).join(errors, ["target_butler"], how="left")
    return _routes(per_butler, named("target_butler"), sf.coalesce(sf.to_json("errors"), sf.lit("{}"))).unionByName(
        _routes(made.agg(*counts), everything(), everything())
    )


def _routes(counted: DataFrame, dimensions: Column, errors: Column) -> DataFrame:
    return sli_rows(
        counted,
        "route_success",
        dimensions=dimensions,
        events=sf.col("routes"),
        part=sf.col("succeeded"),
        counts=errors,
    )


def _took_ms(start: str, end: str) -> Column:
    """By way of seconds, as Switchboard's queries do it: the last bit depends on the way."""
    return (sf.unix_micros(end) - sf.unix_micros(start)) / sf.lit(1e6) * sf.lit(1e3)


def _timed(counted: DataFrame, times: DataFrame, name: str, counts: Column | None = None) -> DataFrame:
    joined = counted.join(times, [*_KEY], how="left")
    return sli_rows(joined, name, dimensions=sf.col("dimensions"), events=sf.col("events"), counts=counts, timed=True)
