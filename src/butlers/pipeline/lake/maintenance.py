"""Few large files instead of many small ones, and whole days that leave the lake when they are old enough."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from pyspark.sql import SparkSession

from butlers.errors import InternalError
from butlers.pipeline.lake.events import CHANGE, Event
from butlers.pipeline.lake.files import discard, publish, stage, touch
from butlers.pipeline.lake.log import Commit, LakeFile, LakeLog, LakeState
from butlers.pipeline.lake.reading import read_files

TARGET_BYTES = 128 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactedDay:
    date: str
    files_before: int
    files_after: int
    rows: int


def compact(
    spark: SparkSession, folder: Path, event: Event, dates: Iterable[str], *, target_bytes: int = TARGET_BYTES
) -> list[CompactedDay]:
    """Compact the days named; those with nothing to gain are left alone."""
    by_date: dict[str, list[LakeFile]] = defaultdict(list)
    for file in LakeLog(folder).state().files.values():
        if file.bytes < target_bytes:
            by_date[file.date].append(file)
    chosen = [by_date[date] for date in sorted(set(dates) & by_date.keys())]
    return [
        done
        for small in chosen
        if len(small) > _needed(small, target_bytes)
        and (done := _compact_day(spark, folder, event, small, target_bytes))
    ]


def _needed(files: Sequence[LakeFile], target_bytes: int) -> int:
    return -(-sum(file.bytes for file in files) // target_bytes)


def _compact_day(
    spark: SparkSession, folder: Path, event: Event, small: Sequence[LakeFile], target_bytes: int
) -> CompactedDay | None:
    rows = read_files(spark, folder, event, small)
    fewer = rows.coalesce(_needed(small, target_bytes)).sortWithinPartitions(event.born, CHANGE)
    large = publish(stage(fewer, folder), folder)
    _check_rows(large, small, folder)
    touch((file.path for file in small), folder)
    if LakeLog(folder).commit(lambda state: _exchange(state, small, large)) is None:
        discard(large, folder)
        return None
    return CompactedDay(
        date=small[0].date, files_before=len(small), files_after=len(large), rows=sum(file.rows for file in large)
    )


def _exchange(state: LakeState, small: Sequence[LakeFile], large: Sequence[LakeFile]) -> Commit | None:
    paths = tuple(file.path for file in small)
    if not state.files.keys() >= set(paths):
        return None
    return Commit(kind="compact", add=tuple(large), remove=paths)


def _check_rows(large: Sequence[LakeFile], small: Sequence[LakeFile], folder: Path) -> None:
    before, after = (sum(file.rows for file in files) for files in (small, large))
    if before != after:
        discard(large, folder)
        raise InternalError(f"{folder}: {before} rows became {after} in compaction, so nothing was changed")


def retain(folder: Path, *, since: date) -> Mapping[str, int]:
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
