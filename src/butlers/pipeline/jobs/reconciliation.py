"""`reconciliation`: every request ends, every delivery has its evidence, nothing was sent twice.

    lake --latest versions--> results --> pipeline.books, pipeline.books_findings
    tables --ids by day--------^

The record is closed at the newest moment that the lake knows, heartbeats included, and what has moved within the grace
period before it is not checked yet. So it does not matter how far the lake lags behind, nor that something is always
on its way; run it for a day when that day has been over for longer than the grace period, and nothing is left out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from functools import reduce
from typing import Any
from uuid import UUID

from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import Window as Over
from pyspark.sql import functions as sf

from butlers.contracts.envelope import invalid
from butlers.pipeline.job import Job, JobContext, JobResult, Window
from butlers.pipeline.lake.events import ATTEMPTS, DELIVERIES, HEARTBEATS, RECEIPTS, REQUESTS, ROUTING, Event
from butlers.pipeline.lake.reading import read_events
from butlers.pipeline.lake.stream import seconds
from butlers.pipeline.sinks.merge import merge_into
from butlers.pipeline.sources.postgres import read_table
from butlers.pipeline.tables import Table
from butlers.pipeline.tables.deliveries import BOOKS, BOOKS_FINDINGS
from butlers.pipeline.transforms.expressions import within
from butlers.pipeline.transforms.reconciliation import (
    BROKEN,
    RULES,
    YOUNG,
    Severity,
    check_counts,
    check_requests,
    each_result,
    rows_of,
    severity_of,
)
from butlers.pipeline.transforms.reconciliation_deliveries import (
    check_attempts,
    check_deliveries,
    check_receipts,
    check_routing,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The newest version of every row, from before the window to the end of the record."""

    requests: DataFrame
    routing: DataFrame
    deliveries: DataFrame
    attempts: DataFrame
    receipts: DataFrame

    def frames(self) -> tuple[DataFrame, ...]:
        return self.requests, self.routing, self.deliveries, self.attempts, self.receipts


def results(record: Record, *, window: Window, cutoff: datetime, silent: Collection[str]) -> DataFrame:
    """(key, date, decisions) of everything that began in the window."""
    parts = [
        check_requests(record.requests, record.routing, record.deliveries, window=window, cutoff=cutoff, silent=silent),
        check_routing(record.routing, record.requests, window=window, cutoff=cutoff),
        check_deliveries(record.deliveries, record.attempts, record.receipts, window=window, cutoff=cutoff),
        check_attempts(record.attempts, record.deliveries, window=window, cutoff=cutoff),
        check_receipts(record.receipts, record.deliveries, window=window, cutoff=cutoff),
    ]
    return reduce(DataFrame.unionByName, parts)


def newest_moment(record: Record) -> DataFrame:
    """(moment): how far the record reaches; null when there is none."""
    moments = [
        record.requests.select(sf.greatest("received_at", "updated_at").alias("moment")),
        record.routing.select(sf.col("created_at").alias("moment")),
        record.deliveries.select(sf.greatest("created_at", "updated_at").alias("moment")),
        record.attempts.select(sf.greatest("started_at", "completed_at").alias("moment")),
        record.receipts.select(sf.col("received_at").alias("moment")),
    ]
    return reduce(DataFrame.unionByName, moments).agg(sf.max("moment").alias("moment"))


SAMPLES = 5


def reconciliation_findings(results: DataFrame, run_id: UUID) -> DataFrame:
    breaches = each_result(results).filter(sf.col("result") == BROKEN).dropDuplicates(["date", "rule", "key"])
    return breaches.select(
        *("date", "rule", "key"),
        severity_of(sf.col("rule")).alias("severity"),
        sf.coalesce("detail", sf.lit("")).alias("detail"),
        sf.lit(str(run_id)).alias("run_id"),
    )


def samples(findings: DataFrame) -> DataFrame:
    """(rule, keys): the first few of each rule."""
    place = sf.row_number().over(Over.partitionBy("rule").orderBy("date", "key"))
    few = findings.withColumn("place", place).filter(sf.col("place") <= SAMPLES)
    return few.groupBy("rule").agg(sf.array_sort(sf.collect_list("key")).alias("keys"))


def reconciliation_totals(results: DataFrame, run_id: UUID) -> DataFrame:
    result = sf.col("result")
    counted = (
        each_result(results)
        .groupBy("date", "rule")
        .agg(
            sf.count_if(result != YOUNG).alias("checked"),
            sf.count_if(result == BROKEN).alias("broken"),
            sf.count_if(result == YOUNG).alias("young"),
        )
    )
    severity = severity_of(sf.col("rule")).alias("severity")
    return counted.select("date", "rule", severity, "checked", "broken", "young", sf.lit(str(run_id)).alias("run_id"))


GRACE, LOOKBACK = "1h", "30d"
SILENT = ("messenger", "switchboard")
CHECKED = (REQUESTS, ROUTING, DELIVERIES, ATTEMPTS, RECEIPTS)
_LATER = timedelta(days=3660)  # what became of it is looked for until then
_VANISHING = {ATTEMPTS.name: "completed_at IS NULL"}  # a claim that was given back takes its attempt along


