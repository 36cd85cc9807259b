"""delivery-stats: what became of the deliveries that were asked for in a window, in all and by any properties together.

One row in all, which is there even when nothing was asked for, and one per combination of the properties. The counts
and latencies are those of `messenger_delivery_stats`; rates and percentiles are not rounded here.

    success_rate      delivered / ended         an uncertain delivery has ended and is no success
    dead_letter_rate  dead-lettered / ended
    retry_rate        tried more than once / tried at all
    p50_ms ...        of the delivered, from asking to the end; provider_* of the attempts alone
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Self

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from butlers.contracts.delivery_state import ENDED
from butlers.contracts.envelope import invalid
from butlers.pipeline.job import Job, JobContext, JobResult, Window
from butlers.pipeline.sinks.merge import Place, merge_into
from butlers.pipeline.sources.postgres import read_table
from butlers.pipeline.tables.deliveries import ADMISSION_OUTCOMES, ATTEMPTS, DELIVERIES, DELIVERY_STATS
from butlers.pipeline.transforms.expressions import (
    SHARES,
    elapsed_ms,
    everything,
    hour_text,
    interpolated,
    named,
    rate,
    whole_minutes,
    within,
)

AT_THE_DOOR: Final = ("admitted", "deduplicated", "parked", "rejected")
PROPERTIES: Final[Mapping[str, str]] = {  # by the name that is typed: the column
    "channel": "channel",
    "identity_scope": "identity_scope",
    "intent": "intent",
    "origin_butler": "origin_butler",
    "priority": "priority",
    "outcome": "status",
    "error_class": "terminal_error_class",
    "hour": "created_at",
    "day": "created_at",
}

_PROVIDER_SHARES = {f"provider_{name}": share for name, share in SHARES.items()}
_KEY = ("grouping", "group_values")


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouping:
    properties: tuple[str, ...] = ()  # as they were named, each once; none: in all only

    @classmethod
    def parse(cls, text: str) -> Self:
        names = tuple(name.strip() for name in text.split(",") if name.strip())
        unknown = [name for name in names if name not in PROPERTIES]
        if unknown:
            raise invalid("group_by", f"{unknown[0]} is none of {', '.join(PROPERTIES)}")
        if len(set(names)) < len(names):
            raise invalid("group_by", "names a property twice")
        return cls(properties=names)

    @property
    def text(self) -> str:
        return ",".join(self.properties)

    def values(self) -> Column:
        """The group of a delivery, as one text."""
        return named(**{name: _property(name) for name in self.properties})


def delivery_stats(
    deliveries: DataFrame, attempts: DataFrame, door: DataFrame, *, window: Window, grouping: Grouping
) -> DataFrame:
    grouped = _in_groups(deliveries.where(within("created_at", window)), grouping)
    took = grouped.where(sf.col("status") == "delivered").withColumn("took_ms", elapsed_ms("created_at", "terminal_at"))
    tried = grouped.join(
        attempts.select("delivery_id", "latency_ms"), sf.col("id") == sf.col("delivery_id"), how="inner"
    )
    counted = (
        _counted(grouped)
        .join(interpolated(took, _KEY, "took_ms", SHARES), [*_KEY], how="left")
        .join(interpolated(tried, _KEY, "latency_ms", _PROVIDER_SHARES), [*_KEY], how="left")
        .join(_at_the_door(door, window), [*_KEY], how="left")
    )
    return counted.select(
        sf.lit(window.start).alias("window_start"),
        sf.lit(window.end).alias("window_end"),
        *_KEY,
        *("total", *ENDED, "open", "attempted", "retried"),
        *("success_rate", "dead_letter_rate", "retry_rate"),
        *SHARES,
        *_PROVIDER_SHARES,
        *(f"requests_{outcome}" for outcome in AT_THE_DOOR),
    )


def _in_groups(deliveries: DataFrame, grouping: Grouping) -> DataFrame:
    """Every delivery in the group of all, and in its own if there are others."""
    in_all = deliveries.withColumns({"grouping": sf.lit(""), "group_values": everything()})
    if not grouping.properties:
        return in_all
    return in_all.unionByName(
        deliveries.withColumns({"grouping": sf.lit(grouping.text), "group_values": grouping.values()})
    )


def _counted(grouped: DataFrame) -> DataFrame:
    nothing = grouped.sparkSession.range(1).select(sf.lit("").alias("grouping"), everything().alias("group_values"))
    counted = (
        grouped.unionByName(nothing, allowMissingColumns=True)  # the row in all is always there
        .groupBy(*_KEY)
        .agg(
            sf.count("id").alias("total"),
            *(sf.count_if(sf.col("status") == status).alias(status) for status in ENDED),
            sf.count_if(sf.col("attempts") > 0).alias("attempted"),
            sf.count_if(sf.col("attempts") > 1).alias("retried"),
        )
    )
    ended = sum((sf.col(status) for status in ENDED[1:]), sf.col(ENDED[0]))
    return counted.select(
        "*",
        (sf.col("total") - ended).alias("open"),
        rate(sf.col("delivered"), ended).alias("success_rate"),
        rate(sf.col("dead_lettered"), ended).alias("dead_letter_rate"),
        rate(sf.col("retried"), sf.col("attempted")).alias("retry_rate"),
    )


def _at_the_door(door: DataFrame, window: Window) -> DataFrame:
    """How requests fared before they became deliveries, in all; nothing was counted: unknown."""
    fared = door.where(within("minute", whole_minutes(window)))
    counts = [
        sf.coalesce(sf.sum(sf.when(sf.col("outcome") == outcome, sf.col("requests"))), sf.lit(0)).alias(
            f"requests_{outcome}"
        )
        for outcome in AT_THE_DOOR
    ]
    return fared.groupBy(sf.lit("").alias("grouping"), everything().alias("group_values")).agg(*counts)


def _property(name: str) -> Column:
    if name == "hour":
        return hour_text("created_at")
    return sf.to_date("created_at").cast("string") if name == "day" else sf.col(PROPERTIES[name])


MOST_SHOWN: Final = 50  # groups that fit on a screen


def run(context: JobContext) -> JobResult:
    grouping = Grouping.parse(context.arguments.get("group_by", ""))
    deliveries = _deliveries(context).cache()
    stats = delivery_stats(
        deliveries, _attempts(context), _door(context), window=context.window, grouping=grouping
    ).cache()
    try:
        target = DELIVERY_STATS
        places = _slices(context, grouping)
        written = merge_into(stats, context.dsn, target, run_id=context.run_id, slices=places)
        return JobResult(rows_in=deliveries.count(), rows_out=written, details=_details(stats, written, grouping))
    finally:
        stats.unpersist()
        deliveries.unpersist()


def _deliveries(context: JobContext) -> DataFrame:
    table = DELIVERIES
    columns = ("id", *dict.fromkeys(PROPERTIES.values()), "attempts", "terminal_at")
    return read_table(context.spark, context.dsn, table, columns=columns, window=context.window)


def _attempts(context: JobContext) -> DataFrame:
    table = ATTEMPTS
    return read_table(context.spark, context.dsn, table, columns=("delivery_id", "latency_ms"))


def _door(context: JobContext) -> DataFrame:
    table = ADMISSION_OUTCOMES
    columns = ("minute", "outcome", "requests")
    return read_table(context.spark, context.dsn, table, columns=columns, window=whole_minutes(context.window))


def _slices(context: JobContext, grouping: Grouping) -> list[Place]:
    window: dict[str, str | datetime] = {"window_start": context.window.start, "window_end": context.window.end}
    return [window | {"grouping": name} for name in dict.fromkeys(("", grouping.text))]


def _details(stats: DataFrame, groups: int, grouping: Grouping) -> dict[str, Any]:
    """The groups themselves when they are few, the largest first."""
    shown = [row.asDict() for row in stats.collect()] if groups <= MOST_SHOWN else []
    lines = [{name: _shown(value) for name, value in row.items()} for row in shown]
    ordered = sorted(lines, key=lambda line: (line["grouping"], -line["total"], line["group_values"]))
    return {"group_by": grouping.text, "groups": groups, "stats": ordered}


def _shown(value: Any) -> Any:
    """Spark hands moments over without a zone, in that of this process."""
    return value.astimezone(UTC).isoformat() if isinstance(value, datetime) else value


JOB = Job(
    name="delivery-stats",
    about="counts, rates and exact percentiles of the deliveries of a window, by any properties",
    run=run,
    check=lambda _, arguments: Grouping.parse(arguments.get("group_by", "")),
    arguments={"group_by": f"properties with commas between them, of {', '.join(PROPERTIES)}; none: in all only"},
)
JOBS = (JOB,)
