"""`routing-quality`: how well messages were routed in a window, in slices; alerts where it is worse than it may be.

    slice                          of what
    everything
    model and prompt               requests
    router, model and prompt       requests
    source                         requests
    source, model and prompt       requests
    target                         requests that went to this butler, its own dispatches among them
    target, model and prompt       the same

Shift and the change of the share of divided messages look at a baseline of the same router and source, whatever its
versions: a new version has no past of its own, and whether it changed something is the question.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from functools import reduce
from operator import and_
from typing import Self

from pyspark.sql import Column, DataFrame
from pyspark.sql import Window as Over
from pyspark.sql import functions as sf
from pyspark.sql.types import DoubleType, IntegerType, LongType

from butlers.contracts.envelope import invalid
from butlers.pipeline.job import Job, JobContext, JobResult, Window
from butlers.pipeline.sinks.merge import merge_into
from butlers.pipeline.sources.postgres import read_table
from butlers.pipeline.tables import Table
from butlers.pipeline.tables.routing import (
    MESSAGES,
    OPERATOR_AUDIT_LOG,
    ROUTING_ALERTS,
    ROUTING_LOG,
    ROUTING_QUALITY,
    SLICE,
)
from butlers.pipeline.transforms.expressions import within
from butlers.pipeline.transforms.routing_decisions import NONE, corrections, decisions, dispatches
from butlers.switchboard.registry import FALLBACK

EVERY = "*"
BY_TEXT = ("local", "llm", "fallback")  # routers that look at the text and at nothing else
DIGITS = 9  # sums of fractions come out the same whatever their order
VERSIONS = ("model_version", "prompt_version")
SLICES: tuple[tuple[str, ...], ...] = (
    (),
    VERSIONS,
    ("router", *VERSIONS),
    ("source_channel",),
    ("source_channel", *VERSIONS),
)
TARGET_SLICES: tuple[tuple[str, ...], ...] = (("target_butler",), ("target_butler", *VERSIONS))
BASELINE_SLICES: tuple[tuple[str, ...], ...] = ((), ("router",), ("source_channel",))
_PAST = ("router", "source_channel")


def quality(decisions: DataFrame, baseline: DataFrame) -> DataFrame:
    """From the decisions of a window and of its baseline; one row per slice."""
    measured = _measured(decisions)
    by_target = measured.select("*", sf.explode("targets").alias("target")).withColumns(_of_target())
    counts = _counted(_sliced(measured, SLICES).unionByName(_sliced(by_target, TARGET_SLICES), True))
    past = _sliced(_measured(baseline), BASELINE_SLICES)
    rows = counts.join(_shift(_sliced(measured, SLICES), past), on=list(SLICE), how="left")
    return _rated(rows.join(_past_rates(past), on=list(_PAST), how="left"))


def _measured(decisions: DataFrame) -> DataFrame:
    """A request's slice and what it adds to each count."""
    previous = sf.lag("decomposition").over(
        Over.partitionBy("text_sha", "by_text").orderBy("received_at", "request_id")
    )
    marked = decisions.withColumn("by_text", sf.col("router").isin(*BY_TEXT) & sf.col("decomposition").isNotNull())
    repeated = sf.col("by_text") & sf.col("previous").isNotNull()
    return (
        marked.withColumn("previous", previous)
        .withColumn("repeated", repeated)
        .select(
            *(name for name in SLICE if name != "target_butler"),
            "targets",
            "parts",
            *(sf.coalesce(flag.cast("long"), sf.lit(0)).alias(name) for name, flag in _flags().items()),
            sf.size("parts").cast("long").alias("dispatches"),
            _failed(sf.col("parts")).alias("failed_dispatches"),
        )
    )


def _flags() -> dict[str, Column]:
    router, outcome = sf.col("router"), sf.col("outcome")
    return {
        "requests": sf.lit(True),
        "decisions": router != NONE,
        "corrected": sf.col("right_target").isNotNull() & (sf.col("targets") != sf.array("right_target")),
        "fallbacks": router == "fallback",
        "general_chosen": (router != "fallback") & sf.array_contains("targets", FALLBACK),
        "multi_segment": sf.col("segments") > 1,
        "repeats": sf.col("repeated"),
        "repeats_same": sf.col("repeated") & (sf.col("previous") == sf.col("decomposition")),
        "redecided": sf.col("redecided"),
        "redecided_same": sf.col("redecided_same"),
        "partial_failures": outcome == "partial",
        "total_failures": outcome == "total",
    }


