"""The stream of one event: changes of a table, batch by batch, into files that a commit makes count.

    changes [start, end) --> without what is below the log's horizon --> files --> commit, horizon = last change + 1

The log alone says how far the lake has come. Killed before the commit: the files do not count, and the next run reads
the same range again. Killed after it: the next run begins behind it. Spark's own checkpoint is made anew by each run;
one that is read again would be believed, and after the log was restored from a backup it is ahead of the log.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from uuid import uuid4

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery

from butlers.contracts.envelope import invalid
from butlers.errors import ButlersError, ConfigurationError, InternalError
from butlers.pipeline.connection import autocommitting
from butlers.pipeline.lake.events import CHANGE, DATE, Event
from butlers.pipeline.lake.files import discard, publish, stage
from butlers.pipeline.lake.log import Commit, LakeFile, LakeLog, LakeState
from butlers.pipeline.lake.reading import must_be_from, note_gap
from butlers.pipeline.session import noted
from butlers.pipeline.sources.changes import ROWS_PER_BATCH, Horizon, read_changes, read_horizon
from butlers.storage.files import FileLock


@dataclass(frozen=True, slots=True, kw_only=True)
class Trigger:
    every: str | None = None  # Spark's words, "10 seconds"; None: what there is now, and then an end


@dataclass(frozen=True, slots=True, kw_only=True)
class EventStream:
    event: Event
    dsn: str
    lake: Path
    rows_per_batch: int = ROWS_PER_BATCH
    pruned_until: datetime | None = None  # rows of its table that are older are gone

    @property
    def folder(self) -> Path:
        return self.lake / self.event.name

    def start(self, spark: SparkSession, trigger: Trigger) -> StreamingQuery:
        state = self._open_log()
        changes = read_changes(
            spark,
            self.dsn,
            self.event.table,
            select=self.event.expressions,
            schema=self.event.schema,
            start=state.horizon,
            server=state.server,
            rows_per_batch=self.rows_per_batch,
        )
        writer = (
            changes.withColumn(DATE, sf.to_date(self.event.born))
            .writeStream.queryName(f"lake {self.event.name}")
            .option("checkpointLocation", str(self._fresh_checkpoint()))
            .foreachBatch(partial(_append_to, self.folder))
        )
        if trigger.every is None:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=trigger.every).start()

    def _open_log(self) -> LakeState:
        horizon = self.database_horizon()
        state = LakeLog(self.folder).create(server=horizon.server)
        must_be_from(state, horizon, self.event)
        note_gap(self.lake, self.event, self.pruned_until)
        return state

    def state(self) -> LakeState:
        """How far the lake has come, if it was begun."""
        log = LakeLog(self.folder)
        return log.state() if log.exists else LakeState()

    def _fresh_checkpoint(self) -> Path:
        """Spark must have one, and what an earlier run left in it must not count: the log may have been restored."""
        folder = self.lake / "_checkpoints" / self.event.name
        shutil.rmtree(folder, ignore_errors=True)
        return folder / str(uuid4())

    def database_horizon(self) -> Horizon:
        with autocommitting(self.dsn) as cursor:
            return read_horizon(cursor)


def _append_to(folder: Path, batch: DataFrame, _: int) -> None:
    append_batch(batch, folder)


def append_batch(batch: DataFrame, folder: Path) -> tuple[LakeFile, ...]:
    """Add what is new of a batch; returns the files, none when all of it was there."""
    log = LakeLog(folder)
    while True:
        horizon = log.state().horizon
        # One file per day, however many slices the batch was read in.
        fresh = batch.where(sf.col(CHANGE) >= horizon).repartition(DATE)
        files = publish(stage(fresh, folder), folder)
        if not files or log.commit(lambda state, horizon=horizon, files=files: _append(state, horizon, files)):  # type: ignore[misc]
            return files
        discard(files, folder)  # another stream was faster: see what is left


def _append(state: LakeState, horizon: int, files: tuple[LakeFile, ...]) -> Commit | None:
    if state.horizon != horizon:
        return None
    return Commit(kind="append", add=files, horizon=max(file.last_change for file in files) + 1)


_OURS = re.compile(r"butlers\.errors\.(\w+): (.+)")
_NAMED = re.compile(r"\[[A-Z][A-Z_.]{4,}\][^\n]*")
_UNREADABLE = re.compile(r"while reading file (?:file:)?(?://)?(\S+?\.parquet)")
_GONE = "the file was removed while the job ran (compaction, retention); run it again, or give them more grace"


class ReportedError(ConfigurationError):
    """A configuration error that was raised in another process: its text is all that arrived."""

    def __init__(self, message: str) -> None:
        super(ConfigurationError, self).__init__(message)
        self.problem, self.source, self.key, self.remedy = message, "lake", "", ""


@contextmanager
def explaining() -> Iterator[None]:
    """A block whose failures in Spark leave it as ours."""
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        raise explained(error) from error


def reported(text: str) -> ButlersError | None:
    """What our own code said on an executor, or the file that Spark could not read."""
    if ours := _OURS.findall(text):
        kind, message = ours[-1]
        return ReportedError(message) if kind == ConfigurationError.__name__ else InternalError(message)
    if unreadable := _UNREADABLE.search(text):
        remedy = _GONE if "NOT_EXIST" in text else "the file cannot be read; restore it from a backup"
        return InternalError(f"{unreadable[1]}: {remedy}")
    return None


def explained(error: BaseException) -> ButlersError:
    text = str(error)
    if (own := reported(text)) is not None:
        return own
    named = next((line for line in _NAMED.findall(text) if "[STREAM_FAILED]" not in line), None)
    return InternalError(f"Spark failed: {named or next(iter(text.strip().splitlines()), type(error).__name__)}")


_LOOK_S = 1  # how often we look whether to stop
_STOPPING_LOOKS = 30  # that a batch which is being written has time for
# Spark gives the process that plans a Python stream ten seconds to come up, whatever else the machine does just then.
_TOO_BUSY = "Python worker failed to connect back"
_STARTS = 6


def run_streams(spark: SparkSession, streams: Sequence[EventStream], trigger: Trigger) -> list[LakeState]:
    """Start all, and return when all have ended, or when a signal said so; how far each had come before."""
    with ExitStack() as stack, noted() as asked:
        for stream in streams:
            stack.enter_context(_alone(stream))
        before = [stream.state() for stream in streams]
        runs = [_Run(spark, stream, trigger) for stream in streams]
        stack.callback(_stop_all, runs)
        # Streams that end take turns: each has a process of its own for planning, and those would all start at once.
        turns = [runs] if trigger.every else [[run] for run in runs]
        with explaining():
            for turn in turns:
                _wait(turn, asked)
        return before


class _Run:
    """One stream, started again when Spark could not even begin with it."""

    def __init__(self, spark: SparkSession, stream: EventStream, trigger: Trigger) -> None:
        self._spark, self._stream, self._trigger = spark, stream, trigger
        self._starts_left = _STARTS
        self._query: StreamingQuery | None = None

    def is_active(self) -> bool:
        """Whether there is more to come; raises what ended it."""
        if self._query is None or self._is_to_be_repeated(self._query):
            self._starts_left -= 1
            self._query = self._stream.start(self._spark, self._trigger)
        failure = self._query.exception()
        if failure is not None and not self._is_to_be_repeated(self._query):
            raise failure
        return failure is not None or self._query.isActive

    def wait(self) -> None:
        if self._query is not None:
            with suppress(StreamingQueryException):  # `is_active` says it
                self._query.awaitTermination(_LOOK_S)

    def stop(self) -> None:
        """Between two batches where that is possible; one that is cut short is read again at the next start."""
        if self._query is None:
            return
        for _ in range(_STOPPING_LOOKS):
            if not (self._query.isActive and self._query.status["isTriggerActive"]):
                break
            self.wait()
        self._query.stop()

    def _is_to_be_repeated(self, query: StreamingQuery) -> bool:
        return self._starts_left > 0 and _TOO_BUSY in str(query.exception() or "")


def _wait(runs: Sequence[_Run], asked: Callable[[], bool]) -> None:
    while not asked():
        active = [run for run in runs if run.is_active()]
        if not active:
            return
        active[0].wait()


def _stop_all(runs: Sequence[_Run]) -> None:
    for run in runs:
        run.stop()


@contextmanager
def _alone(stream: EventStream) -> Iterator[None]:
    """Two streams of one event would do each work twice, and Spark's checkpoint does not bear it."""
    stream.folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(_lock_of(stream.folder))
    if not lock.try_hold():
        raise ConfigurationError(
            "another process streams these events",
            source="lake",
            key=stream.event.name,
            remedy="let it go on, or stop it first",
        )
    try:
        yield
    finally:
        lock.release()


def _lock_of(folder: Path) -> Path:
    return folder / "_stream.lock"


_DURATION = re.compile(r"(\d{1,6})(ms|s|m|h|d)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def seconds(name: str, text: str) -> float:
    """How many seconds an argument stands for."""
    matched = _DURATION.fullmatch(text)
    if matched is None:
        raise invalid(name, "must be a number and a unit: 500ms, 10s, 5m, 1h, 1d")
    return int(matched[1]) * _SECONDS[matched[2]]


def whole(name: str, text: str, *, least: int) -> int:
    """An argument that must be a whole number."""
    if not text.isascii() or not text.isdigit() or len(text) > 18 or int(text) < least:
        raise invalid(name, f"must be a whole number, {least} or more")
    return int(text)