def run(context: JobContext) -> JobResult:
    window, grace = _whole_days(context.window), _duration(context.arguments, "grace", GRACE)
    silent = [*SILENT, *filter(None, context.arguments.get("silent", "").split(","))]
    record = _record(context, window)
    persisted: list[DataFrame] = [*record.frames()]
    try:
        closed_at = _closed_at(context, record, window)
        checked = results(record, window=window, cutoff=closed_at - grace, silent=silent)
        checked = reduce(DataFrame.unionByName, _counts(context, record, window, closed_at - grace), checked)
        persisted.append(checked.persist(StorageLevel.DISK_ONLY))
        return _written(
            context, checked, window, {"closed_at": closed_at.isoformat(), "grace_s": grace.total_seconds()}
        )
    finally:
        for frame in persisted:
            frame.unpersist()


def _record(context: JobContext, window: Window) -> Record:
    """Read once: every part of it is looked at several times."""
    reach = Window(start=window.start - _duration(context.arguments, "lookback", LOOKBACK), end=window.end + _LATER)

    def read(event: Event) -> DataFrame:
        return read_events(context.spark, context.lake, event, reach).persist(StorageLevel.DISK_ONLY)

    return Record(**{event.name: read(event) for event in CHECKED})


def _closed_at(context: JobContext, record: Record, window: Window) -> datetime:
    """The newest moment that the lake knows."""
    since = Window(start=window.start, end=window.end + _LATER)
    received = read_events(context.spark, context.lake, HEARTBEATS, since).agg(sf.max("received_at").alias("moment"))
    reached = newest_moment(record).unionByName(received).agg(sf.max("moment").alias("moment"))
    # As a number: what a timestamp becomes on the way to Python depends on the zone of this machine.
    [row] = reached.select(sf.unix_micros("moment").alias("micros")).collect()
    if row["micros"] is None:
        raise invalid("lake", "holds nothing of this time: run lake-stream first")
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=row["micros"])


def _counts(context: JobContext, record: Record, window: Window, cutoff: datetime) -> list[DataFrame]:
    """The lake against the tables, for all that was written before the cutoff."""
    if cutoff <= window.start:
        return []
    until = Window(start=window.start, end=min(window.end, cutoff))
    return [_compared(context, event, frame, until) for event, frame in zip(CHECKED, record.frames(), strict=True)]


def _compared(context: JobContext, event: Event, in_lake: DataFrame, window: Window) -> DataFrame:
    table, key = event.table, event.key
    rows = read_table(context.spark, context.dsn, table, columns=(key, event.born), window=window)
    recent = within(event.born, window)
    return check_counts(
        event.name,
        rows_of(rows, key=key, born=event.born),
        rows_of(in_lake.filter(recent), key=key, born=event.born, vanished=_VANISHING.get(event.name, "false")),
    )


def _written(context: JobContext, checked: DataFrame, window: Window, when: Mapping[str, str | float]) -> JobResult:
    findings, totals = reconciliation_findings(checked, context.run_id), reconciliation_totals(checked, context.run_id)
    written = _merge(context, findings, BOOKS_FINDINGS, window) + _merge(context, totals, BOOKS, window)
    rules = _per_rule(totals)
    broken = {name: one["broken"] for name, one in rules.items() if one["broken"]}
    unbalanced = any(RULES[name].severity is Severity.ERROR for name in broken)
    keys = {row["rule"]: row["keys"] for row in samples(findings).collect()} if broken else {}
    details = {**when, "balanced": not unbalanced, "rules": rules, "samples": keys}
    return JobResult(rows_in=checked.count(), rows_out=written, satisfied=not unbalanced, details=details)


def _merge(context: JobContext, frame: DataFrame, table: Table, window: Window) -> int:
    return merge_into(frame, context.dsn, table, run_id=context.run_id, window=window)


def _per_rule(totals: DataFrame) -> dict[str, dict[str, Any]]:
    counts = ("checked", "broken", "young")
    rows = {
        row["rule"]: row for row in totals.groupBy("rule").agg(*(sf.sum(name).alias(name) for name in counts)).collect()
    }
    return {
        name: {"severity": rule.severity.value, **{count: rows[name][count] for count in counts}}
        for name, rule in RULES.items()
        if name in rows
    }


def _whole_days(window: Window) -> Window:
    for field, moment in (("from", window.start), ("to", window.end)):
        if moment.astimezone(UTC).time() != time():
            raise invalid(field, "must be the beginning of a day in UTC: the record is checked by the day")
    return window


def _duration(arguments: Mapping[str, str], name: str, default: str) -> timedelta:
    return timedelta(seconds=seconds(name, arguments.get(name, default)))


def check(window: Window, arguments: Mapping[str, str]) -> None:
    _whole_days(window)
    _duration(arguments, "grace", GRACE)
    _duration(arguments, "lookback", LOOKBACK)


JOB = Job(
    name="reconciliation",
    about="the record adds up: every request ends, every delivery has its evidence, nothing is sent twice",
    run=run,
    check=check,
    reads=lambda _: (*CHECKED, HEARTBEATS),
    arguments={
        "grace": f"within which something may still be on its way, {GRACE} when left out",
        "lookback": f"how long before the window what it refers to is looked for, {LOOKBACK} when left out",
        "silent": "butlers that answer nobody, separated by commas",
    },
)
JOBS = (JOB,)