def _failed(parts: Column) -> Column:
    return sf.size(sf.filter(parts, lambda part: part["failed"])).cast("long")


def _of_target() -> dict[str, Column]:
    """Of a request that several butlers got, each answers for its own dispatches."""
    own = sf.filter("parts", lambda part: part["target"] == sf.col("target"))
    return {"dispatches": sf.size(own).cast("long"), "failed_dispatches": _failed(own)}


def _sliced(measured: DataFrame, slices: tuple[tuple[str, ...], ...]) -> DataFrame:
    """Each request once per slice that it is in."""
    target = {"target_butler": "target"}
    kinds = [
        sf.struct(*((sf.col(target.get(name, name)) if name in kind else sf.lit(EVERY)).alias(name) for name in SLICE))
        for kind in slices
    ]
    rest = [name for name in measured.columns if name not in SLICE]
    return measured.select(sf.explode(sf.array(*kinds)).alias("slice"), *rest).select("slice.*", *rest)


def _counted(sliced: DataFrame) -> DataFrame:
    names = (*_flags(), "dispatches", "failed_dispatches")
    return sliced.groupBy(*SLICE).agg(*(sf.sum(name).alias(name) for name in names))


def _shares(sliced: DataFrame, by: tuple[str, ...], share: str) -> DataFrame:
    """How often each target was chosen, as a part of all choices."""
    chosen = (
        sliced.select(*by, sf.explode("targets").alias("target")).groupBy(*by, "target").agg(sf.count("*").alias("n"))
    )
    return chosen.withColumn(share, sf.col("n") / sf.sum("n").over(Over.partitionBy(*by))).drop("n")


def _shift(sliced: DataFrame, past: DataFrame) -> DataFrame:
    """The Jensen-Shannon divergence of the targets, in bits: 0 when nothing changed, 1 when nothing is the same."""
    now = _shares(sliced, tuple(SLICE), "p")
    joined = now.join(_shares(past, _PAST, "q"), on=[*_PAST, "target"], how="left").fillna(0.0, ["q"])
    p, q = sf.col("p"), sf.col("q")
    term = p * sf.log2(2 * p / (p + q)) + sf.when(q > 0, q * sf.log2(2 * q / (p + q))).otherwise(0.0)
    # What only the past has adds the whole of its share; so targets that are not chosen any more need no row.
    return joined.groupBy(*SLICE).agg(((sf.sum(term) + 1 - sf.sum("q")) / 2).alias("divergence"))


def _past_rates(past: DataFrame) -> DataFrame:
    return past.groupBy(*_PAST).agg(
        sf.sum("decisions").alias("baseline_decisions"),
        sf.try_divide(sf.sum("multi_segment"), sf.sum("decisions")).alias("past_multi_segment_rate"),
    )


def _rated(rows: DataFrame) -> DataFrame:
    decisions, requests = sf.col("decisions"), sf.col("requests")
    known = sf.col("target_butler") == EVERY  # a target has no distribution of targets
    before = sf.when(known, sf.coalesce("baseline_decisions", sf.lit(0))).otherwise(0)
    asked_again, same = sf.col("repeats") + sf.col("redecided"), sf.col("repeats_same") + sf.col("redecided_same")
    multi = sf.try_divide(sf.col("multi_segment"), decisions)
    return rows.select(
        *SLICE,
        *_flags(),
        "dispatches",
        "failed_dispatches",
        _rate(1 - sf.try_divide(sf.col("corrected"), decisions)).alias("correctness"),
        _rate(sf.try_divide(sf.col("fallbacks"), decisions)).alias("fallback_rate"),
        _rate(multi).alias("multi_segment_rate"),
        _rate(sf.try_divide(same, asked_again)).alias("stability"),
        _rate(sf.try_divide(sf.col("failed_dispatches"), sf.col("dispatches"))).alias("dispatch_failure_rate"),
        _rate(sf.try_divide(sf.col("partial_failures"), requests)).alias("partial_failure_rate"),
        _rate(sf.try_divide(sf.col("total_failures"), requests)).alias("total_failure_rate"),
        before.cast("long").alias("baseline_decisions"),
        _rate(sf.when(before > 0, multi - sf.col("past_multi_segment_rate"))).alias("multi_segment_change"),
        _rate(sf.when(before > 0, sf.abs("divergence"))).alias("shift"),
    )


