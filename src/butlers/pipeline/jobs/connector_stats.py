"""The three jobs about what connectors did: by hour, by day, and the end of what is no longer kept.

    connector-stats-hourly    heartbeats of whole hours -> connector_stats_hourly
    connector-stats-daily     hours of whole days -> connector_stats_daily; inbox -> connector_fanout_daily
    connector-stats-pruning   rows and months that are older than they are kept, as seen from the end of the window

Each heartbeat carries what it added, so an hour's run reads the window and nothing else, and a rerun after pruning
gives the same. Heartbeats from before deltas were stored (decision 0093) are compared here: with those before the
window, as far back as the log goes, and at least a day, which is why a window at the edge of what was pruned is refused
for them.

Results are upserted and never deleted, with one exception: a count of the fanout that a message left behind when it was
sent elsewhere. Days whose month has left the inbox stand as they are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.datasource import IsNotNull, IsNull

from butlers.contracts.envelope import invalid
from butlers.pipeline.connection import fetch_value, transaction
from butlers.pipeline.job import Job, JobContext, JobResult, Tense, Window
from butlers.pipeline.lake.events import HEARTBEATS
from butlers.pipeline.lake.reading import must_hold, read_versions
from butlers.pipeline.progress import Counted
from butlers.pipeline.schema import SCHEMA
from butlers.pipeline.sinks.merge import merge_into
from butlers.pipeline.sources.postgres import must_be_whole, pruned_until, read_table, whole_months
from butlers.pipeline.tables import (
    CONNECTOR_FANOUT_DAILY,
    CONNECTOR_HEARTBEAT_LOG,
    CONNECTOR_PROCESSES,
    CONNECTOR_STATS_DAILY,
    CONNECTOR_STATS_HOURLY,
    MESSAGE_INBOX,
    TYPES,
    Table,
)
from butlers.pipeline.transforms.connector_stats import (
    COMPARED_COLUMNS,
    DELTA_COLUMNS,
    daily,
    fanout,
    hourly,
    with_deltas,
)
from butlers.storage.database import Database, Executor
from butlers.storage.queries import quote_identifier
from butlers.storage.retention import drop_month_partitions_before, list_month_partitions
from butlers.switchboard.connectors.deltas import ADDED
from butlers.telemetry import get_logger

TABLE, LAKE = SOURCES = ("table", "lake")
MARGIN = timedelta(days=1)  # before a window whose heartbeats carry no deltas
HOURS_REACH = timedelta(days=6)  # a day less than heartbeats are kept
_WITHOUT = ADDED[0]  # it is null in a row that carries no deltas, as all of them are
_INBOX_COLUMNS = ("request_id", "received_at", "request_context", "dispatch_outcomes")
PRUNED: Final = (
    CONNECTOR_HEARTBEAT_LOG,
    CONNECTOR_STATS_HOURLY,
    CONNECTOR_STATS_DAILY,
    CONNECTOR_FANOUT_DAILY,
    CONNECTOR_PROCESSES,
)


def roll_hours(context: JobContext) -> JobResult:
    _check_hours(context.window, context.arguments)
    from_table = context.arguments.get("source", TABLE) == TABLE
    heartbeats = _in_the_table(context) if from_table else _in_the_lake(context)
    seen = Counted("heartbeats")
    stats = seen.on(hourly(heartbeats, context.window), sf.sum("heartbeat_count"))
    rows = merge_into(stats, context.dsn, CONNECTOR_STATS_HOURLY, run_id=context.run_id)
    return JobResult(rows_in=seen.rows, rows_out=rows, details=context.window.describe() | {"rows": rows})


def _in_the_table(context: JobContext) -> DataFrame:
    log, window = CONNECTOR_HEARTBEAT_LOG, context.window
    must_be_whole(context, log)
    if not _has_rows_without_deltas(context):
        return read_table(context.spark, context.dsn, log, columns=DELTA_COLUMNS, window=window)
    retained_from = pruned_until(context, log)
    if retained_from is not None and window.start < (oldest := whole_hour(retained_from) + MARGIN):
        raise invalid(
            "from", f"must not be before {oldest.isoformat()}: heartbeats of then were stored without what they added"
        )
    with_them, without = [IsNotNull((_WITHOUT,))], [IsNull((_WITHOUT,))]
    compared = (*COMPARED_COLUMNS, "state")
    stored = read_table(context.spark, context.dsn, log, columns=DELTA_COLUMNS, window=window, where=with_them)
    older = read_table(context.spark, context.dsn, log, columns=compared, window=_reach(window), where=without)
    return stored.unionByName(with_deltas(older).select(*DELTA_COLUMNS))


def _in_the_lake(context: JobContext) -> DataFrame:
    state = must_hold(context.lake, HEARTBEATS, context.window, dsn=context.dsn)
    stored = read_versions(context.spark, context.lake, HEARTBEATS, context.window, state=state)
    if stored.where(sf.col(_WITHOUT).isNull()).isEmpty():  # told by the statistics of the files
        return stored
    versions = read_versions(context.spark, context.lake, HEARTBEATS, _reach(context.window), state=state)
    older = versions.where(sf.col(_WITHOUT).isNull()).select(*COMPARED_COLUMNS, "state")
    with_them = stored.where(sf.col(_WITHOUT).isNotNull()).select(*DELTA_COLUMNS)
    return with_them.unionByName(with_deltas(older).select(*DELTA_COLUMNS))


def _has_rows_without_deltas(context: JobContext) -> bool:
    """Whether the window has some; an index holds them and nothing else."""
    log = CONNECTOR_HEARTBEAT_LOG
    query = (
        f"SELECT EXISTS (SELECT FROM {log.qualified} WHERE {_WITHOUT} IS NULL AND {log.time} >= $1 AND {log.time} < $2)"
    )
    with transaction(context.dsn) as cursor:
        return bool(fetch_value(cursor, query, (context.window.start, context.window.end)))


def _reach(window: Window) -> Window:
    return replace(window, start=_retained_from(CONNECTOR_HEARTBEAT_LOG, window.start))


def _retained_from(table: Table, moment: datetime) -> datetime:
    """The oldest that is kept of a table, seen from a moment."""
    assert table.retention is not None
    return moment - table.retention


def _check_hours(window: Window, arguments: Mapping[str, str]) -> None:
    if arguments.get("source", TABLE) not in SOURCES:
        raise invalid("source", f"must be one of {', '.join(SOURCES)}")
    for field, moment in (("from", window.start), ("to", window.end)):
        if moment != whole_hour(moment):
            raise invalid(field, "must be a whole hour: a part of one would replace the result of all of it")


def whole_hour(moment: datetime) -> datetime:
    return moment.replace(minute=0, second=0, microsecond=0)


def roll_days(context: JobContext) -> JobResult:
    """Takes the hours as they stand, unless they are to be rolled up again: a missed one is not missing in its day."""
    window = context.window
    _check_days(window, context.arguments)
    must_be_whole(context, CONNECTOR_STATS_HOURLY)
    if context.arguments.get("hours") == "again":
        start = max(window.start, window.end - HOURS_REACH)
        roll_hours(replace(context, window=replace(window, start=start)))
    seen = Counted("hours")
    hours = seen.on(read_table(context.spark, context.dsn, CONNECTOR_STATS_HOURLY, window=window))
    days = merge_into(daily(hours), context.dsn, CONNECTOR_STATS_DAILY, run_id=context.run_id)
    messages, fanned = _fanout(context)
    return JobResult(
        rows_in=seen.rows + messages,
        rows_out=days + fanned,
        details=window.describe() | {"rows": days, "fanout_rows": fanned},
    )


def _fanout(context: JobContext) -> tuple[int, int]:
    window = whole_months(context, MESSAGE_INBOX)
    if window is None:
        return 0, 0
    seen = Counted("messages")
    inbox = read_table(context.spark, context.dsn, MESSAGE_INBOX, columns=_INBOX_COLUMNS, window=window)
    counts = fanout(seen.on(inbox))
    written = merge_into(counts, context.dsn, CONNECTOR_FANOUT_DAILY, run_id=context.run_id, window=window)
    return seen.rows, written


def _check_days(window: Window, arguments: Mapping[str, str]) -> None:
    if arguments.get("hours", "again") != "again":
        raise invalid("hours", "must be again, or be left out")
    for field, moment in (("from", window.start), ("to", window.end)):
        if moment.timetz() != time(tzinfo=moment.tzinfo):
            raise invalid(field, "must be midnight in UTC: a part of a day would replace the result of all of it")


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    table: str
    rows: int
    before: datetime
    oldest: datetime | None = None
    newest: datetime | None = None
    partition: str | None = None

    def describe(self) -> dict[str, Any]:
        """As the service's own job says it: a month by its name, a day by its date."""
        place = {"partition": self.partition} if self.partition else {}
        moments = {"oldest": self._text(self.oldest), "newest": self._text(self.newest)}
        return {"table": self.table, **place, "rows": self.rows, **moments}

    def _text(self, moment: datetime | None) -> str | None:
        if moment is None:
            return None
        if self.partition:
            return f"{moment:%Y-%m}"
        return moment.date().isoformat() if self.table.endswith("_daily") else moment.isoformat()


