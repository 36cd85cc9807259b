"""Reading the lake: the files that count at one moment, checked, and of each row its newest version."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.window import Window as Over

from butlers.contracts.envelope import invalid
from butlers.errors import ConfigurationError
from butlers.pipeline.connection import autocommitting, fetch_value
from butlers.pipeline.job import Window
from butlers.pipeline.lake.events import CHANGE, CHANGED_IN, Event
from butlers.pipeline.lake.files import check
from butlers.pipeline.lake.log import Commit, LakeFile, LakeLog, LakeState
from butlers.pipeline.sources.changes import Horizon, read_horizon
from butlers.pipeline.transforms.expressions import within

_CHECKERS = 8


def read_events(spark: SparkSession, lake: Path, event: Event, window: Window | None = None) -> DataFrame:
    """The newest version of every row, or of those that were born in a window."""
    versions = read_versions(spark, lake, event, None if event.born_moves else window)
    newest = latest(versions, [event.key])
    if window is None:
        return newest
    return newest.where(within(event.born, window))


def read_versions(
    spark: SparkSession, lake: Path, event: Event, window: Window | None = None, *, state: LakeState | None = None
) -> DataFrame:
    """Every version that was captured, of all days or of those that a window touches; now, or as of a state."""
    state = state or existing_log(lake, event).state()
    days = None if window is None else {day.isoformat() for day in window.days()}
    files = [file for file in state.files.values() if days is None or file.date in days]
    return read_files(spark, lake / event.name, event, files)


def existing_log(lake: Path, event: Event) -> LakeLog:
    folder = lake / event.name
    log = LakeLog(folder)
    if not log.exists:
        raise ConfigurationError(
            "the lake has no such events yet", source="lake", key=str(folder), remedy="run the job lake-stream first"
        )
    return log


def read_files(spark: SparkSession, folder: Path, event: Event, files: Sequence[LakeFile]) -> DataFrame:
    """Some files of an event, all of them whole and of its contract; a column that one lacks is null."""
    if not files:
        return spark.createDataFrame([], event.dated_schema)
    with ThreadPoolExecutor(_CHECKERS) as checkers:
        paths = list(checkers.map(lambda file: str(check(file, folder, event.schema)), files))
    return spark.read.schema(event.dated_schema).option("basePath", str(folder)).parquet(*paths)


def latest(frame: DataFrame, key: Sequence[str]) -> DataFrame:
    """Of the versions of each row the one that was written last."""
    versions = Over.partitionBy(*key).orderBy(sf.col(CHANGE).desc())
    return frame.withColumn("_version", sf.row_number().over(versions)).where("_version = 1").drop("_version")


GENERATED = "generated"  # the server of rows that never were in a database


def must_hold(lake: Path, event: Event, window: Window, *, dsn: str) -> LakeState:
    """Refuse a window of which days are missing, or that the stream has not reached yet; the lake as it was looked at.

    The day before the window must be there, too: a heartbeat that carries no delta is compared with the one before it.
    """
    state = existing_log(lake, event).state()
    before = (window.start - timedelta(days=1)).date().isoformat()
    if before < state.since:
        raise invalid("from", f"must be after {state.since}: older days of {event.name} are not in the lake")
    if state.server != GENERATED and _is_behind(state, event, window, dsn):
        raise ConfigurationError(
            "rows of this window are in the database and not in the lake yet",
            source="lake",
            key=event.name,
            remedy="run the job lake-stream first",
        )
    return state


def note_gap(lake: Path, event: Event, pruned_until: datetime | None) -> None:
    """Rows may have been pruned from the table before they were streamed: then only later days are whole."""
    if pruned_until is None:
        return
    first_whole = (pruned_until + timedelta(days=1)).date().isoformat()

    def decide(state: LakeState) -> Commit | None:
        newest = max((file.date for file in state.files.values()), default="")
        missed = newest <= pruned_until.date().isoformat() and state.since < first_whole
        return Commit(kind="gap", since=first_whole) if missed else None

    LakeLog(lake / event.name).commit(decide)


def must_be_from(state: LakeState, horizon: Horizon, event: Event) -> None:
    """A lake is one server's: the change numbers of another mean something else."""
    if state.server != horizon.server:
        raise ConfigurationError(
            "this is not the database that the lake was filled from: it is another server",
            source="lake",
            key=event.name,
            remedy="name the database it came from, or begin a new lake for this one",
        )


def _is_behind(state: LakeState, event: Event, window: Window, dsn: str) -> bool:
    with autocommitting(dsn) as cursor:
        must_be_from(state, read_horizon(cursor), event)
        later = f"SELECT 1 FROM {event.table.qualified} WHERE {CHANGED_IN} >= $1 AND {event.born} < $2"
        return bool(fetch_value(cursor, f"SELECT EXISTS ({later})", (state.horizon, window.end)))
