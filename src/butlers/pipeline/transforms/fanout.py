"""Where messages went, day by day: from a channel and endpoint to a butler; a message counts once for each of them."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

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