def prune(context: JobContext) -> JobResult:
    """Needs no Spark: the rows never leave the server."""
    removed = asyncio.run(_prune(context))
    described = [what.describe() for what in removed]
    for line in described:
        if line["rows"]:
            fields = {name: str(value) for name, value in line.items() if name != "rows"}
            get_logger("butlers.pipeline").info("connector statistics pruned", count=line["rows"], **fields)
    return JobResult(rows_in=sum(what.rows for what in removed), rows_out=0, details={"removed": described})


async def _prune(context: JobContext) -> list[Removed]:
    """Months that are over are dropped, under the rules of `storage/retention.py`, and other old rows deleted; each
    removal together with the entry that says so, in one transaction.
    """
    end, removed = context.window.end, []
    async with await Database.connect(context.dsn, max_size=1) as database:
        async with database.transaction() as connection:
            before = _retained_from(CONNECTOR_HEARTBEAT_LOG, end)
            for what in await _drop_months(connection, CONNECTOR_HEARTBEAT_LOG, before):
                await _log(connection, context, what)
                removed.append(what)
        for table in PRUNED:
            async with database.transaction() as connection:
                what = await _delete_rows(connection, table, _retained_from(table, end))
                await _log(connection, context, what)
            removed.append(what)
    return removed


async def _delete_rows(connection: Executor, table: Table, before: datetime) -> Removed:
    """Delete the rows of before a moment; of a table of days, those of before its day."""
    column = quote_identifier(str(table.time))
    by_day = table.columns[str(table.time)].dataType == TYPES["date"]
    row = await connection.fetchrow(
        f"WITH gone AS (DELETE FROM {table.qualified} WHERE {column} < $1 RETURNING {column} AS at)"
        " SELECT count(*), min(at), max(at) FROM gone",
        before.date() if by_day else before,
    )
    rows, oldest, newest = tuple(row) if row else (0, None, None)
    cut = _moment(before.date()) if by_day else before
    return Removed(table=table.name, rows=rows, before=cut, oldest=_moment(oldest), newest=_moment(newest))


