"""How well a window's messages were routed, in slices.

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
from typing import Self

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sf
from pyspark.sql.types import DoubleType, IntegerType, LongType

from butlers.contracts.envelope import invalid
from butlers.pipeline.tables import Table
from butlers.pipeline.tables.routing import SLICE
from butlers.pipeline.transforms.routing_decisions import NONE
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
        Window.partitionBy("text_sha", "by_text").orderBy("received_at", "request_id")
    )
    told = decisions.withColumn("by_text", sf.col("router").isin(*BY_TEXT) & sf.col("decomposition").isNotNull())
    repeated = sf.col("by_text") & sf.col("previous").isNotNull()
    return (
        told.withColumn("previous", previous)
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
    return chosen.withColumn(share, sf.col("n") / sf.sum("n").over(Window.partitionBy(*by))).drop("n")


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
        said = {field.name: arguments[field.name] for field in fields(cls) if field.name in arguments}
        return cls(**{name: number(name, text) for name, text in said.items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    metric: str
    samples: Column
    enough: float
    threshold: float
    breached: Column
    where: Column


def alerts(quality: DataFrame, thresholds: Thresholds) -> DataFrame:
    """One row per figure and slice that is out of bounds."""
    found = [
        sf.when(
            check.where & (check.samples >= check.enough) & check.breached,
            sf.struct(
                sf.lit(check.metric).alias("metric"),
                sf.col(check.metric).alias("value"),
                sf.lit(check.threshold).cast("double").alias("threshold"),
                check.samples.cast("long").alias("samples"),
            ),
        )
        for check in _checks(thresholds)
    ]
    exploded = quality.select(*SLICE, sf.explode(sf.array_compact(sf.array(*found))).alias("alert"))
    return exploded.select("alert.metric", *SLICE, "alert.value", "alert.threshold", "alert.samples")


def _checks(thresholds: Thresholds) -> list[Check]:
    t = thresholds
    decisions, requests, dispatches = sf.col("decisions"), sf.col("requests"), sf.col("dispatches")
    both = sf.least("decisions", "baseline_decisions")
    asked_again = sf.col("repeats") + sf.col("redecided")
    anywhere, whole = sf.lit(True), sf.col("target_butler") == EVERY
    # By router it is always all or nothing.
    mixed = whole & (sf.col("router") == EVERY)
    return [
        _check("correctness", decisions, t.min_decisions, t.min_correctness, anywhere, at_least=True),
        _check("stability", asked_again, t.min_repeats, t.min_stability, whole, at_least=True),
        _check("fallback_rate", decisions, t.min_decisions, t.max_fallback_rate, mixed),
        _check("multi_segment_change", both, t.min_decisions, t.max_multi_segment_change, whole),
        _check("dispatch_failure_rate", dispatches, t.min_decisions, t.max_dispatch_failure_rate, anywhere),
        _check("partial_failure_rate", requests, t.min_decisions, t.max_partial_failure_rate, anywhere),
        _check("total_failure_rate", requests, t.min_decisions, t.max_total_failure_rate, anywhere),
        _check("shift", both, t.min_decisions, t.max_shift, whole),
    ]


def _check(
    metric: str, samples: Column, enough: float, threshold: float, where: Column, *, at_least: bool = False
) -> Check:
    value = sf.col(metric)
    breached = value < threshold if at_least else sf.abs(value) > threshold
    return Check(metric=metric, samples=samples, enough=enough, threshold=threshold, breached=breached, where=where)


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
    zero = {field.name: sf.lit(0).cast(field.dataType) for field in table.columns if _counts(field.dataType)}
    none = {f.name: sf.lit(None).cast("double") for f in table.columns if isinstance(f.dataType, DoubleType)}
    return zero | none


def _counts(kind: object) -> bool:
    return isinstance(kind, LongType | IntegerType)
