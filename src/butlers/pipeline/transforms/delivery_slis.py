"""Of deliveries that ended in a window: success, latency, duplicates, and how replays went (seed 001, section 15).

Every function gives rows of `sli_row`'s shape; which deliveries count, and for what, is as in
messenger/service_levels/queries.sql.

    replay_of    c -> b -> a          every replay leads up to the delivery it descends from: its root
                 d -> a               {b, c, d} is the family of a; its members in order of their creation
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import Window as Over
from pyspark.sql import functions as sf

from butlers.contracts.delivery_state import FINISHED, GIVEN_UP, DeliveryState
from butlers.pipeline.transforms.expressions import elapsed_ms, everything, named, within
from butlers.pipeline.transforms.percentiles import SHARES, interpolated
from butlers.pipeline.transforms.sli_rows import counts_text, sli_rows
from butlers.pipeline.windows import Window

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
    judged = with_suppression(ended, rules).withColumn("is_excused", sf.coalesce(excused, sf.lit(False)))
    counted = judged.groupBy("channel", "identity_scope").agg(
        *(sf.count_if((sf.col("status") == ending) & ~sf.col("is_excused")).alias(ending) for ending in ENDINGS),
        sf.count_if("is_excused").alias("excused"),
    )
    total = sum((sf.col(ending) for ending in ENDINGS[1:]), sf.col(ENDINGS[0]))
    return sli_rows(
        counted,
        "delivery_success",
        dimensions=named("channel", "identity_scope"),
        events=total,
        part=sf.col("delivered"),
        counts=counts_text(*ENDINGS, "excused"),
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
    return sli_rows(timed, "delivery_latency", dimensions=sf.col("dimensions"), events=sf.col("events"), timed=True)


def replay_success(deliveries: DataFrame, window: Window) -> DataFrame:
    """delivered / ended, of replays."""
    ended = _ended(deliveries, window, *ENDINGS).where(sf.col("replay_of").isNotNull())
    counted = ended.agg(sf.count("*").alias("ended"), sf.count_if(_is_delivered()).alias("delivered"))
    return sli_rows(
        counted, "replay_success", dimensions=everything(), events=sf.col("ended"), part=sf.col("delivered")
    )


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
    return sli_rows(
        counted,
        "duplicates",
        dimensions=everything(),
        events=sf.col("delivered"),
        part=sf.col("duplicates"),
        counts=counts_text("sent_again", "delivered_again", "possible"),
    )


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
