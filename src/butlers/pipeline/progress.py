"""How far a run is: Spark's own counts of stages and tasks, and rows counted on the way."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import IO

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.column import Column
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

_LOOK_S = 0.5  # between two looks
_LINES_EVERY = 20  # looks between two lines, where there is no bar


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Of the jobs that Spark works on right now."""

    stages: int
    stages_done: int
    tasks: int
    tasks_done: int

    def __str__(self) -> str:
        return f"{self.stages_done} of {self.stages} stages, {self.tasks_done} of {self.tasks} tasks"


def standing(spark: SparkSession) -> Standing | None:
    """None: nothing is active."""
    tracker = spark.sparkContext.statusTracker()
    jobs = filter(None, map(tracker.getJobInfo, tracker.getActiveJobsIds()))
    stages = [stage for job in jobs for stage in map(tracker.getStageInfo, job.stageIds) if stage is not None]
    if not stages:
        return None
    return Standing(
        stages=len(stages),
        stages_done=sum(stage.numCompletedTasks == stage.numTasks for stage in stages),
        tasks=sum(stage.numTasks for stage in stages),
        tasks_done=sum(stage.numCompletedTasks for stage in stages),
    )


def watching(name: str, stream: IO[str] | None) -> Callable[[SparkSession], AbstractContextManager[None]]:
    """How a run is watched; without a stream, nobody looks."""
    return lambda spark: nullcontext() if stream is None else watched(spark, name, stream)


@contextmanager
def watched(spark: SparkSession, name: str, stream: IO[str]) -> Iterator[None]:
    """Show how far it is until the block ends."""
    show = _bar(name, stream) if stream.isatty() else _lines(name, stream)
    ended = threading.Event()
    with show as tell:
        watcher = threading.Thread(target=_watch, args=(spark, tell, ended), daemon=True)
        watcher.start()
        try:
            yield
        finally:
            ended.set()
            watcher.join()


def _watch(spark: SparkSession, tell: Callable[[Standing], None], ended: threading.Event) -> None:
    while not ended.wait(_LOOK_S):
        try:
            now = standing(spark)
        except Exception:
            return  # the session is ending, or the cluster is far away (Spark Connect) and does not say
        if now is not None:
            tell(now)


@contextmanager
def _bar(name: str, stream: IO[str]) -> Iterator[Callable[[Standing], None]]:
    shown = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[status]}"))
    with Progress(*shown, TimeElapsedColumn(), console=Console(file=stream), transient=True) as progress:
        bar = progress.add_task(name, total=None, status="starting")
        yield lambda now: progress.update(bar, total=now.tasks, completed=now.tasks_done, status=str(now))


@contextmanager
def _lines(name: str, stream: IO[str]) -> Iterator[Callable[[Standing], None]]:
    looks = 0

    def tell(now: Standing) -> None:
        nonlocal looks
        if looks % _LINES_EVERY == 0:
            print(f"{name}: {now}", file=stream, flush=True)
        looks += 1

    yield tell


class Counted:
    """Counts what a plan reads while it is carried out."""

    def __init__(self, name: str) -> None:
        self._observation = Observation(name)

    def on(self, frame: DataFrame, counted: Column | None = None) -> DataFrame:
        """The same frame; `counted` is an aggregate over it, its rows when left out."""
        rows = sf.count(sf.lit(1)) if counted is None else counted
        return frame.observe(self._observation, rows.alias("rows"))

    @property
    def rows(self) -> int:
        """After an action. Of a plan that Spark found empty it left the counting out, too, and has no answer."""
        try:
            return int(self._observation.get["rows"] or 0)
        except (Py4JJavaError, PySparkException, KeyError):
            return 0