async def _drop_months(connection: Executor, table: Table, before: datetime) -> list[Removed]:
    """Drop the months that ended before a moment's month; from when to when their rows are is read first."""
    column, reach = quote_identifier(str(table.time)), {}
    for month in await list_month_partitions(connection, table.schema, table.name):
        if month.month < before.date().replace(day=1):
            name = f"{quote_identifier(table.schema)}.{quote_identifier(month.name)}"
            row = await connection.fetchrow(f"SELECT min({column}), max({column}) FROM {name}")
            reach[month.name] = tuple(row) if row else (None, None)
    dropped = await drop_month_partitions_before(connection, table.schema, table.name, before.date())
    return [
        Removed(
            table=table.name,
            partition=month.name,
            rows=month.rows,
            before=before,
            oldest=reach[month.name][0],
            newest=reach[month.name][1],
        )
        for month in dropped
    ]


async def _log(connection: Executor, context: JobContext, removed: Removed) -> None:
    await connection.execute(
        f"INSERT INTO {SCHEMA}.pruning_log (run_id, job, table_name, partition_name, rows, oldest, newest, before)"
        " VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
        *(context.run_id, PRUNING.name, removed.table, removed.partition),
        *(removed.rows, removed.oldest, removed.newest, removed.before),
    )


def _moment(at: datetime | date | None) -> Any:
    return datetime.combine(at, time(), UTC) if at is not None and not isinstance(at, datetime) else at


HOURLY = Job(
    name="connector-stats-hourly",
    about="what connectors did in each hour of a window: sums of what their heartbeats added",
    run=roll_hours,
    check=_check_hours,
    tense=Tense.OVER,
    reads=lambda arguments: (HEARTBEATS,) if arguments.get("source") == LAKE else (),
    arguments={"source": f"{TABLE} (the log in the database, when left out) or {LAKE} (files: for many connectors)"},
)
DAILY = Job(
    name="connector-stats-daily",
    about="what connectors did on each day of a window, and where the messages of these days went",
    run=roll_days,
    check=_check_days,
    tense=Tense.OVER,
    arguments={"hours": "again: roll up the hours of the window first; left out: take them as they are"},
)
PRUNING = Job(
    name="connector-stats-pruning",
    about="remove heartbeats and statistics of connectors that are older than they are kept, and log what was removed",
    run=prune,
    tense=Tense.OVER,
)
JOBS = (HOURLY, DAILY, PRUNING)
