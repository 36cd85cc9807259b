"""Attempts, receipts and lines of the routing log: each belongs to something that exists, and an attempt ends.

As in `books_families`, what is named and older than all that was read is not missed.
"""

from __future__ import annotations

from datetime import datetime

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from butlers.pipeline.transforms.books_deliveries import standing
from butlers.pipeline.transforms.books_verdicts import Check, born_within, judged, so
from butlers.pipeline.windows import Window


def judged_attempts(attempts: DataFrame, deliveries: DataFrame, *, window: Window, cutoff: datetime) -> DataFrame:
    owners = deliveries.select(sf.col("id").alias("owner"), sf.col("attempts").alias("counted"))
    subjects = _with_owner(born_within(standing(attempts), "started_at", window), owners, "delivery_id")
    settled, given_back = sf.col("started_at") <= sf.lit(cutoff), sf.col("attempt_number") > sf.col("counted")
    checks = [
        _belongs("attempt-orphan", "delivery_id", settled),
        Check(
            rule="attempt-left-open",
            applies=~so(given_back) | sf.col("completed_at").isNotNull(),
            broken=sf.col("completed_at").isNull() & ~sf.col("gone"),
            detail=sf.col("delivery_id"),
            settled=settled,
        ),
    ]
    return judged(subjects, checks, key="id", born="started_at")


def judged_receipts(receipts: DataFrame, deliveries: DataFrame, *, window: Window, cutoff: datetime) -> DataFrame:
    owners = deliveries.select(sf.col("id").alias("owner"))
    subjects = _with_owner(born_within(receipts, "received_at", window), owners, "delivery_id")
    checks = [_belongs("receipt-orphan", "delivery_id", sf.col("received_at") <= sf.lit(cutoff))]
    return judged(subjects, checks, key="id", born="received_at")


def judged_routing(routing: DataFrame, requests: DataFrame, *, window: Window, cutoff: datetime) -> DataFrame:
    owners = requests.select(sf.col("request_id").alias("owner")).distinct()
    subjects = _with_owner(born_within(routing, "created_at", window), owners, "request_id")
    checks = [_belongs("routing-orphan", "request_id", sf.col("created_at") <= sf.lit(cutoff))]
    return judged(subjects, checks, key="id", born="created_at")


def _with_owner(parts: DataFrame, owners: DataFrame, named: str) -> DataFrame:
    """With `gone`: nothing that was read could be what it belongs to."""
    oldest = owners.agg(sf.min("owner").alias("oldest"))
    missing = sf.col("owner").isNull() & ~so(sf.col(named) < sf.col("oldest"))
    return (
        parts.join(owners, on=sf.col(named) == sf.col("owner"), how="left")
        .join(sf.broadcast(oldest), how="cross")
        .withColumn("gone", missing)
    )


def _belongs(rule: str, named: str, settled: Column) -> Check:
    return Check(rule=rule, broken=sf.col("gone"), detail=sf.col(named), settled=settled)
