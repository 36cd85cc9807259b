"""A plan as rows of the delivery runtime's tables."""

from __future__ import annotations

from datetime import datetime

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from butlers.outbound.documents import MessageDocument
from butlers.pipeline.table_contracts.audience import BLOCKED_RECIPIENTS, MESSAGES, SCHEDULED_MESSAGES


def message_row(spark: SparkSession, document: MessageDocument, text: str, now: datetime) -> DataFrame:
    row = spark.range(1).select(
        sf.lit(str(document.id)).alias("id"),
        sf.lit(document.sender_id).alias("sender_id"),
        sf.lit(text).alias("document"),
        sf.lit(now).alias("created_at"),
    )
    return row.select(*MESSAGES.columns.fieldNames())


def scheduled_rows(plan: DataFrame, document: MessageDocument, now: datetime) -> DataFrame:
    """Whoever is to get the message; the key is that of `butlers.outbound.values.dedupe_key`."""
    rows = plan.where(sf.col("reason").isNull()).withColumns(
        {
            "dedupe_key": sf.concat("message_id", sf.lit(":"), "recipient_id"),
            "sender_id": sf.lit(document.sender_id),
            "priority": sf.lit(document.priority.value),
            "created_at": sf.lit(now),
        }
    )
    return rows.select(*SCHEDULED_MESSAGES.columns.fieldNames())


def blocked_rows(plan: DataFrame, now: datetime) -> DataFrame:
    """Whoever is not, and why."""
    rows = plan.where(sf.col("reason").isNotNull()).withColumn("created_at", sf.lit(now))
    return rows.select(*BLOCKED_RECIPIENTS.columns.fieldNames())
