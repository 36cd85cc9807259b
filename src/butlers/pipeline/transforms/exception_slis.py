"""What did not simply go its way in a window: refusals at Messenger's door, dead letters and doubts (seed 001).

One row per channel and one in all, which is there even when nothing happened.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from butlers.pipeline.transforms.expressions import everything, named, whole_minutes, within
from butlers.pipeline.transforms.sli_rows import counts_text, sli_rows
from butlers.pipeline.windows import Window

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
    per_channel = fared.groupBy("channel").agg(
        sf.sum("admitted").alias("admitted"), sf.sum("rejected").alias("rejected")
    )
    in_all = fared.agg(*(sf.coalesce(sf.sum(name), sf.lit(0)).alias(name) for name in ("admitted", "rejected")))
    channels = per_channel.join(by_rule, ["channel"], how="left").withColumn("by_rule", _or_none("by_rule"))
    return _rejections(
        channels, sf.to_json(sf.struct("admitted", "rejected", "by_rule")), named("channel")
    ).unionByName(_rejections(in_all, counts_text("admitted", "rejected"), everything()))


def dead_letters(letters: DataFrame, window: Window) -> DataFrame:
    """What was set aside, and how much of it was given up since."""
    aside = letters.where(within("created_at", window))
    counts = (sf.count("*").alias("dead_letters"), sf.count_if(sf.col("discarded_at").isNotNull()).alias("discarded"))

    def rows(counted: DataFrame, dimensions: Column) -> DataFrame:
        return sli_rows(
            counted,
            "dead_letters",
            dimensions=dimensions,
            events=sf.col("dead_letters"),
            counts=counts_text("discarded"),
        )

    per_channel = rows(aside.groupBy("channel").agg(*counts), named("channel"))
    return per_channel.unionByName(rows(aside.agg(*counts), everything()))


def uncertain_settlement(deliveries: DataFrame, attempts: DataFrame, window: Window) -> DataFrame:
    """Of deliveries with a doubtful attempt: the share of which it is known by now what became of them."""
    doubtful = attempts.where(within("started_at", window) & (sf.col("certainty") == "uncertain"))
    doubted = deliveries.join(doubtful.select(sf.col("delivery_id").alias("id")), ["id"], how="left_semi")
    unsettled = (sf.col("status") != "delivered") & sf.col("settled_at").isNull()
    counts = (sf.count("*").alias("uncertain"), sf.count_if(unsettled).alias("unsettled"))

    def rows(counted: DataFrame, dimensions: Column) -> DataFrame:
        return sli_rows(
            counted,
            "uncertain_settlement",
            dimensions=dimensions,
            events=sf.col("uncertain"),
            part=sf.col("uncertain") - sf.col("unsettled"),
            counts=counts_text("unsettled"),
        )

    per_channel = rows(doubted.groupBy("channel", "identity_scope").agg(*counts), named("channel", "identity_scope"))
    return per_channel.unionByName(rows(doubted.agg(*counts), everything()))


def _rejections(counted: DataFrame, counts: Column, dimensions: Column) -> DataFrame:
    return sli_rows(
        counted,
        "admission_rejection",
        dimensions=dimensions,
        events=sf.col("admitted") + sf.col("rejected"),
        part=sf.col("rejected"),
        counts=counts,
    )


def _or_none(column: str) -> Column:
    return sf.coalesce(sf.col(column), sf.create_map().cast("map<string,bigint>"))
