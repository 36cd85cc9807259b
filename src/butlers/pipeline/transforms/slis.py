"""The service level indicators of a window, each as rows of one shape (seeds 001 and 003)."""

from __future__ import annotations

from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import Window as Over
from pyspark.sql import functions as sf

from butlers.channels.registry import reacting_names
from butlers.contracts.delivery_state import FINISHED, GIVEN_UP, DeliveryState
from butlers.contracts.request_state import ENDED, OPEN
from butlers.pipeline.job import Window
from butlers.pipeline.transforms.expressions import (
    SHARES,
    covering,
    elapsed_ms,
    everything,
    interpolated,
    named,
    rate,
    whole_minutes,
    within,
)


def sli_rows(
    frame: DataFrame,
    name: str,
    dimensions: Column,
    events: Column,
    part: Column | None = None,
    *,
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


ENDINGS: Final = (*FINISHED, DeliveryState.UNCERTAIN)

# Every replay with each of its ancestors.
_ASCENT = """
WITH RECURSIVE ascent(id, ancestor) MAX RECURSION LEVEL 1000 AS (
    SELECT id, replay_of FROM {replays}
    UNION ALL
    SELECT ascent.id, parent.replay_of FROM ascent JOIN {replays} AS parent ON parent.id = ascent.ancestor
)
SELECT id, ancestor FROM ascent
"""


def delivery_success(deliveries: DataFrame, rules: DataFrame, window: Window) -> DataFrame:
    """delivered / (delivered + failed + dead_lettered + expired + uncertain), without what nobody failed at."""
    ended = _ended(deliveries, window, *ENDINGS)
    excused = sf.col("status").isin(*GIVEN_UP) & (
        (sf.col("terminal_error_class") == "validation_error")
        | (
            (sf.col("terminal_error_class") == "target_unavailable")
            & ~sf.col("terminal_retryable")
            & sf.col("is_suppressed")
        )
    )
    checked = with_suppression(ended, rules).withColumn("is_excused", sf.coalesce(excused, sf.lit(False)))
    counted = checked.groupBy("channel", "identity_scope").agg(
        *(sf.count_if((sf.col("status") == ending) & ~sf.col("is_excused")).alias(ending) for ending in ENDINGS),
        sf.count_if("is_excused").alias("excused"),
    )
    total = sum((sf.col(ending) for ending in ENDINGS[1:]), sf.col(ENDINGS[0]))
    counts = counts_text(*ENDINGS, "excused")
    return sli_rows(
        counted, "delivery_success", named("channel", "identity_scope"), total, sf.col("delivered"), counts=counts
    )


def delivery_latency(deliveries: DataFrame, window: Window) -> DataFrame:
    """From the request to the provider's acceptance, of what waited for nobody's decision."""
    waited = sf.col("action_id").isNotNull() | sf.col("settled_at").isNotNull()
    took = _ended(deliveries, window, "delivered").where(~waited)
    took = took.select(
        named("channel", "identity_scope", "intent").alias("dimensions"),
        elapsed_ms("created_at", "terminal_at").alias("took_ms"),
    )
    counted = took.groupBy("dimensions").agg(sf.count("*").alias("events"))
    timed = counted.join(interpolated(took, ("dimensions",), "took_ms", SHARES), ["dimensions"], how="left")
    return sli_rows(timed, "delivery_latency", sf.col("dimensions"), sf.col("events"), timed=True)


def replay_success(deliveries: DataFrame, window: Window) -> DataFrame:
    """delivered / ended, of replays."""
    ended = _ended(deliveries, window, *ENDINGS).where(sf.col("replay_of").isNotNull())
    counted = ended.agg(sf.count("*").alias("ended"), sf.count_if(_is_delivered()).alias("delivered"))
    return sli_rows(counted, "replay_success", everything(), sf.col("ended"), sf.col("delivered"))


def duplicates(deliveries: DataFrame, attempts: DataFrame, window: Window) -> DataFrame:
    """What surely reached somebody twice / delivered; what may have is counted beside it."""
    delivered = _ended(deliveries, window, "delivered").select("id")
    sends = _sends(delivered, attempts).agg(
        sf.coalesce(sf.sum(sf.when(sf.col("sent") > 1, sf.col("sent") - 1)), sf.lit(0)).alias("sent_again"),
        sf.count_if((sf.col("sent") > 0) & (sf.col("in_doubt") > 0)).alias("possible"),
    )
    again = delivered.join(_delivered_before(deliveries), ["id"], how="left_semi")
    counted = (
        delivered.agg(sf.count("*").alias("delivered"))
        .join(sends, how="cross")
        .join(again.agg(sf.count("*").alias("delivered_again")), how="cross")
        .withColumn("duplicates", sf.col("sent_again") + sf.col("delivered_again"))
    )
    counts = counts_text("sent_again", "delivered_again", "possible")
    return sli_rows(counted, "duplicates", everything(), sf.col("delivered"), sf.col("duplicates"), counts=counts)


def with_suppression(deliveries: DataFrame, rules: DataFrame) -> DataFrame:
    """`is_suppressed`: nothing is sent to this recipient any more, by this channel or by this scope of it."""
    held = rules.where(sf.col("rule") == "suppressed").select(sf.col("channel").alias("rule_channel"), "target")
    scoped = sf.concat_ws(".", sf.col("channel"), sf.col("identity_scope"))
    holds = (sf.col("target") == sf.col("target_identity")) & sf.col("rule_channel").isin(sf.col("channel"), scoped)
    suppressed = deliveries.join(held, holds, how="left_semi").select("id", sf.lit(True).alias("is_suppressed"))
    return deliveries.join(suppressed, ["id"], how="left").fillna(False, ["is_suppressed"])


def _ended(deliveries: DataFrame, window: Window, *statuses: str) -> DataFrame:
    return deliveries.where(within("terminal_at", window) & sf.col("status").isin(*statuses))


def _is_delivered() -> Column:
    return sf.col("status") == "delivered"


def _sends(delivered: DataFrame, attempts: DataFrame) -> DataFrame:
    """How often each was surely sent, and how often perhaps."""
    made = attempts.join(delivered.withColumnRenamed("id", "delivery_id"), ["delivery_id"], how="left_semi")
    return made.groupBy("delivery_id").agg(
        sf.count_if(sf.col("certainty") == "sent").alias("sent"),
        sf.count_if(sf.col("certainty") == "uncertain").alias("in_doubt"),
    )


def _delivered_before(deliveries: DataFrame) -> DataFrame:
    """Replays whose root, or an earlier member of whose family, was delivered."""
    replays = deliveries.where(sf.col("replay_of").isNotNull()).select("id", "replay_of", "created_at", "status")
    roots = deliveries.where(sf.col("replay_of").isNull()).select(
        sf.col("id").alias("ancestor"), _is_delivered().alias("root_delivered")
    )
    ascent = deliveries.sparkSession.sql(_ASCENT, replays=replays.select("id", "replay_of"))
    family = ascent.join(roots, ["ancestor"], how="inner").join(replays, ["id"], how="inner")
    earlier = Over.partitionBy("ancestor").orderBy("created_at", "id").rowsBetween(Over.unboundedPreceding, -1)
    before = sf.coalesce(sf.sum(_is_delivered().cast("int")).over(earlier), sf.lit(0))
    return family.select("id", "root_delivered", before.alias("before")).where(
        sf.col("root_delivered") | (sf.col("before") > 0)
    )


# Rules that refuse for want of room; a recipient who may not be written to is the caller's matter, not a limit.
RATE_RULES: Final = ("throttle", "in_flight", "global", "channel", "recipient", "fair_share", "breaker")


def admission_rejection(door: DataFrame, window: Window) -> DataFrame:
    """rejected / (admitted + rejected), and by which rule."""
    rejected = (sf.col("outcome") == "rejected") & sf.col("rule").isin(*RATE_RULES)
    fared = door.where(within("minute", whole_minutes(window))).withColumns(
        {
            "admitted": sf.when(sf.col("outcome") == "admitted", sf.col("requests")).otherwise(0),
            "rejected": sf.when(rejected, sf.col("requests")).otherwise(0),
        }
    )
    by_rule = (
        fared.where(rejected)
        .groupBy("channel", "rule")
        .agg(sf.sum("requests").alias("requests"))
        .groupBy("channel")
        .agg(sf.map_from_entries(sf.sort_array(sf.collect_list(sf.struct("rule", "requests")))).alias("by_rule"))
    )
    counted = fared.groupBy("channel").agg(sf.sum("admitted").alias("admitted"), sf.sum("rejected").alias("rejected"))
    in_all = fared.agg(*(sf.coalesce(sf.sum(name), sf.lit(0)).alias(name) for name in ("admitted", "rejected")))
    channels = counted.join(by_rule, ["channel"], how="left").withColumn(
        "by_rule", sf.coalesce("by_rule", sf.create_map().cast("map<string,bigint>"))
    )

    def rows(counted: DataFrame, counts: Column, dimensions: Column) -> DataFrame:
        total = sf.col("admitted") + sf.col("rejected")
        return sli_rows(counted, "admission_rejection", dimensions, total, sf.col("rejected"), counts=counts)

    per_channel = rows(channels, counts_text("admitted", "rejected", "by_rule"), named("channel"))
    return per_channel.unionByName(rows(in_all, counts_text("admitted", "rejected"), everything()))


def dead_letters(letters: DataFrame, window: Window) -> DataFrame:
    """What was set aside, and how much of it was given up since."""
    aside = letters.where(within("created_at", window))
    counts = (sf.count("*").alias("dead_letters"), sf.count_if(sf.col("discarded_at").isNotNull()).alias("discarded"))

    def rows(counted: DataFrame, dimensions: Column) -> DataFrame:
        return sli_rows(counted, "dead_letters", dimensions, sf.col("dead_letters"), counts=counts_text("discarded"))

    per_channel = rows(aside.groupBy("channel").agg(*counts), named("channel"))
    return per_channel.unionByName(rows(aside.agg(*counts), everything()))


def uncertain_settlement(deliveries: DataFrame, attempts: DataFrame, window: Window) -> DataFrame:
    """Of deliveries with a doubtful attempt: the share of which it is known by now what became of them."""
    doubtful = attempts.where(within("started_at", window) & (sf.col("certainty") == "uncertain"))
    doubted = deliveries.join(doubtful.select(sf.col("delivery_id").alias("id")), ["id"], how="left_semi")
    unsettled = (sf.col("status") != "delivered") & sf.col("settled_at").isNull()
    counts = (sf.count("*").alias("uncertain"), sf.count_if(unsettled).alias("unsettled"))

    def rows(counted: DataFrame, dimensions: Column) -> DataFrame:
        total, settled = sf.col("uncertain"), sf.col("uncertain") - sf.col("unsettled")
        return sli_rows(counted, "uncertain_settlement", dimensions, total, settled, counts=counts_text("unsettled"))

    per_channel = rows(doubted.groupBy("channel", "identity_scope").agg(*counts), named("channel", "identity_scope"))
    return per_channel.unionByName(rows(doubted.agg(*counts), everything()))


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

    def rows(counted: DataFrame, dimensions: Column, errors: Column) -> DataFrame:
        total, succeeded = sf.col("routes"), sf.col("succeeded")
        return sli_rows(counted, "route_success", dimensions, total, succeeded, counts=errors)

    apart = rows(per_butler, named("target_butler"), sf.coalesce(sf.to_json("errors"), sf.lit("{}")))
    return apart.unionByName(rows(made.agg(*counts), everything(), everything()))


def _took_ms(start: str, end: str) -> Column:
    """By way of seconds, as Switchboard's queries do it: the last bit depends on the way."""
    return (sf.unix_micros(end) - sf.unix_micros(start)) / sf.lit(1e6) * sf.lit(1e3)


def _timed(counted: DataFrame, times: DataFrame, name: str, counts: Column | None = None) -> DataFrame:
    joined = counted.join(times, [*_KEY], how="left")
    return sli_rows(joined, name, sf.col("dimensions"), sf.col("events"), counts=counts, timed=True)
