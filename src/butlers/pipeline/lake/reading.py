"""Reading the lake: the files that count at one moment, checked, and of each row its newest version."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.window import Window as Over

from butlers.errors import ConfigurationError
from butlers.pipeline.lake.events import CHANGE, Event
from butlers.pipeline.lake.files import check
from butlers.pipeline.lake.log import LakeFile, LakeLog, LakeState
from butlers.pipeline.windows import Window

_CHECKERS = 8


def read_events(spark: SparkSession, lake: Path, event: Event, window: Window | None = None) -> DataFrame:
    """The newest version of every row, or of those that were born in a window."""
    versions = read_versions(spark, lake, event, None if event.born_moves else window)
    newest = latest(versions, event.key)
    if window is None:
        return newest
    born = sf.col(event.born)
    return newest.where((born >= sf.lit(window.start)) & (born < sf.lit(window.end)))


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
