"""Deliveries: each has its attempts and receipts, and none went out twice.

    deliveries --(id)-- tried: what is known of its attempts
               |-(id)-- heard: receipts other than bounces
               `-(id)-- the first delivery of the same key, or of the same family of replays, that was accepted

A claim that was taken and given back unused leaves an attempt in the lake that the table no longer has: without an end,
and with a number that the delivery no longer counts or that a later attempt bears. It is not missed and not counted.
"""

from __future__ import annotations

from datetime import datetime

from pyspark.sql import Column, DataFrame
from pyspark.sql import Window as Over
from pyspark.sql import functions as sf

from butlers.contracts.delivery_state import ENDED_BADLY, UNENDED, WAITING
from butlers.pipeline.job import Window
from butlers.pipeline.transforms.expressions import within
from butlers.pipeline.transforms.reconciliation import Check, checked, ids, is_true

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


def check_deliveries(
    deliveries: DataFrame, attempts: DataFrame, receipts: DataFrame, *, window: Window, cutoff: datetime
) -> DataFrame:
    subjects = (
        with_descent(deliveries.where(within("created_at", window)), deliveries)
        .join(_tried(attempts), on="id", how="left")
        .join(_confirmed(receipts), on="id", how="left")
        .join(accepted_before(deliveries, attempts), on="id", how="left")
        .withColumn("settled", _since() <= sf.lit(cutoff))
    )
    return checked(subjects, [*_ends(), *_evidence(), *_keys()], key="id", born="created_at")


def standing(attempts: DataFrame) -> DataFrame:
    """Without those that were given back and whose number a later attempt bears."""
    newest = sf.max("change").over(Over.partitionBy("delivery_id", "attempt_number"))
    ended = sf.col("completed_at").isNotNull()
    return attempts.withColumn("newest", newest).filter(ended | (sf.col("change") == sf.col("newest"))).drop("newest")


def _tried(attempts: DataFrame) -> DataFrame:
    ended, number = sf.col("completed_at").isNotNull(), sf.col("attempt_number")
    return (
        standing(attempts)
        .groupBy(sf.col("delivery_id").alias("id"))
        .agg(
            sf.collect_list(sf.when(ended, number)).alias("ended_numbers"),
            sf.collect_list(sf.when(~ended, number)).alias("open_numbers"),
            sf.collect_list(sf.when(sf.col("outcome") == "sent", sf.col("id"))).alias("accepted"),
            sf.collect_list(sf.when(sf.col("certainty") == "uncertain", sf.col("id"))).alias("doubtful"),
        )
    )


def _confirmed(receipts: DataFrame) -> DataFrame:
    arrivals = receipts.filter(sf.col("receipt_type") != "bounced")
    return arrivals.groupBy(sf.col("delivery_id").alias("id")).agg(sf.count("*").alias("heard"))


def _since() -> Column:
    """When it last moved, or is to move next."""
    due = sf.greatest("updated_at", "next_attempt_at")
    return sf.when(_status(*WAITING), due).otherwise(sf.col("updated_at"))


def _status(*names: str) -> Column:
    return sf.col("status").isin(*names)


def _many(name: str) -> Column:
    return sf.size(sf.coalesce(sf.col(name), sf.array()))


def _ends() -> list[Check]:
    status, open_ = sf.col("status"), _status(*UNENDED)
    return [
        Check("delivery-left-open", _status("in_progress"), status),
        Check("delivery-overdue", _status(*WAITING), status),
        Check("delivery-end-untimed", open_ != sf.col("terminal_at").isNull(), status),
        Check("delivery-error-missing", sf.col("terminal_error_class").isNull(), status, _status(*ENDED_BADLY)),
    ]


def _evidence() -> list[Check]:
    status, delivered = sf.col("status"), _status("delivered")
    unattempted = (_many("accepted") == 0) & sf.col("settled_at").isNull()
    counts = sf.concat_ws(" ", sf.lit("counted"), sf.col("attempts"), sf.lit("has"), sf.size(_numbers()))
    return [
        Check("delivered-unattempted", unattempted, status, delivered),
        Check("delivered-unreceipted", sf.coalesce(sf.col("heard"), sf.lit(0)) == 0, status, delivered),
        Check("attempts-miscounted", _numbers() != _counted(), counts),
    ]


