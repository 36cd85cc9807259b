"""The rules of the reconciliation, and the decision per subject and rule, all rules about a subject in one pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from butlers.pipeline.job import Window


class Severity(StrEnum):
    ERROR = "error"
    NOTICE = "notice"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    id: str
    sentence: str
    severity: Severity = Severity.ERROR


def _notice(name: str, sentence: str) -> Rule:
    return Rule(id=name, sentence=sentence, severity=Severity.NOTICE)


_REQUESTS = (
    Rule(id="request-left-open", sentence="A request comes to its end within the grace period."),
    Rule(id="request-end-untimed", sentence="A request says when it ended if it has ended, and only then."),
    Rule(id="request-error-mismatch", sentence="An errored request has an error on record, a parsed one has none."),
    Rule(id="request-without-outcome", sentence="A parsed request was dispatched, or an operator completed it."),
    Rule(id="dispatch-unlogged", sentence="Every dispatch in a request's outcome has its line in the routing log."),
    _notice("dispatch-line-lost", "The same, where a worker died, it was put off, or an operator stopped it."),
    Rule(id="answer-missing", sentence="A butler that dealt with a request has a delivery for the answer."),
    Rule(id="routing-orphan", sentence="A line of the routing log belongs to a request that exists."),
)
_DELIVERIES = (
    Rule(id="delivery-left-open", sentence="No delivery stays in the hand of a worker whose lease is long over."),
    _notice("delivery-overdue", "A delivery that was due before the grace period still waits."),
    Rule(id="delivery-end-untimed", sentence="A delivery says when it ended if it has ended, and only then."),
    Rule(id="delivery-error-missing", sentence="A delivery that did not arrive for certain says why."),
    Rule(id="delivered-unattempted", sentence="A delivered one was accepted in an attempt, or somebody settled it."),
    Rule(id="delivered-unreceipted", sentence="A delivered one has a receipt other than a bounce."),
    Rule(id="attempts-miscounted", sentence="A delivery has as many attempts as it counts, numbered from one on."),
    Rule(id="attempt-left-open", sentence="No attempt is without an end beyond the grace period."),
    Rule(id="attempt-orphan", sentence="An attempt belongs to a delivery that exists."),
    Rule(id="receipt-orphan", sentence="A receipt belongs to a delivery that exists."),
)
_KEYS = (
    Rule(id="key-sent-twice", sentence="Of all deliveries of one key, replays included, the provider accepted one."),
    Rule(id="delivery-sent-twice", sentence="Of all attempts at one delivery the provider accepted one."),
    Rule(
        id="replay-without-lineage",
        sentence="A replay repeats a delivery that exists, for the same request and channel.",
    ),
    _notice("delivery-in-doubt", "A delivery is uncertain and nobody has settled it."),
    _notice("delivery-maybe-twice", "A delivery was accepted, and another attempt at it is in doubt."),
)
_COUNTS = (
    Rule(id="lake-misses-rows", sentence="Every row of a table is in the lake."),
    _notice("lake-holds-more", "The lake holds rows that the table does not: retention removed them."),
)

RULES: Mapping[str, Rule] = MappingProxyType({rule.id: rule for rule in (*_REQUESTS, *_DELIVERIES, *_KEYS, *_COUNTS)})


def of_severity(severity: Severity) -> list[str]:
    return [rule.id for rule in RULES.values() if rule.severity is severity]


KEPT, BROKEN, YOUNG = "kept", "broken", "young"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One rule, in terms of the columns of its subject."""

    rule: str
    broken: Column
    detail: Column  # ids and names of states, nothing else
    applies: Column | None = None  # None: to every subject
    settled: Column | None = None  # None: always, for a rule that time cannot heal

    def result(self) -> Column:
        applies, settled = self.applies, self.settled
        breach = is_true(self.broken)
        word = sf.when(breach, sf.lit(BROKEN)).otherwise(sf.lit(KEPT))
        if settled is not None:
            word = sf.when(is_true(settled), word).otherwise(sf.lit(YOUNG))
        said = sf.struct(
            sf.lit(self.rule).alias("rule"), word.alias("result"), sf.when(breach, self.detail).alias("detail")
        )
        return said if applies is None else sf.when(is_true(applies), said)


def checked(subjects: DataFrame, checks: Sequence[Check], *, key: str, born: str) -> DataFrame:
    """(key, date, decisions) of each subject."""
    return subjects.select(
        sf.col(key).alias("key"),
        sf.to_date(born).alias("date"),
        sf.array_compact(sf.array(*(check.result() for check in checks))).alias("results"),
    )


def born_within(frame: DataFrame, column: str, window: Window) -> DataFrame:
    return frame.filter((sf.col(column) >= sf.lit(window.start)) & (sf.col(column) < sf.lit(window.end)))


def each_result(results: DataFrame) -> DataFrame:
    """(key, date, rule, decision, detail): one row per subject and rule."""
    return results.select("key", "date", sf.explode("results").alias("result")).select("key", "date", "result.*")


def is_true(condition: Column) -> Column:
    """Whether it is known to be so: null is a no."""
    return sf.coalesce(condition, sf.expr("false"))


def ids(values: Column) -> Column:
    """A few ids of a list as one text."""
    return sf.array_join(sf.slice(sf.array_sort(values), 1, 5), " ")
