"""Running streams to their end: all that there is now, or for ever until somebody says stop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from butlers.errors import ConfigurationError
from butlers.pipeline.lake.failures import explaining
from butlers.pipeline.lake.log import LakeState
from butlers.pipeline.lake.stream import EventStream, Trigger
from butlers.pipeline.signals import noted
from butlers.storage.locks import FileLock

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
