"""Which figures of `routing_quality` are worse than they may be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Self

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from butlers.contracts.envelope import invalid
from butlers.pipeline.table_contracts.routing import SLICE
from butlers.pipeline.transforms.routing_quality import EVERY


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
