"""connector-stats-hourly: `connector_stats_hourly` of a window of whole hours, from the heartbeats.

Heartbeats from before the window are read too, as far back as the log goes: the first difference within the window
needs the one before it, which may be days old if its process was silent. Results are upserted and never deleted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from butlers.contracts.envelope import invalid
from butlers.pipeline.job import Job, JobContext, JobResult, Tense
from butlers.pipeline.lake.events import HEARTBEATS, chosen_events
from butlers.pipeline.lake.hourly_files import hourly_of_files
from butlers.pipeline.lake.reading import read_versions
from butlers.pipeline.lake.wholeness import must_hold
from butlers.pipeline.observing import Counted
from butlers.pipeline.sinks.merge import merge_into
from butlers.pipeline.sources.postgres import read_table
from butlers.pipeline.sources.pruned import must_be_whole
from butlers.pipeline.tables import CONNECTOR_HEARTBEAT_LOG, CONNECTOR_STATS_HOURLY, Table
from butlers.pipeline.transforms.hourly import HEARTBEAT_COLUMNS, hourly
from butlers.pipeline.windows import Window

TABLE, LAKE = SOURCES = ("table", "lake")


def run(context: JobContext) -> JobResult:
    check(context.window, context.arguments)
    target = CONNECTOR_STATS_HOURLY.within(context.schemas.switchboard)
    seen = Counted("heartbeats")
    with _stats(context, seen) as stats:
        rows = merge_into(stats, context.dsn, target, run_id=context.run_id)
    said = {"from": context.window.start.isoformat(), "to": context.window.end.isoformat(), "rows": rows}
    return JobResult(rows_in=seen.rows, rows_out=rows, details=said)


@contextmanager
def _stats(context: JobContext, seen: Counted) -> Iterator[DataFrame]:
    log = CONNECTOR_HEARTBEAT_LOG.within(context.schemas.switchboard)
    assert log.kept is not None
    reach = replace(context.window, start=context.window.start - log.kept)
    if context.arguments.get("source", TABLE) == TABLE:
        yield _of_table(context, log, reach, seen)
        return
    with hourly_of_files(_in_the_lake(context, reach), context.window) as stats:
        # Files are folded where they lie, so what is counted is what they added.
        yield seen.on(stats, sf.sum("heartbeat_count"))


def _of_table(context: JobContext, log: Table, reach: Window, seen: Counted) -> DataFrame:
    must_be_whole(context, log)
    heartbeats = read_table(context.spark, context.dsn, log, columns=HEARTBEAT_COLUMNS, window=reach)
    within = sf.count_if(sf.col("received_at") >= sf.lit(context.window.start))
    return hourly(seen.on(heartbeats, within), context.window)


def _in_the_lake(context: JobContext, reach: Window) -> DataFrame:
    [event] = chosen_events(HEARTBEATS.name, context.schemas)
    state = must_hold(context.lake, event, context.window, dsn=context.dsn)
    return read_versions(context.spark, context.lake, event, reach, state=state)


def check(window: Window, arguments: Mapping[str, str]) -> None:
    if arguments.get("source", TABLE) not in SOURCES:
        raise invalid("source", f"must be one of {', '.join(SOURCES)}")
    for field, moment in (("from", window.start), ("to", window.end)):
        if moment != whole_hour(moment):
            raise invalid(field, "must be a whole hour: a part of one would replace the result of all of it")


def whole_hour(moment: datetime) -> datetime:
    return moment.replace(minute=0, second=0, microsecond=0)


JOB = Job(
    name="connector-stats-hourly",
    about="what connectors did in each hour of a window: differences between their heartbeats",
    run=run,
    check=check,
    tense=Tense.OVER,
    reads=lambda arguments: (HEARTBEATS,) if arguments.get("source") == LAKE else (),
    arguments={"source": f"{TABLE} (the log in the database, when left out) or {LAKE} (files: for big fleets)"},
)
