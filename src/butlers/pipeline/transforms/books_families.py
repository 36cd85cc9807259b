"""Deliveries that repeat one another: those of one key, and those that descend from one first delivery by replay.

Ids are ordered by time. So a delivery that is named and not there, but is older than all that were read, was left
behind by the window that was read, or by the lake's retention; it is not missed.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import Window as Over
from pyspark.sql import functions as sf

_DOUBLINGS = 5  # 32 replays of replays


def accepted_before(deliveries: DataFrame, attempts: DataFrame) -> DataFrame:
    """(id, accepted_before): what was accepted after another delivery of its key or its family had been."""
    sent = attempts.filter(sf.col("outcome") == "sent").select(sf.col("delivery_id").alias("id"))
    accepted = (
        deliveries.join(sent, on="id", how="left_semi")
        .join(_roots(deliveries), on="id", how="left")
        .withColumn("root", sf.coalesce("root", "id"))
    )
    before = sf.coalesce(_another("key_digest"), _another("root"))
    return accepted.select("id", before.alias("accepted_before")).filter(sf.col("accepted_before").isNotNull())


def _roots(deliveries: DataFrame) -> DataFrame:
    """(id, root): the first delivery of each replay's family, whether or not it was read. Each step doubles how far a
    replay is followed, and what it found is kept: otherwise every step would read everything twice as often. Replays
    are few, and a circle of them, which only a broken record has, ends as well.
    """
    roots = deliveries.where(sf.col("replay_of").isNotNull()).select("id", sf.col("replay_of").alias("root"))
    for _ in range(_DOUBLINGS):
        above = roots.select(sf.col("id").alias("root"), sf.col("root").alias("above"))
        higher = sf.coalesce("above", "root").alias("root")
        roots = roots.join(above, on="root", how="left").select("id", higher).persist()
    return roots


def _another(group: str) -> Column:
    """The first of its group, if that is not itself."""
    first = sf.first("id").over(Over.partitionBy(group).orderBy("created_at", "id"))
    return sf.when(first != sf.col("id"), first)


def with_descent(deliveries: DataFrame, known: DataFrame) -> DataFrame:
    """With `descends`: what it repeats is among the known ones and goes the same way for the same request, or is older
    than all of them.
    """
    parents = known.select(sf.col("id").alias("replay_of"), _way().alias("parents_way"))
    oldest = known.agg(sf.min("id").alias("oldest"))
    return (
        deliveries.join(parents, on="replay_of", how="left")
        .join(sf.broadcast(oldest), how="cross")
        .withColumn("descends", sf.coalesce(sf.col("parents_way") == _way(), sf.col("replay_of") < sf.col("oldest")))
        .drop("oldest", "parents_way")
    )


def _way() -> Column:
    return sf.struct(
        sf.coalesce("request_id", sf.lit("")), sf.col("origin_butler"), sf.col("channel"), sf.col("intent")
    )
