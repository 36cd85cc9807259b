"""What operators said about decisions: one row per request that a person sent elsewhere.

A reroute counts when it was carried out (`success`, or `partial` when somebody had the message already). Of several,
the first ends the router's own part of the story, and the last is what the person meant.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

CARRIED_OUT = ("success", "partial")
_DETAILS = "struct<was: string, handed_to: array<string>>"


def corrections(audit: DataFrame) -> DataFrame:
    """From `operator_audit_log`."""
    reroutes = audit.where((sf.col("action") == "manual_reroute") & sf.col("outcome").isin(*CARRIED_OUT)).select(
        "request_id",
        "performed_at",
        sf.struct("performed_at", "id").alias("place"),
        sf.get_json_object("payload", "$.target").alias("target"),
        sf.from_json("outcome_details", _DETAILS).alias("details"),
    )
    first = sf.min_by("details", "place")
    return (
        reroutes.groupBy("request_id")
        .agg(
            sf.min("performed_at").alias("corrected_at"),
            sf.max_by("target", "place").alias("right_target"),
            first.alias("details"),
        )
        .select(
            "request_id",
            "corrected_at",
            "right_target",
            sf.col("details.was").alias("state_before"),
            sf.array_sort(sf.array_distinct(sf.coalesce("details.handed_to", sf.array().cast("array<string>")))).alias(
                "handed_to"
            ),
        )
    )
