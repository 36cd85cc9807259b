"""Fill the event lake: what changed since the last time, or everything as it changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from butlers.contracts.envelope import invalid
from butlers.pipeline.job import Job, JobContext, JobResult, Schemas, Tense, Window
from butlers.pipeline.lake.events import Event, chosen_events
from butlers.pipeline.lake.log import LakeState
from butlers.pipeline.lake.stream import EventStream, Trigger, run_streams, seconds, whole
from butlers.pipeline.sources.changes import ROWS_PER_BATCH
from butlers.pipeline.sources.postgres import pruned_until
from butlers.telemetry import get_logger

_HELD_TOO_LONG_S = 60.0
_EVERY = "10s"


def run(context: JobContext) -> JobResult:
    events = chosen_events(context.arguments.get("event"), context.schemas)
    streams = [_stream(context, event, _rows(context.arguments)) for event in events]
    before = run_streams(context.spark, streams, _trigger(context.arguments))
    told = {stream.event.name: _told(then, stream.state()) for stream, then in zip(streams, before, strict=True)}
    appended = sum(counts["rows"] for counts in told.values())
    return JobResult(rows_in=appended, rows_out=appended, details=told | _lag(streams[0]))


def _stream(context: JobContext, event: Event, rows_per_batch: int) -> EventStream:
    return EventStream(
        event=event,
        dsn=context.dsn,
        lake=context.lake,
        rows_per_batch=rows_per_batch,
        pruned_until=pruned_until(context, event.table),
    )


def _rows(arguments: Mapping[str, str]) -> int:
    return whole("batch_rows", arguments.get("batch_rows", str(ROWS_PER_BATCH)), least=1)


def _trigger(arguments: Mapping[str, str]) -> Trigger:
    kind = arguments.get("trigger", "available-now")
    every = arguments.get("every", _EVERY)
    if kind == "available-now":
        return Trigger()
    if kind == "continuous":
        return Trigger(every=f"{round(seconds('every', every) * 1000)} milliseconds")
    raise invalid("trigger", "must be available-now or continuous")


def _told(before: LakeState, now: LakeState) -> dict[str, int]:
    """By the log, not by ourselves: batches may be written by another process than this one (Spark Connect)."""
    added = {"batches": now.batches - before.batches, "rows": now.appended - before.appended}
    return added | {"horizon": now.horizon}


def _lag(stream: EventStream) -> dict[str, Any]:
    """What holds the horizon: a transaction that stays open keeps all later changes out of the lake."""
    held_s = stream.database_horizon().held_s
    if held_s is not None and held_s > _HELD_TOO_LONG_S:
        get_logger(__name__).warning("an open transaction holds the lake back", duration_ms=round(held_s * 1000))
    return {"oldest_open_transaction_s": held_s}


def check(_window: Window, arguments: Mapping[str, str]) -> None:
    chosen_events(arguments.get("event"), Schemas())
    _rows(arguments)
    _trigger(arguments)


JOB = Job(
    name="lake-stream",
    about="fill the event lake from the services' tables, exactly once",
    run=run,
    check=check,
    tense=Tense.NONE,
    arguments={
        "event": "one of heartbeats, requests, routing, deliveries, attempts, receipts; all when left out",
        "trigger": "available-now (what there is, then end) or continuous (until SIGTERM)",
        "every": f"pause between two looks of a continuous run, {_EVERY} when left out",
        "batch_rows": f"about how many rows are written at once, {ROWS_PER_BATCH} when left out",
    },
)
