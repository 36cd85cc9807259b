"""Requests: each ends somewhere, what it was dispatched to is logged, and who dealt with it answered.

requests --(request_id)-- routing: (segment, butler, success) of every dispatch
         `-(request_id)-- deliveries: which butlers asked Messenger for something
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from butlers.contracts.request_state import OPEN
from butlers.pipeline.job import Window
from butlers.pipeline.transforms.reconciliation_rules import Check, born_within, checked, ids, is_true

_OUTCOMES = "array<struct<segment_id string, target_butler string, success boolean, skipped string>>"


def check_requests(
    requests: DataFrame,
    routing: DataFrame,
    deliveries: DataFrame,
    *,
    window: Window,
    cutoff: datetime,
    silent: Collection[str],  # butlers that deal with a request and answer nobody
) -> DataFrame:
    subjects = (
        born_within(requests, "received_at", window)
        .withColumn("dispatched", _dispatched())
        .join(_logged(routing), on="request_id", how="left")
        .join(_answering(deliveries), on="request_id", how="left")
        .withColumns(
            {"unlogged": _unlogged(), "unanswered": _unanswered(silent), "settled": _since() <= sf.lit(cutoff)}
        )
    )
    return checked(subjects, [*_ends(), *_dispatches()], key="request_id", born="received_at")


def _logged(routing: DataFrame) -> DataFrame:
    line = sf.struct("segment_id", "target_butler", "success")
    return routing.groupBy("request_id").agg(sf.collect_set(line).alias("logged"))


def _answering(deliveries: DataFrame) -> DataFrame:
    answers = deliveries.filter(sf.col("request_id").isNotNull())
    return answers.groupBy("request_id").agg(sf.collect_set("origin_butler").alias("answering"))


def _since() -> Column:
    """When it last moved. A request that is put off again and again moves all the time, so while it is open its arrival
    counts, or what an operator did about it since.
    """
    touched = sf.when(sf.col("override_action").isNotNull(), sf.col("updated_at")).otherwise(sf.col("received_at"))
    return sf.when(_is_open(), sf.greatest(touched, sf.col("not_before"))).otherwise(sf.col("updated_at"))


def _is_open() -> Column:
    return sf.col("lifecycle_state").isin(*OPEN)


def _dispatched() -> Column:
    """Its parts that somebody was asked to do."""
    outcomes = sf.coalesce(sf.from_json("outcomes", _OUTCOMES), sf.array())
    return sf.filter(outcomes, lambda outcome: outcome["skipped"].isNull())


def _unlogged() -> Column:
    def has_no_line(outcome: Column) -> Column:
        line = sf.struct(outcome["segment_id"], outcome["target_butler"], outcome["success"])
        return sf.col("logged").isNull() | ~sf.array_contains(sf.col("logged"), line)

    return sf.transform(sf.filter("dispatched", has_no_line), lambda outcome: outcome["segment_id"])


def _unanswered(silent: Collection[str]) -> Column:
    def has_no_delivery(outcome: Column) -> Column:
        butler = outcome["target_butler"]
        unknown = sf.col("answering").isNull() | ~sf.array_contains(sf.col("answering"), butler)
        return outcome["success"] & ~butler.isin(*silent) & unknown

    return sf.transform(sf.filter("dispatched", has_no_delivery), lambda outcome: outcome["target_butler"])


def _ends() -> list[Check]:
    state, settled, parsed = sf.col("lifecycle_state"), sf.col("settled"), sf.col("lifecycle_state") == "parsed"
    completed = is_true(sf.col("override_action") == "force_complete")
    return [
        Check(rule="request-left-open", broken=_is_open(), detail=state, settled=settled),
        Check(
            rule="request-end-untimed",
            broken=_is_open() != sf.col("final_state_at").isNull(),
            detail=state,
            settled=settled,
        ),
        Check(
            rule="request-error-mismatch",
            applies=~_is_open(),
            broken=parsed != sf.col("error_class").isNull(),
            detail=sf.concat_ws(" ", state, sf.col("error_class")),
            settled=settled,
        ),
        Check(
            rule="request-without-outcome",
            applies=parsed & ~completed,
            broken=sf.size("dispatched") == 0,
            detail=state,
            settled=settled,
        ),
    ]


def _dispatches() -> list[Check]:
    settled, incomplete = sf.col("settled"), sf.size("unlogged") > 0
    # The outcome of a part is stored as it comes, its line after all parts: who dies in between leaves the first alone.
    interrupted = (sf.col("attempts") > 1) | sf.col("not_before").isNotNull() | sf.col("override_action").isNotNull()
    interrupted = is_true(interrupted)
    dispatched, lines = ~_is_open() & (sf.size("dispatched") > 0), ids(sf.col("unlogged"))
    return [
        Check(
            rule="dispatch-unlogged",
            applies=dispatched & ~interrupted,
            broken=incomplete,
            detail=lines,
            settled=settled,
        ),
        Check(
            rule="dispatch-line-lost",
            applies=dispatched & interrupted,
            broken=incomplete,
            detail=lines,
            settled=settled,
        ),
        Check(
            rule="answer-missing",
            applies=~_is_open() & sf.exists("dispatched", lambda outcome: outcome["success"]),
            broken=sf.size("unanswered") > 0,
            detail=ids(sf.col("unanswered")),
            settled=settled,
        ),
    ]


def check_counts(event: str, in_table: DataFrame, in_lake: DataFrame) -> DataFrame:
    """Both are (id, born); `in_lake` has `vanished`, too: the table may well have removed it. One subject per day."""
    table = in_table.select("id", sf.to_date("born").alias("date"), sf.expr("true").alias("there"))
    lake = in_lake.select("id", sf.to_date("born").alias("date"), sf.expr("true").alias("here"), "vanished")
    both = table.join(lake, on=["id", "date"], how="full_outer")
    missing, surplus = sf.col("here").isNull(), sf.col("there").isNull() & ~sf.col("vanished")
    days = both.groupBy("date").agg(
        sf.count_if(missing).alias("missing"),
        sf.min(sf.when(missing, sf.col("id"))).alias("first_missing"),
        sf.count_if(surplus).alias("surplus"),
        sf.min(sf.when(surplus, sf.col("id"))).alias("first_surplus"),
    )
    named = days.withColumns({"key": sf.concat_ws(" ", sf.lit(event), sf.col("date").cast("string"))})
    return checked(
        named, [_check("lake-misses-rows", "missing"), _check("lake-holds-more", "surplus")], key="key", born="date"
    )


def rows_of(frame: DataFrame, *, key: str, born: str, vanished: str = "false") -> DataFrame:
    """What is compared of a table or an event; `vanished` is a condition in SQL."""
    return frame.select(sf.col(key).alias("id"), sf.col(born).alias("born"), sf.expr(vanished).alias("vanished"))


def _check(rule: str, name: str) -> Check:
    detail = sf.concat_ws(" ", sf.col(name).cast("string"), sf.lit("rows, first"), sf.col(f"first_{name}"))
    return Check(rule=rule, broken=sf.col(name) > 0, detail=detail)