def _counted() -> Column:
    """One, two, up to the number of attempts it says it had."""
    attempts = sf.col("attempts")
    return sf.slice(sf.sequence(sf.lit(1), sf.greatest(attempts, sf.lit(1))), sf.lit(1), attempts)


def _numbers() -> Column:
    """The numbers of its attempts; one without an end that the delivery does not count was given back."""
    nothing = sf.array().cast("array<int>")
    open_ones = sf.filter(sf.coalesce("open_numbers", nothing), lambda number: number <= sf.col("attempts"))
    return sf.array_sort(sf.concat(sf.coalesce("ended_numbers", nothing), open_ones))


def _keys() -> list[Check]:
    accepted, doubtful, before = _many("accepted"), ids(sf.col("doubtful")), sf.col("accepted_before")
    is_replay = sf.col("replay_of").isNotNull()
    return [
        Check("delivery-sent-twice", accepted > 1, ids(sf.col("accepted")), accepted > 0, heals=False),
        Check("key-sent-twice", before.isNotNull(), before, accepted > 0, heals=False),
        Check("replay-without-lineage", ~sf.col("descends"), sf.col("replay_of"), is_replay),
        Check("delivery-in-doubt", _status("uncertain"), doubtful),
        Check("delivery-maybe-twice", _many("doubtful") > 0, doubtful, accepted > 0),
    ]


def check_attempts(attempts: DataFrame, deliveries: DataFrame, *, window: Window, cutoff: datetime) -> DataFrame:
    owners = deliveries.select(sf.col("id").alias("owner"), sf.col("attempts").alias("counted"))
    given_back = is_true(sf.col("attempt_number") > sf.col("counted"))
    left_open = Check(
        "attempt-left-open",
        sf.col("completed_at").isNull() & ~sf.col("gone"),
        sf.col("delivery_id"),
        ~given_back | sf.col("completed_at").isNotNull(),
    )
    checks = [_belongs("attempt-orphan", "delivery_id"), left_open]
    return _check_parts(standing(attempts), "started_at", owners, "delivery_id", checks, window=window, cutoff=cutoff)


def check_receipts(receipts: DataFrame, deliveries: DataFrame, *, window: Window, cutoff: datetime) -> DataFrame:
    owners, checks = deliveries.select(sf.col("id").alias("owner")), [_belongs("receipt-orphan", "delivery_id")]
    return _check_parts(receipts, "received_at", owners, "delivery_id", checks, window=window, cutoff=cutoff)


def check_routing(routing: DataFrame, requests: DataFrame, *, window: Window, cutoff: datetime) -> DataFrame:
    owners = requests.select(sf.col("request_id").alias("owner")).distinct()
    checks = [_belongs("routing-orphan", "request_id")]
    return _check_parts(routing, "created_at", owners, "request_id", checks, window=window, cutoff=cutoff)


def _check_parts(
    parts: DataFrame,
    born: str,
    owners: DataFrame,
    owner_id: str,
    checks: list[Check],
    *,
    window: Window,
    cutoff: datetime,
) -> DataFrame:
    """With `gone`: nothing that was read could be what a part belongs to."""
    oldest = owners.agg(sf.min("owner").alias("oldest"))
    missing = sf.col("owner").isNull() & ~is_true(sf.col(owner_id) < sf.col("oldest"))
    subjects = (
        parts.where(within(born, window))
        .join(owners, on=sf.col(owner_id) == sf.col("owner"), how="left")
        .join(sf.broadcast(oldest), how="cross")
        .withColumns({"gone": missing, "settled": sf.col(born) <= sf.lit(cutoff)})
    )
    return checked(subjects, checks, key="id", born=born)


def _belongs(rule: str, owner_id: str) -> Check:
    return Check(rule, sf.col("gone"), sf.col(owner_id))
