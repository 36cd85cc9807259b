"""delivery-stats: what became of the deliveries of a window, by any properties; exact percentiles."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from pyspark.sql import DataFrame

from butlers.pipeline.job import Job, JobContext, JobResult
from butlers.pipeline.sinks.merge import Place, merge_into
from butlers.pipeline.sources.postgres import read_table
from butlers.pipeline.tables.deliveries import ADMISSION_OUTCOMES, ATTEMPTS, DELIVERIES
from butlers.pipeline.tables.service_levels import DELIVERY_STATS
from butlers.pipeline.transforms.delivery_stats import PROPERTIES, Grouping, delivery_stats
from butlers.pipeline.transforms.expressions import whole_minutes

MOST_SHOWN: Final = 50  # groups that fit on a screen


def run(context: JobContext) -> JobResult:
    grouping = Grouping.parse(context.arguments.get("group_by", ""))
    deliveries = _deliveries(context).cache()
    stats = delivery_stats(
        deliveries, _attempts(context), _door(context), window=context.window, grouping=grouping
    ).cache()
    try:
        target = DELIVERY_STATS.within(context.schemas.pipeline)
        places = _slices(context, grouping)
        written = merge_into(stats, context.dsn, target, run_id=context.run_id, slices=places)
        return JobResult(rows_in=deliveries.count(), rows_out=written, details=_details(stats, written, grouping))
    finally:
        stats.unpersist()
        deliveries.unpersist()


def _deliveries(context: JobContext) -> DataFrame:
    table = DELIVERIES.within(context.schemas.messenger)
    columns = ("id", *dict.fromkeys(PROPERTIES.values()), "attempts", "terminal_at")
    return read_table(context.spark, context.dsn, table, columns=columns, window=context.window)


def _attempts(context: JobContext) -> DataFrame:
    table = ATTEMPTS.within(context.schemas.messenger)
    return read_table(context.spark, context.dsn, table, columns=("delivery_id", "latency_ms"))


def _door(context: JobContext) -> DataFrame:
    table = ADMISSION_OUTCOMES.within(context.schemas.messenger)
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
