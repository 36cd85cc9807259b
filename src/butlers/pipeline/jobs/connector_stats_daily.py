"""connector-stats-daily: `connector_stats_daily` from hours and `connector_fanout_daily` from the inbox, whole days.

The hours are taken as they stand, unless `hours=again` asks for them to be rolled up first, as far back as the
heartbeats are kept whole. Days of connectors are upserted; of the fanout a count that a message left behind when it was
sent elsewhere is deleted as well, except on days whose month has left the inbox: those stand as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import time, timedelta

from butlers.contracts.envelope import invalid
from butlers.pipeline.job import Job, JobContext, JobResult, Tense, Window
from butlers.pipeline.jobs import connector_stats_hourly
from butlers.pipeline.progress import Counted
from butlers.pipeline.sinks.merge import merge_into
from butlers.pipeline.sources.postgres import must_be_whole, read_table, whole_months
from butlers.pipeline.tables import (
    CONNECTOR_FANOUT_DAILY,
    CONNECTOR_STATS_DAILY,
    CONNECTOR_STATS_HOURLY,
    MESSAGE_INBOX,
)
from butlers.pipeline.transforms.connector_stats import daily, fanout

HOURS_REACH = timedelta(days=6)  # a day less than heartbeats are kept
_INBOX_COLUMNS = ("request_id", "received_at", "request_context", "dispatch_outcomes")


def run(context: JobContext) -> JobResult:
    check(context.window, context.arguments)
    must_be_whole(context, CONNECTOR_STATS_HOURLY)
    if context.arguments.get("hours") == "again":
        _roll_hours(context)
    hours, days = _days(context)
    messages, fanned = _fanout(context)
    said = {"from": context.window.start.isoformat(), "to": context.window.end.isoformat()}
    return JobResult(
        rows_in=hours + messages, rows_out=days + fanned, details=said | {"rows": days, "fanout_rows": fanned}
    )


def _roll_hours(context: JobContext) -> None:
    """So that an hour whose run was missed is not missing in its day."""
    window = context.window
    start = max(window.start, window.end - HOURS_REACH)
    connector_stats_hourly.run(replace(context, window=replace(window, start=start)))


def _days(context: JobContext) -> tuple[int, int]:
    source = CONNECTOR_STATS_HOURLY.within(context.schemas.switchboard)
    target = CONNECTOR_STATS_DAILY.within(context.schemas.switchboard)
    seen = Counted("hours")
    hours = read_table(context.spark, context.dsn, source, window=context.window)
    written = merge_into(daily(seen.on(hours)), context.dsn, target, run_id=context.run_id)
    return seen.rows, written


def _fanout(context: JobContext) -> tuple[int, int]:
    source = MESSAGE_INBOX.within(context.schemas.switchboard)
    target = CONNECTOR_FANOUT_DAILY.within(context.schemas.switchboard)
    window = whole_months(context, source)
    if window is None:
        return 0, 0
    seen = Counted("messages")
    inbox = read_table(context.spark, context.dsn, source, columns=_INBOX_COLUMNS, window=window)
    written = merge_into(fanout(seen.on(inbox)), context.dsn, target, run_id=context.run_id, window=window)
    return seen.rows, written


def check(window: Window, arguments: Mapping[str, str]) -> None:
    if arguments.get("hours", "again") != "again":
        raise invalid("hours", "must be again, or be left out")
    for field, moment in (("from", window.start), ("to", window.end)):
        if moment.timetz() != time(tzinfo=moment.tzinfo):
            raise invalid(field, "must be midnight in UTC: a part of a day would replace the result of all of it")


JOB = Job(
    name="connector-stats-daily",
    about="what connectors did on each day of a window, and where the messages of these days went",
    run=run,
    check=check,
    tense=Tense.OVER,
    arguments={"hours": "again: roll up the hours of the window first; left out: take them as they are"},
)
