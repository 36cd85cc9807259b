"""The rules of the reconciliation, the decision per subject and rule, and what is checked of requests.

Each request ends somewhere, what it was dispatched to is logged, and who dealt with it answered. All rules about a
subject are decided in one pass.

    requests --(request_id)-- routing: (segment, butler, success) of every dispatch
             `-(request_id)-- deliveries: which butlers asked Messenger for something
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from butlers.contracts.request_state import OPEN
from butlers.pipeline.job import Window
from butlers.pipeline.transforms.expressions import within


class Severity(StrEnum):
    ERROR = "error"
    NOTICE = "notice"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    id: str
    sentence: str
    severity: Severity


_SENTENCES = {
    "request-left-open": "A request comes to its end within the grace period.",
    "request-end-untimed": "A request says when it ended if it has ended, and only then.",
    "request-error-mismatch": "An errored request has an error on record, a parsed one has none.",
    "request-without-outcome": "A parsed request was dispatched, or an operator completed it.",
    "dispatch-unlogged": "Every dispatch in a request's outcome has its line in the routing log.",
    "dispatch-line-lost": "The same, where a worker died, it was put off, or an operator stopped it.",
    "answer-missing": "A butler that dealt with a request has a delivery for the answer.",
    "routing-orphan": "A line of the routing log belongs to a request that exists.",
    "delivery-left-open": "No delivery stays in the hand of a worker whose lease is long over.",
    "delivery-overdue": "A delivery that was due before the grace period still waits.",
    "delivery-end-untimed": "A delivery says when it ended if it has ended, and only then.",
    "delivery-error-missing": "A delivery that did not arrive for certain says why.",
    "delivered-unattempted": "A delivered one was accepted in an attempt, or somebody settled it.",
    "delivered-unreceipted": "A delivered one has a receipt other than a bounce.",
    "attempts-miscounted": "A delivery has as many attempts as it counts, numbered from one on.",
    "attempt-left-open": "No attempt is without an end beyond the grace period.",
    "attempt-orphan": "An attempt belongs to a delivery that exists.",
    "receipt-orphan": "A receipt belongs to a delivery that exists.",
    "key-sent-twice": "Of all deliveries of one key, replays included, the provider accepted one.",
    "delivery-sent-twice": "Of all attempts at one delivery the provider accepted one.",
    "replay-without-lineage": "A replay repeats a delivery that exists, for the same request and channel.",
    "delivery-in-doubt": "A delivery is uncertain and nobody has settled it.",
    "delivery-maybe-twice": "A delivery was accepted, and another attempt at it is in doubt.",
    "lake-misses-rows": "Every row of a table is in the lake.",
    "lake-holds-more": "The lake holds rows that the table does not: retention removed them.",
}
_NOTICES = {"dispatch-line-lost", "delivery-overdue", "delivery-in-doubt", "delivery-maybe-twice", "lake-holds-more"}
RULES: Mapping[str, Rule] = {
    name: Rule(id=name, sentence=sentence, severity=Severity.NOTICE if name in _NOTICES else Severity.ERROR)
    for name, sentence in _SENTENCES.items()
}


def severity_of(rule: Column) -> Column:
    return sf.when(rule.isin(*_NOTICES), sf.lit(Severity.NOTICE.value)).otherwise(sf.lit(Severity.ERROR.value))


HELD, BROKEN, YOUNG = "kept", "broken", "young"


@dataclass(frozen=True, slots=True)
class Check:
    """One rule, in terms of the columns of its subject; `settled` says whether enough time has passed since."""

    rule: str
    broken: Column
    detail: Column  # ids and names of states, nothing else
    applies: Column | None = None  # None: to every subject
    heals: bool = True  # False: time cannot heal a breach, so it counts at once

    def result(self) -> Column:
        breach = is_true(self.broken)
        word = sf.when(breach, sf.lit(BROKEN)).otherwise(sf.lit(HELD))
        if self.heals:
            word = sf.when(is_true(sf.col("settled")), word).otherwise(sf.lit(YOUNG))
        outcome = sf.struct(
            sf.lit(self.rule).alias("rule"), word.alias("result"), sf.when(breach, self.detail).alias("detail")
        )
        return outcome if self.applies is None else sf.when(is_true(self.applies), outcome)


def checked(subjects: DataFrame, checks: Sequence[Check], *, key: str, born: str) -> DataFrame:
    """(key, date, decisions) of each subject."""
    return subjects.select(
        sf.col(key).alias("key"),
        sf.to_date(born).alias("date"),
        sf.array_compact(sf.array(*(check.result() for check in checks))).alias("results"),
    )


def each_result(results: DataFrame) -> DataFrame:
    """(key, date, rule, decision, detail): one row per subject and rule."""
    return results.select("key", "date", sf.explode("results").alias("result")).select("key", "date", "result.*")


def is_true(condition: Column) -> Column:
    """Whether it is known to be so: null is a no."""
    return sf.coalesce(condition, sf.expr("false"))


def ids(values: Column) -> Column:
    """A few ids of a list as one text."""
    return sf.array_join(sf.slice(sf.array_sort(values), 1, 5), " ")


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
        requests.where(within("received_at", window))
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
    state, parsed = sf.col("lifecycle_state"), sf.col("lifecycle_state") == "parsed"
    completed = is_true(sf.col("override_action") == "force_complete")
    reason = sf.concat_ws(" ", state, sf.col("error_class"))
    return [
        Check("request-left-open", _is_open(), state),
        Check("request-end-untimed", _is_open() != sf.col("final_state_at").isNull(), state),
        Check("request-error-mismatch", parsed != sf.col("error_class").isNull(), reason, ~_is_open()),
        Check("request-without-outcome", sf.size("dispatched") == 0, state, parsed & ~completed),
    ]


def _dispatches() -> list[Check]:
    incomplete, lines = sf.size("unlogged") > 0, ids(sf.col("unlogged"))
    # The outcome of a part is stored as it comes, its line after all parts: who dies in between leaves the first alone.
    interrupted = is_true(
        (sf.col("attempts") > 1) | sf.col("not_before").isNotNull() | sf.col("override_action").isNotNull()
    )
    dispatched = ~_is_open() & (sf.size("dispatched") > 0)
    succeeded = ~_is_open() & sf.exists("dispatched", lambda outcome: outcome["success"])
    return [
        Check("dispatch-unlogged", incomplete, lines, dispatched & ~interrupted),
        Check("dispatch-line-lost", incomplete, lines, dispatched & interrupted),
        Check("answer-missing", sf.size("unanswered") > 0, ids(sf.col("unanswered")), succeeded),
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
    return Check(rule, sf.col(name) > 0, detail, heals=False)
