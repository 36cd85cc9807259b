"""How Parquet files come into an event's folder, and how those that do not count leave it.

    _staging/<id>/date=2026-03-01/part-0.parquet     written by tasks, in a folder that no other job writes to
    date=2026-03-01/part-0.parquet                   moved here by the driver; nobody reads it yet
    _log/00000007.json                               now it counts

Whoever dies on the way leaves files that no commit names. They are swept, like those that a compaction or a retention
took out, when they have been untouched for a while: a reader that looked at the log before may still be at them.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import pyarrow
import pyarrow.parquet
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import DataType, StructType

from butlers.errors import InternalError
from butlers.pipeline.lake.events import CHANGE, DATE
from butlers.pipeline.lake.log import Commit, LakeFile, LakeLog

_STAGING = "_staging"
_ROWS_PER_FILE = 5_000_000
_ABANDONED_S = 3600.0  # a file that no commit names may be about to be committed; after this, its writer is dead


def stage(frame: DataFrame, folder: Path) -> Path:
    """Write rows by day into a folder of their own."""
    staging = folder / _STAGING / str(uuid4())
    frame.write.partitionBy(DATE).option("maxRecordsPerFile", _ROWS_PER_FILE).parquet(str(staging))
    return staging


def publish(staging: Path, folder: Path) -> tuple[LakeFile, ...]:
    """Move what was staged beside the files that count; it does not count yet."""
    found = [_publish(path, folder) for path in sorted(staging.glob(f"{DATE}=*/*.parquet"))]
    shutil.rmtree(staging, ignore_errors=True)
    return tuple(found)


def discard(files: Iterable[LakeFile], folder: Path) -> None:
    """What was published and is not wanted after all."""
    for file in files:
        (folder / file.path).unlink(missing_ok=True)


def check(file: LakeFile, folder: Path, schema: StructType) -> Path:
    """The file as it was committed, with the columns of the contract or fewer; else an error that names it."""
    path = folder / file.path
    metadata = _metadata(path)
    if metadata.num_rows != file.rows or path.stat().st_size != file.bytes:
        raise InternalError(f"{path}: this is not the file that was written here; restore it from a backup")
    for column in metadata.schema.to_arrow_schema():
        if column.name in schema.fieldNames():
            _check_type(path, column.name, column.type, schema[column.name].dataType)
    return path


def sweep(folder: Path, *, grace_s: float) -> int:
    """Delete files that do not count and have been untouched for the grace period; returns how many."""
    log, now = LakeLog(folder), _now(folder)
    # In this order: a file that is published and committed after the look at the folder is not among the candidates.
    held = list(folder.glob(f"{DATE}=*/*"))
    state = log.state()
    removed = [path for path in state.removed if now - _touched(folder / path) >= grace_s]
    known = {folder / path for path in (*state.files, *state.removed)}
    left = [path for path in (*held, *log.sweepable()) if path not in known and now - _touched(path) >= _ABANDONED_S]
    for path in (*(folder / path for path in removed), *left):
        path.unlink(missing_ok=True)
    for staging in list(_abandoned(folder, now)):
        shutil.rmtree(staging, ignore_errors=True)
    _remove_empty(folder)
    if removed:
        log.commit(lambda _: Commit(kind="sweep", forget=tuple(removed)))
    return len(removed) + len(left)


def touch(paths: Iterable[str], folder: Path) -> None:
    """Begin the grace period of files that are about to be taken out."""
    for path in paths:
        if (folder / path).exists():
            os.utime(folder / path)


def _publish(path: Path, folder: Path) -> LakeFile:
    _make_durable(path)
    metadata = _metadata(path)
    file = LakeFile(
        path=f"{path.parent.name}/{path.name}",
        rows=metadata.num_rows,
        bytes=path.stat().st_size,
        last_change=_last_change(metadata),
    )
    _move(path, folder / file.path)
    return file


def _move(path: Path, target: Path) -> None:
    while True:
        target.parent.mkdir(exist_ok=True)
        try:
            path.rename(target)
        except FileNotFoundError:
            if target.parent.exists():
                raise
        else:
            return  # else: the folder was empty and swept away under our hands


def _make_durable(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _metadata(path: Path) -> pyarrow.parquet.FileMetaData:
    try:
        return pyarrow.parquet.read_metadata(path)
    except FileNotFoundError:
        raise InternalError(f"{path}: the file is gone; restore it from a backup") from None
    except (pyarrow.ArrowException, OSError, ValueError):
        raise InternalError(f"{path}: this is not a whole Parquet file; restore it from a backup") from None


def _last_change(metadata: pyarrow.parquet.FileMetaData) -> int:
    place = metadata.schema.to_arrow_schema().get_field_index(CHANGE)
    groups = (metadata.row_group(number).column(place) for number in range(metadata.num_row_groups))
    return max((int(group.statistics.max) for group in groups), default=0)


def _check_type(path: Path, name: str, found: pyarrow.DataType, expected: DataType) -> None:
    if to_arrow_type(expected, timezone="UTC") != found:
        raise InternalError(
            f"{path}: the column {name} is {found} and not {expected.simpleString()}: "
            "the file is not of this lake, or the contract changed a type"
        )


def _abandoned(folder: Path, now: float) -> Iterator[Path]:
    """Staging folders in which nothing has happened for long."""
    for staging in (folder / _STAGING).glob("*"):
        if now - max(map(_touched, (staging, *staging.rglob("*")))) >= _ABANDONED_S:
            yield staging


def _remove_empty(folder: Path) -> None:
    for day in folder.glob(f"{DATE}=*"):
        with suppress(OSError):  # not empty
            day.rmdir()


def _now(folder: Path) -> float:
    """The file system's own clock, which the ages of files are told by."""
    mark = folder / f".{uuid4()}"
    mark.touch()
    try:
        return mark.stat().st_mtime
    finally:
        mark.unlink()


def _touched(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0  # gone: as old as can be
