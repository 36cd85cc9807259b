"""The three jobs about the event lake: fill it, write its small files together, take out days that are old enough."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from butlers.contracts.envelope import invalid
from butlers.errors import InternalError
from butlers.pipeline.job import Job, JobContext, JobResult, Tense, Window
from butlers.pipeline.lake.events import CHANGE, Event, chosen_events
from butlers.pipeline.lake.files import discard, publish, stage, sweep, touch
from butlers.pipeline.lake.log import Commit, LakeFile, LakeLog, LakeState
from butlers.pipeline.lake.reading import read_files
from butlers.pipeline.lake.stream import EventStream, Trigger, explaining, run_streams, seconds, whole
from butlers.pipeline.sources.changes import ROWS_PER_BATCH
from butlers.pipeline.sources.postgres import pruned_until
from butlers.telemetry import get_logger

TARGET_BYTES = 128 * 1024 * 1024
_HELD_TOO_LONG_S = 60.0
_EVERY, _GRACE, _KEEP_DAYS = "10s", "1h", "365"


def stream(context: JobContext) -> JobResult:
    """What changed since the last time, or everything as it changes."""
    rows_per_batch, trigger = _stream_arguments(context.arguments)
    streams = [
        EventStream(
            event=event,
            dsn=context.dsn,
            lake=context.lake,
            rows_per_batch=rows_per_batch,
            pruned_until=pruned_until(context, event.table),
        )
        for event in chosen_events(context.arguments.get("event"))
    ]
    before = run_streams(context.spark, streams, trigger)
    added = {stream.event.name: _added(then, stream.state()) for stream, then in zip(streams, before, strict=True)}
    appended = sum(counts["rows"] for counts in added.values())
    return JobResult(rows_in=appended, rows_out=appended, details=added | _lag(streams[0]))


def _stream_arguments(arguments: Mapping[str, str]) -> tuple[int, Trigger]:
    rows = whole("batch_rows", arguments.get("batch_rows", str(ROWS_PER_BATCH)), least=1)
    kind, every = arguments.get("trigger", "available-now"), arguments.get("every", _EVERY)
    if kind == "available-now":
        return rows, Trigger()
    if kind == "continuous":
        return rows, Trigger(every=f"{round(seconds('every', every) * 1000)} milliseconds")
    raise invalid("trigger", "must be available-now or continuous")


def _added(before: LakeState, now: LakeState) -> dict[str, int]:
    """By the log, not by ourselves: batches may be written by another process than this one (Spark Connect)."""
    added = {"batches": now.batches - before.batches, "rows": now.appended - before.appended}
    return added | {"horizon": now.horizon}


def _lag(stream: EventStream) -> dict[str, Any]:
    """What holds the horizon: a transaction that stays open keeps all later changes out of the lake."""
    held_s = stream.database_horizon().held_s
    if held_s is not None and held_s > _HELD_TOO_LONG_S:
        get_logger(__name__).warning("an open transaction holds the lake back", duration_ms=round(held_s * 1000))
    return {"oldest_open_transaction_s": held_s}


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactedDay:
    date: str
    files_before: int
    files_after: int
    rows: int


def compact(context: JobContext) -> JobResult:
    """Few large files in the days of the window, and an end to files that nobody needs any more."""
    target, grace_s = _compact_arguments(context.arguments)
    dates = [day.isoformat() for day in context.window.days()]
    details: dict[str, Any] = {}
    rows = 0
    for event, folder in _existing(context):
        with explaining():
            done = compact_days(context.spark, folder, event, dates, target_bytes=target)
        rows += sum(day.rows for day in done)
        details[event.name] = {
            "days": [asdict(day) for day in done],
            "files_deleted": sweep(folder, grace_s=grace_s),
        }
    return JobResult(rows_in=rows, rows_out=rows, details=details)


def _existing(context: JobContext) -> list[tuple[Event, Path]]:
    chosen = [(event, context.lake / event.name) for event in chosen_events(context.arguments.get("event"))]
    return [(event, folder) for event, folder in chosen if LakeLog(folder).exists]


def _compact_arguments(arguments: Mapping[str, str]) -> tuple[int, float]:
    target = whole("target_bytes", arguments.get("target_bytes", str(TARGET_BYTES)), least=1)
    return target, seconds("grace", arguments.get("grace", _GRACE))


def compact_days(
    spark: SparkSession, folder: Path, event: Event, dates: Iterable[str], *, target_bytes: int = TARGET_BYTES
) -> list[CompactedDay]:
    """Compact the days named; those with nothing to gain are left alone."""
    by_date: dict[str, list[LakeFile]] = defaultdict(list)
    for file in LakeLog(folder).state().files.values():
        if file.bytes < target_bytes:
            by_date[file.date].append(file)
    done = []
    for day in sorted(set(dates) & by_date.keys()):
        small = by_date[day]
        needed = -(-sum(file.bytes for file in small) // target_bytes)
        if len(small) > needed and (compacted := _compact_day(spark, folder, event, small, needed)):
            done.append(compacted)
    return done


def _compact_day(
    spark: SparkSession, folder: Path, event: Event, small: Sequence[LakeFile], needed: int
) -> CompactedDay | None:
    fewer = read_files(spark, folder, event, small).coalesce(needed).sortWithinPartitions(event.born, CHANGE)
    large = publish(stage(fewer, folder), folder)
    before, after = (sum(file.rows for file in files) for files in (small, large))
    if before != after:
        discard(large, folder)
        raise InternalError(f"{folder}: {before} rows became {after} in compaction, so nothing was changed")
    paths = tuple(file.path for file in small)
    touch(paths, folder)

    def exchange(state: LakeState) -> Commit | None:
        return Commit(kind="compact", add=large, remove=paths) if state.files.keys() >= set(paths) else None

    if LakeLog(folder).commit(exchange) is None:
        discard(large, folder)
        return None
    return CompactedDay(date=small[0].date, files_before=len(small), files_after=len(large), rows=after)


def retain(context: JobContext) -> JobResult:
    """Whole days leave the lake: those that ended more than a number of days before the window's end."""
    keep_days, grace_s = _retain_arguments(context.arguments)
    since = (context.window.end - timedelta(days=keep_days)).date()
    details: dict[str, Any] = {"kept_since": since.isoformat()}
    rows = 0
    for event, folder in _existing(context):
        removed = take_out(folder, since=since)
        for day, count in removed.items():
            get_logger(__name__).info("day removed from the lake", table=event.name, partition=day, count=count)
        rows += sum(removed.values())
        details[event.name] = {"days": removed, "files_deleted": sweep(folder, grace_s=grace_s)}
    return JobResult(rows_in=rows, rows_out=0, details=details)


