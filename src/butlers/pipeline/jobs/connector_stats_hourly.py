"""connector-stats-hourly: `connector_stats_hourly` of a window of whole hours, from the heartbeats.

Each heartbeat carries what it added, so the job reads the window and nothing else, and a rerun after pruning gives the
same. Heartbeats from before deltas were stored (decision 0093) are compared here: with those before the window, as far
back as the log goes, and at least a day, which is why a window at the edge of what was pruned is refused for them.
Results are upserted and never deleted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.datasource import IsNotNull, IsNull

from butlers.contracts.envelope import invalid
from butlers.pipeline.connection import transaction
from butlers.pipeline.job import Job, JobContext, JobResult, Tense, Window
from butlers.pipeline.lake.events import HEARTBEATS, chosen_events
from butlers.pipeline.lake.reading import must_hold, read_versions
from butlers.pipeline.progress import Counted
from butlers.pipeline.sinks.merge import merge_into
from butlers.pipeline.sources.postgres import must_be_whole, pruned_until, read_table
from butlers.pipeline.tables import CONNECTOR_HEARTBEAT_LOG, CONNECTOR_STATS_HOURLY, Table
from butlers.pipeline.transforms.connector_stats import COMPARED_COLUMNS, DELTA_COLUMNS, hourly, with_deltas
from butlers.switchboard.connectors.deltas import ADDED

TABLE, LAKE = SOURCES = ("table", "lake")
MARGIN = timedelta(days=1)  # before a window whose heartbeats carry no deltas
_WITHOUT = ADDED[0]  # it is null in a row that carries no deltas, as all of them are


def run(context: JobContext) -> JobResult:
    check(context.window, context.arguments)
    target = CONNECTOR_STATS_HOURLY.within(context.schemas.switchboard)
    from_table = context.arguments.get("source", TABLE) == TABLE
    heartbeats = _in_the_table(context) if from_table else _in_the_lake(context)
    seen = Counted("heartbeats")
    stats = seen.on(hourly(heartbeats, context.window), sf.sum("heartbeat_count"))
    rows = merge_into(stats, context.dsn, target, run_id=context.run_id)
    said = {"from": context.window.start.isoformat(), "to": context.window.end.isoformat(), "rows": rows}
    return JobResult(rows_in=seen.rows, rows_out=rows, details=said)


def _in_the_table(context: JobContext) -> DataFrame:
    log = CONNECTOR_HEARTBEAT_LOG.within(context.schemas.switchboard)
    must_be_whole(context, log)
    if not _has_rows_without_deltas(context, log):
        return read_table(context.spark, context.dsn, log, columns=DELTA_COLUMNS, window=context.window)
    _must_reach_back(context, log)
    stored = read_table(
        context.spark,
        context.dsn,
        log,
        columns=DELTA_COLUMNS,
        window=context.window,
        where=[IsNotNull((_WITHOUT,))],
    )
    older = read_table(
        context.spark,
        context.dsn,
        log,
        columns=(*COMPARED_COLUMNS, "state"),
        window=_reach(context.window),
        where=[IsNull((_WITHOUT,))],
    )
    return stored.unionByName(with_deltas(older).select(*DELTA_COLUMNS))


def _in_the_lake(context: JobContext) -> DataFrame:
    [event] = chosen_events(HEARTBEATS.name, context.schemas)
    state = must_hold(context.lake, event, context.window, dsn=context.dsn)
    stored = read_versions(context.spark, context.lake, event, context.window, state=state)
    if stored.where(sf.col(_WITHOUT).isNull()).isEmpty():  # told by the statistics of the files
        return stored
    versions = read_versions(context.spark, context.lake, event, _reach(context.window), state=state)
    older = versions.where(sf.col(_WITHOUT).isNull()).select(*COMPARED_COLUMNS, "state")
    with_them = stored.where(sf.col(_WITHOUT).isNotNull()).select(*DELTA_COLUMNS)
    return with_them.unionByName(with_deltas(older).select(*DELTA_COLUMNS))


def _has_rows_without_deltas(context: JobContext, log: Table) -> bool:
    """Whether the window has some; an index holds them and nothing else."""
    query = (
        f"SELECT EXISTS (SELECT FROM {log.qualified} WHERE {_WITHOUT} IS NULL AND {log.time} >= $1 AND {log.time} < $2)"
    )
    with transaction(context.dsn) as cursor:
        cursor.execute(query, (context.window.start, context.window.end))
        row = cursor.fetchone()
    return bool(row and row[0])


def _must_reach_back(context: JobContext, log: Table) -> None:
    kept_from = pruned_until(context, log)
    if kept_from is not None and context.window.start < whole_hour(kept_from) + MARGIN:
        oldest = (whole_hour(kept_from) + MARGIN).isoformat()
        raise invalid("from", f"must not be before {oldest}: heartbeats of then were stored without what they added")


def _reach(window: Window) -> Window:
    assert CONNECTOR_HEARTBEAT_LOG.kept is not None
    return replace(window, start=window.start - CONNECTOR_HEARTBEAT_LOG.kept)


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
    about="what connectors did in each hour of a window: sums of what their heartbeats added",
    run=run,
    check=check,
    tense=Tense.OVER,
    reads=lambda arguments: (HEARTBEATS,) if arguments.get("source") == LAKE else (),
    arguments={"source": f"{TABLE} (the log in the database, when left out) or {LAKE} (files: for many connectors)"},
)
