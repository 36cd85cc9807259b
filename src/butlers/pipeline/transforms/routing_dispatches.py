"""What became of a request's parts, from `routing_log`: a line is written each time a part has been dispatched.

A part keeps its name through repeats (`s1`, and `s1~2` when an operator had it worked on anew), so its last line says
how it ended, and lines with other targets say that it was decided otherwise before. Lines after a correction are the
operator's decision and not the router's.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

PART = "struct<part: string, target: string, failed: boolean>"


def dispatches(log: DataFrame, corrections: DataFrame) -> DataFrame:
    """One row per request that somebody was asked to take."""
    own = _before_correction(log, corrections)
    parts = own.groupBy("request_id", sf.substring_index("segment_id", "~", 1).alias("part")).agg(
        sf.max_by(sf.struct("target_butler", "success", "router", "model_version", "prompt_version"), "place").alias(
            "last"
        ),
        sf.max("place").alias("place"),
        sf.count("*").alias("lines"),
        sf.countDistinct("target_butler").alias("targets"),
    )
    again = sf.col("lines") > 1
    return (
        parts.groupBy("request_id")
        .agg(
            sf.array_sort(
                sf.collect_list(sf.struct("part", sf.col("last.target_butler"), ~sf.col("last.success"))).cast(
                    f"array<{PART}>"
                )
            ).alias("parts"),
            sf.max_by("last", "place").alias("last"),
            sf.bool_or(again).alias("redecided"),
            sf.bool_and(~again | (sf.col("targets") == 1)).alias("same"),
        )
        .select(
            "request_id",
            "parts",
            sf.col("last.router").alias("router"),
            sf.col("last.model_version").alias("model_version"),
            sf.col("last.prompt_version").alias("prompt_version"),
            "redecided",
            (sf.col("redecided") & sf.col("same")).alias("redecided_same"),
        )
    )


def _before_correction(log: DataFrame, corrections: DataFrame) -> DataFrame:
    joined = log.join(corrections.select("request_id", "corrected_at"), on="request_id", how="left")
    return joined.where(sf.col("corrected_at").isNull() | (sf.col("created_at") <= sf.col("corrected_at"))).select(
        *log.columns, sf.struct("created_at", "id").alias("place")
    )