def _rate(value: Column) -> Column:
    return sf.round(value, DIGITS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    min_decisions: float = 30  # fewer say nothing; of a baseline, too
    min_repeats: float = 20  # the same for what was asked more than once
    min_correctness: float = 0.95
    min_stability: float = 0.9
    max_fallback_rate: float = 0.25
    max_multi_segment_change: float = 0.15  # up or down
    max_dispatch_failure_rate: float = 0.1
    max_partial_failure_rate: float = 0.05
    max_total_failure_rate: float = 0.05
    max_shift: float = 0.1  # bits

    @classmethod
    def read(cls, arguments: Mapping[str, str]) -> Self:
        """The defaults, with what somebody says."""
        return cls(**numbers(arguments, *(field.name for field in fields(cls))))


def alerts(quality: DataFrame, thresholds: Thresholds) -> DataFrame:
    """One row per figure and slice that is out of bounds."""
    exploded = quality.select(*SLICE, sf.explode(sf.array_compact(sf.array(*_alerts(thresholds)))).alias("alert"))
    return exploded.select("alert.metric", *SLICE, "alert.value", "alert.threshold", "alert.samples")


def _alerts(t: Thresholds) -> list[Column]:
    decisions, requests, dispatches = sf.col("decisions"), sf.col("requests"), sf.col("dispatches")
    both = sf.least("decisions", "baseline_decisions")
    asked_again = sf.col("repeats") + sf.col("redecided")
    anywhere, whole = sf.lit(True), sf.col("target_butler") == EVERY
    # By router it is always all or nothing.
    mixed = whole & (sf.col("router") == EVERY)
    few = t.min_decisions
    return [
        _alert("correctness", decisions, few, t.min_correctness, anywhere, at_least=True),
        _alert("stability", asked_again, t.min_repeats, t.min_stability, whole, at_least=True),
        _alert("fallback_rate", decisions, few, t.max_fallback_rate, mixed),
        _alert("multi_segment_change", both, few, t.max_multi_segment_change, whole),
        _alert("dispatch_failure_rate", dispatches, few, t.max_dispatch_failure_rate, anywhere),
        _alert("partial_failure_rate", requests, few, t.max_partial_failure_rate, anywhere),
        _alert("total_failure_rate", requests, few, t.max_total_failure_rate, anywhere),
        _alert("shift", both, few, t.max_shift, whole),
    ]


def _alert(
    metric: str, samples: Column, enough: float, threshold: float, where: Column, *, at_least: bool = False
) -> Column:
    """Null when the figure is within bounds, or when too little was seen to say so."""
    value = sf.col(metric)
    breached = value < threshold if at_least else sf.abs(value) > threshold
    alert = sf.struct(
        sf.lit(metric).alias("metric"),
        value.alias("value"),
        sf.lit(threshold).cast("double").alias("threshold"),
        samples.cast("long").alias("samples"),
    )
    return sf.when(where & (samples >= enough) & breached, alert)


def numbers(arguments: Mapping[str, str], *names: str) -> dict[str, float]:
    """Those of the bounds that somebody typed."""
    return {name: number(name, arguments[name]) for name in names if name in arguments}


def number(name: str, text: str) -> float:
    """What somebody typed for a bound; `inf` is none."""
    try:
        value = float(text)
    except ValueError:
        raise invalid(name, "must be a number") from None
    if not value >= 0:
        raise invalid(name, "must not be negative")
    return value


def completed(found: DataFrame, before: DataFrame, table: Table, gone: Mapping[str, Column]) -> DataFrame:
    """`found`, and what only `before` has, with the values of `gone`."""
    names = table.columns.fieldNames()
    missing = before.join(found.select(*table.key), on=list(table.key), how="left_anti").withColumns(dict(gone))
    return found.select(*names).unionByName(missing.select(*names))


def emptied(table: Table) -> dict[str, Column]:
    """Counts of zero, and rates that are not there."""
    values = ((LongType, 0), (IntegerType, 0), (DoubleType, None))
    return {
        field.name: sf.lit(value).cast(field.dataType)
        for field in table.columns
        for kind, value in values
        if isinstance(field.dataType, kind)
    }


DECIDED_FROM = (
    "request_id",
    "received_at",
    "source_channel",
    "routing_output",
    "lifecycle_state",
    "prompt_version",
    "model_version",
    "override",
)
MOST_SHOWN = 20  # alerts in the result; all of them are in the table
ARGUMENTS = {
    "baseline_from": "the window to compare with; default: the one of the same length before",
    "baseline_to": "its end",
    **{field.name: f"threshold; default {field.default}" for field in fields(Thresholds)},
}


def run(context: JobContext) -> JobResult:
    thresholds, window = Thresholds.read(context.arguments), context.window
    baseline = baseline_of(window, context.arguments)
    inbox = messages_of(context, window, with_text=True).unionByName(messages_of(context, baseline))
    decided = decisions_of(context, inbox, since=min(window.start, baseline.start)).persist()
    try:
        found = settled(
            quality(decided.where(within("received_at", window)), decided.where(within("received_at", baseline)))
        )
    finally:
        decided.unpersist()
    wrong = alerts(found, thresholds).withColumn("state", sf.lit("firing"))
    of_baseline = {"baseline_start": sf.lit(baseline.start), "baseline_end": sf.lit(baseline.end)}
    written = store(context, found.withColumns(of_baseline), ROUTING_QUALITY, gone=emptied(ROUTING_QUALITY))
    written += store(context, wrong, ROUTING_ALERTS, gone={"state": sf.lit("cleared")})
    return _result(found, wrong, written)


def settled(frame: DataFrame) -> DataFrame:
    """A result of a row per slice, as a table of its own: what comes after it does not carry the whole plan along."""
    return frame.sparkSession.createDataFrame(frame.collect(), frame.schema)


def messages_of(context: JobContext, window: Window, *, with_text: bool = False) -> DataFrame:
    """The messages of a window, with nothing of their text but whether two are the same."""
    table = MESSAGES
    columns = [*DECIDED_FROM, *(["normalized_text"] if with_text else [])]
    rows = read_table(context.spark, context.dsn, table, columns=columns, window=window)
    sha = sf.sha2("normalized_text", 256) if with_text else sf.lit(None).cast("string")
    return rows.withColumn("text_sha", sha).drop("normalized_text")


def decisions_of(context: JobContext, inbox: DataFrame, *, since: datetime) -> DataFrame:
    """What the router decided about some messages; whatever was done about them later counts."""
    corrected = corrections(_since(context, OPERATOR_AUDIT_LOG, since))
    return decisions(inbox, dispatches(_since(context, ROUTING_LOG, since), corrected), corrected)


def baseline_of(window: Window, arguments: Mapping[str, str]) -> Window:
    """What was said, or the window of the same length before."""
    start, end = arguments.get("baseline_from"), arguments.get("baseline_to")
    if start is None and end is None:
        return Window(start=window.start - (window.end - window.start), end=window.start)
    if start is None or end is None:
        raise invalid("baseline_to" if end is None else "baseline_from", "is missing: a baseline has both ends")
    baseline = Window.parse(start, end)
    if baseline.start < window.end and window.start < baseline.end:
        raise invalid("baseline_to", "the baseline must not overlap the window")
    return baseline


def store(context: JobContext, frame: DataFrame, table: Table, *, gone: Mapping[str, Column], **key: str) -> int:
    """Merge a result of this window, and settle what an earlier run over it had besides."""
    target = table
    fixed = {"window_start": context.window.start, "window_end": context.window.end} | key
    before = read_table(context.spark, context.dsn, target)
    for name, value in fixed.items():
        before = before.where(sf.col(name) == sf.lit(value))
    rows = completed(frame.withColumns({name: sf.lit(value) for name, value in fixed.items()}), before, table, gone)
    return merge_into(rows, context.dsn, target, run_id=context.run_id)


def _since(context: JobContext, table: Table, start: datetime) -> DataFrame:
    rows = read_table(context.spark, context.dsn, table)
    return rows.where(sf.col(str(table.time)) >= sf.lit(start))


def _result(found: DataFrame, wrong: DataFrame, written: int) -> JobResult:
    whole = found.where(reduce(and_, (sf.col(name) == EVERY for name in SLICE))).first()
    firing = wrong.orderBy("metric", *SLICE).collect()
    names = ("metric", *SLICE, "value", "threshold", "samples")
    shown = [{name: row[name] for name in names} for row in firing[:MOST_SHOWN]]
    return JobResult(
        rows_in=whole["requests"] if whole else 0,
        rows_out=written,
        satisfied=not firing,
        details={"alerts": len(firing), "first_alerts": shown},
    )


def check(window: Window, arguments: Mapping[str, str]) -> None:
    Thresholds.read(arguments)
    baseline_of(window, arguments)


JOB = Job(
    name="routing-quality",
    about="correctness, stability, fallbacks, failures and drift of routing, by model and prompt version",
    run=run,
    check=check,
    arguments=ARGUMENTS,
)
JOBS = (JOB,)
