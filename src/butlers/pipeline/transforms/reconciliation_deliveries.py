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
from butlers.pipeline.transforms.reconciliation_rules import Check, born_within, checked, ids, is_true

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
        with_descent(born_within(deliveries, "created_at", window), deliveries)
        .join(_tried(attempts), on="id", how="left")
        .join(_heard(receipts), on="id", how="left")
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


def _heard(receipts: DataFrame) -> DataFrame:
    told = receipts.filter(sf.col("receipt_type") != "bounced")
    return told.groupBy(sf.col("delivery_id").alias("id")).agg(sf.count("*").alias("heard"))


def _since() -> Column:
    """When it last moved, or is to move next."""
    due = sf.greatest("updated_at", "next_attempt_at")
    return sf.when(_status(*WAITING), due).otherwise(sf.col("updated_at"))


def _status(*names: str) -> Column:
    return sf.col("status").isin(*names)


def _many(name: str) -> Column:
    return sf.size(sf.coalesce(sf.col(name), sf.array()))


def _ends() -> list[Check]:
    status, settled = sf.col("status"), sf.col("settled")
    return [
        Check(rule="delivery-left-open", broken=_status("in_progress"), detail=status, settled=settled),
        Check(rule="delivery-overdue", broken=_status(*WAITING), detail=status, settled=settled),
        Check(
            rule="delivery-end-untimed",
            broken=_status(*UNENDED) != sf.col("terminal_at").isNull(),
            detail=status,
            settled=settled,
        ),
        Check(
            rule="delivery-error-missing",
            applies=_status(*ENDED_BADLY),
            broken=sf.col("terminal_error_class").isNull(),
            detail=status,
            settled=settled,
        ),
    ]


def _evidence() -> list[Check]:
    settled, delivered = sf.col("settled"), _status("delivered")
    return [
        Check(
            rule="delivered-unattempted",
            applies=delivered,
            broken=(_many("accepted") == 0) & sf.col("settled_at").isNull(),
            detail=sf.col("status"),
            settled=settled,
        ),
        Check(
            rule="delivered-unreceipted",
            applies=delivered,
            broken=sf.coalesce(sf.col("heard"), sf.lit(0)) == 0,
            detail=sf.col("status"),
            settled=settled,
        ),
        Check(
            rule="attempts-miscounted",
            broken=_numbers() != _counted(),
            detail=sf.concat_ws(" ", sf.lit("counted"), sf.col("attempts"), sf.lit("has"), sf.size(_numbers())),
            settled=settled,
        ),
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
    settled, accepted, doubtful = sf.col("settled"), _many("accepted"), _many("doubtful")
    return [
        Check(rule="delivery-sent-twice", applies=accepted > 0, broken=accepted > 1, detail=ids(sf.col("accepted"))),
        Check(
            rule="key-sent-twice",
            applies=accepted > 0,
            broken=sf.col("accepted_before").isNotNull(),
            detail=sf.col("accepted_before"),
        ),
        Check(
            rule="replay-without-lineage",
            applies=sf.col("replay_of").isNotNull(),
            broken=~sf.col("descends"),
            detail=sf.col("replay_of"),
            settled=settled,
        ),
        Check(rule="delivery-in-doubt", broken=_status("uncertain"), detail=ids(sf.col("doubtful")), settled=settled),
        Check(
            rule="delivery-maybe-twice",
            applies=accepted > 0,
            broken=doubtful > 0,
            detail=ids(sf.col("doubtful")),
            settled=settled,
        ),
    ]


def check_attempts(attempts: DataFrame, deliveries: DataFrame, *, window: Window, cutoff: datetime) -> DataFrame:
    owners = deliveries.select(sf.col("id").alias("owner"), sf.col("attempts").alias("counted"))
    subjects = _with_owner(born_within(standing(attempts), "started_at", window), owners, "delivery_id")
    settled, given_back = sf.col("started_at") <= sf.lit(cutoff), sf.col("attempt_number") > sf.col("counted")
    checks = [
        _belongs("attempt-orphan", "delivery_id", settled),
        Check(
            rule="attempt-left-open",
            applies=~is_true(given_back) | sf.col("completed_at").isNotNull(),
            broken=sf.col("completed_at").isNull() & ~sf.col("gone"),
            detail=sf.col("delivery_id"),
            settled=settled,
        ),
    ]
    return checked(subjects, checks, key="id", born="started_at")


def check_receipts(receipts: DataFrame, deliveries: DataFrame, *, window: Window, cutoff: datetime) -> DataFrame:
    owners = deliveries.select(sf.col("id").alias("owner"))
    subjects = _with_owner(born_within(receipts, "received_at", window), owners, "delivery_id")
    checks = [_belongs("receipt-orphan", "delivery_id", sf.col("received_at") <= sf.lit(cutoff))]
    return checked(subjects, checks, key="id", born="received_at")


def check_routing(routing: DataFrame, requests: DataFrame, *, window: Window, cutoff: datetime) -> DataFrame:
    owners = requests.select(sf.col("request_id").alias("owner")).distinct()
    subjects = _with_owner(born_within(routing, "created_at", window), owners, "request_id")
    checks = [_belongs("routing-orphan", "request_id", sf.col("created_at") <= sf.lit(cutoff))]
    return checked(subjects, checks, key="id", born="created_at")


def _with_owner(parts: DataFrame, owners: DataFrame, named: str) -> DataFrame:
    """With `gone`: nothing that was read could be what it belongs to."""
    oldest = owners.agg(sf.min("owner").alias("oldest"))
    missing = sf.col("owner").isNull() & ~is_true(sf.col(named) < sf.col("oldest"))
    return (
        parts.join(owners, on=sf.col(named) == sf.col("owner"), how="left")
        .join(sf.broadcast(oldest), how="cross")
        .withColumn("gone", missing)
    )


def _belongs(rule: str, named: str, settled: Column) -> Check:
    return Check(rule=rule, broken=sf.col("gone"), detail=sf.col(named), settled=settled)
