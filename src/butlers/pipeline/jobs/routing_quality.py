"""`routing-quality`: how well messages were routed in a window, and an alert where that is worse than it may be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from datetime import datetime
from functools import reduce
from operator import and_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from butlers.contracts.envelope import invalid
from butlers.pipeline.job import Job, JobContext, JobResult, Window
from butlers.pipeline.sinks.merge import merge_into
from butlers.pipeline.sources.postgres import read_table
from butlers.pipeline.tables import Table
from butlers.pipeline.tables.routing import (
    MESSAGES,
    OPERATOR_AUDIT_LOG,
    ROUTING_ALERTS,
    ROUTING_LOG,
    ROUTING_QUALITY,
    SLICE,
)
from butlers.pipeline.transforms.routing_decisions import corrections, decisions, dispatches
from butlers.pipeline.transforms.routing_quality import EVERY, Thresholds, alerts, completed, emptied, quality

DECIDED_FROM = (
    "request_id",
    "received_at",
    "source_channel",
    "routing_output",
    "lifecycle_state",
    "prompt_version",
    "model_version",
    "override",
)
MOST_TOLD = 20  # alerts in the result; all of them are in the table
ARGUMENTS = {
    "baseline_from": "the window to compare with; default: the one of the same length before",
    "baseline_to": "its end",
    **{field.name: f"threshold; default {field.default}" for field in fields(Thresholds)},
}


def run(context: JobContext) -> JobResult:
    thresholds, window = Thresholds.read(context.arguments), context.window
    baseline = baseline_of(window, context.arguments)
    inbox = messages_of(context, window, with_text=True).unionByName(messages_of(context, baseline))
    decided = decisions_of(context, inbox, since=min(window.start, baseline.start)).persist()
    try:
        found = settled(quality(_within(decided, window), _within(decided, baseline)))
    finally:
        decided.unpersist()
    wrong = alerts(found, thresholds).withColumn("state", sf.lit("firing"))
    of_baseline = {"baseline_start": sf.lit(baseline.start), "baseline_end": sf.lit(baseline.end)}
    written = store(context, found.withColumns(of_baseline), ROUTING_QUALITY, gone=emptied(ROUTING_QUALITY))
    written += store(context, wrong, ROUTING_ALERTS, gone={"state": sf.lit("cleared")})
    return _result(found, wrong, written)


def settled(frame: DataFrame) -> DataFrame:
    """A result of a row per slice, as a table of its own: what comes after it does not carry the whole plan along."""
    return frame.sparkSession.createDataFrame(frame.collect(), frame.schema)


def messages_of(context: JobContext, window: Window, *, with_text: bool = False) -> DataFrame:
    """The messages of a window, with nothing of their text but whether two are the same."""
    table = MESSAGES.within(context.schemas.switchboard)
    columns = [*DECIDED_FROM, *(["normalized_text"] if with_text else [])]
    rows = read_table(context.spark, context.dsn, table, columns=columns, window=window)
    sha = sf.sha2("normalized_text", 256) if with_text else sf.lit(None).cast("string")
    return rows.withColumn("text_sha", sha).drop("normalized_text")


def decisions_of(context: JobContext, inbox: DataFrame, *, since: datetime) -> DataFrame:
    """What the router decided about some messages; whatever was done about them later counts."""
    said = corrections(_since(context, OPERATOR_AUDIT_LOG, since))
    return decisions(inbox, dispatches(_since(context, ROUTING_LOG, since), said), said)


def baseline_of(window: Window, arguments: Mapping[str, str]) -> Window:
    """What was said, or the window of the same length before."""
    start, end = arguments.get("baseline_from"), arguments.get("baseline_to")
    if start is None and end is None:
        return Window(start=window.start - (window.end - window.start), end=window.start)
    if start is None or end is None:
        raise invalid("baseline_to" if end is None else "baseline_from", "is missing: a baseline has both ends")
    baseline = Window.parse(start, end)
    if baseline.start < window.end and window.start < baseline.end:
        raise invalid("baseline_to", "the baseline must not overlap the window")
    return baseline


def store(context: JobContext, frame: DataFrame, table: Table, *, gone: Mapping[str, Column], **key: str) -> int:
    """Merge a result of this window, and settle what an earlier run over it had besides."""
    target = table.within(context.schemas.pipeline)
    fixed = {"window_start": context.window.start, "window_end": context.window.end} | key
    before = read_table(context.spark, context.dsn, target)
    for name, value in fixed.items():
        before = before.where(sf.col(name) == sf.lit(value))
    rows = completed(frame.withColumns({name: sf.lit(value) for name, value in fixed.items()}), before, table, gone)
    return merge_into(rows, context.dsn, target, run_id=context.run_id)


def _within(frame: DataFrame, window: Window) -> DataFrame:
    at = sf.col("received_at")
    return frame.where((at >= sf.lit(window.start)) & (at < sf.lit(window.end)))


def _since(context: JobContext, table: Table, start: datetime) -> DataFrame:
    rows = read_table(context.spark, context.dsn, table.within(context.schemas.switchboard))
    return rows.where(sf.col(str(table.time)) >= sf.lit(start))


def _result(found: DataFrame, wrong: DataFrame, written: int) -> JobResult:
    whole = found.where(reduce(and_, (sf.col(name) == EVERY for name in SLICE))).first()
    firing = wrong.orderBy("metric", *SLICE).collect()
    names = ("metric", *SLICE, "value", "threshold", "samples")
    told = [{name: row[name] for name in names} for row in firing[:MOST_TOLD]]
    return JobResult(
        rows_in=whole["requests"] if whole else 0,
        rows_out=written,
        satisfied=not firing,
        details={"alerts": len(firing), "first_alerts": told},
    )


def check(window: Window, arguments: Mapping[str, str]) -> None:
    Thresholds.read(arguments)
    baseline_of(window, arguments)


JOB = Job(
    name="routing-quality",
    about="correctness, stability, fallbacks, failures and drift of routing, by model and prompt version",
    run=run,
    check=check,
    arguments=ARGUMENTS,
)
