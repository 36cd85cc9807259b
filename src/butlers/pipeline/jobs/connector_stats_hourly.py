"""connector-stats-hourly: `connector_stats_hourly` of a window of whole hours, from the heartbeats.

Heartbeats from before the window are read too, as far back as the log goes: the first difference within the window
needs the one before it, which may be days old if its process was silent. Results are upserted and never deleted.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from pyspark.sql import functions as sf

from butlers.contracts.envelope import invalid
from butlers.pipeline.job import Job, JobContext, JobResult
from butlers.pipeline.observing import Counted
from butlers.pipeline.sinks.merge import merge_into
from butlers.pipeline.sources.postgres import read_table
from butlers.pipeline.sources.pruned import must_be_whole
from butlers.pipeline.tables import CONNECTOR_HEARTBEAT_LOG, CONNECTOR_STATS_HOURLY
from butlers.pipeline.transforms.hourly import HEARTBEAT_COLUMNS, hourly


def run(context: JobContext) -> JobResult:
    _must_be_hours(context)
    log = CONNECTOR_HEARTBEAT_LOG.within(context.schemas.switchboard)
    target = CONNECTOR_STATS_HOURLY.within(context.schemas.switchboard)
    must_be_whole(context, log)
    assert log.kept is not None
    window = replace(context.window, start=context.window.start - log.kept)
    heartbeats = read_table(context.spark, context.dsn, log, columns=HEARTBEAT_COLUMNS, window=window)
    seen = Counted("heartbeats")
    counted = seen.on(heartbeats, sf.count_if(sf.col("received_at") >= sf.lit(context.window.start)))
    stats = hourly(counted, context.window)
    rows = merge_into(stats, context.dsn, target, run_id=context.run_id)
    said = {"from": context.window.start.isoformat(), "to": context.window.end.isoformat(), "rows": rows}
    return JobResult(rows_in=seen.rows, rows_out=rows, details=said)


def _must_be_hours(context: JobContext) -> None:
    for field, moment in (("from", context.window.start), ("to", context.window.end)):
        if moment != whole_hour(moment):
            raise invalid(field, "must be a whole hour: a part of one would replace the result of all of it")


def whole_hour(moment: datetime) -> datetime:
    return moment.replace(minute=0, second=0, microsecond=0)


JOB = Job(
    name="connector-stats-hourly",
    about="what connectors did in each hour of a window: differences between their heartbeats",
    run=run,
)