def _retain_arguments(arguments: Mapping[str, str]) -> tuple[int, float]:
    days = whole("keep_days", arguments.get("keep_days", _KEEP_DAYS), least=1)
    return days, seconds("grace", arguments.get("grace", _GRACE))


def take_out(folder: Path, *, since: date) -> dict[str, int]:
    """Take out every day before one; returns the days with the rows that each one held."""
    taken: list[LakeFile] = []

    def take(state: LakeState) -> Commit | None:
        taken[:] = [file for file in state.files.values() if file.date < since.isoformat()]
        paths = tuple(file.path for file in taken)
        touch(paths, folder)
        return Commit(kind="retain", remove=paths, since=since.isoformat()) if paths else None

    LakeLog(folder).commit(take)
    rows: Counter[str] = Counter()
    for file in taken:
        rows[file.date] += file.rows
    return dict(sorted(rows.items()))


def _check(read: Any) -> Any:
    """Refuses an unknown event, and what `read` refuses of the other arguments."""

    def check(_window: Window, arguments: Mapping[str, str]) -> None:
        chosen_events(arguments.get("event"))
        read(arguments)

    return check


_ONE_EVENT = "one kind of events; all when left out"
STREAM = Job(
    name="lake-stream",
    about="fill the event lake from the services' tables, exactly once",
    run=stream,
    check=_check(_stream_arguments),
    tense=Tense.NONE,
    arguments={
        "event": "one of heartbeats, requests, routing, deliveries, attempts, receipts; all when left out",
        "trigger": "available-now (what there is, then end) or continuous (until SIGTERM)",
        "every": f"pause between two looks of a continuous run, {_EVERY} when left out",
        "batch_rows": f"about how many rows are written at once, {ROWS_PER_BATCH} when left out",
    },
)
COMPACT = Job(
    name="lake-compact",
    about="write the small files of the event lake together, day by day",
    run=compact,
    check=_check(_compact_arguments),
    arguments={
        "event": _ONE_EVENT,
        "target_bytes": f"size of a file, {TARGET_BYTES} when left out",
        "grace": f"how long files that were replaced stay for those who read them, {_GRACE} when left out",
    },
)
RETAIN = Job(
    name="lake-retain",
    about="remove old days from the event lake",
    run=retain,
    check=_check(_retain_arguments),
    tense=Tense.OVER,
    arguments={
        "event": _ONE_EVENT,
        "keep_days": f"days before the window's end that stay, {_KEEP_DAYS} when left out",
        "grace": f"how long removed files stay for those who read them, {_GRACE} when left out",
    },
)
JOBS = (STREAM, COMPACT, RETAIN)
