"""Which files count, at every moment: under writers at the same time, crashes, compaction, retention and bad files."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from functools import partial
from pathlib import Path
from threading import Event as Flag
from threading import Thread
from typing import Any
from uuid import uuid4

import pyarrow
import pyarrow.parquet
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import StructField, StructType

from butlers.errors import InternalError, ValidationError
from butlers.pipeline.job import JobContext, JobResult, Window
from butlers.pipeline.jobs import lake
from butlers.pipeline.jobs.lake import compact_days, take_out
from butlers.pipeline.lake import files
from butlers.pipeline.lake.events import RECEIPTS, Derived, Event
from butlers.pipeline.lake.files import sweep
from butlers.pipeline.lake.log import Commit, LakeFile, LakeLog, LakeState
from butlers.pipeline.lake.reading import read_events, read_versions
from butlers.pipeline.lake.stream import append_batch
from butlers.pipeline.tables import TYPES
from tests.pipeline.lake_system import JOBS

DAY = datetime(2026, 3, 1, 12, tzinfo=UTC)
DATES = ["2026-03-01", "2026-03-02"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / RECEIPTS.name
    LakeLog(folder).create(server="7")
    return folder


def batch_of(spark: SparkSession, first: int, count: int, *, event: Event = RECEIPTS) -> DataFrame:
    """Rows with the change numbers that follow each other, over two days."""
    rows = spark.range(first, first + count)
    given = {
        "id": sf.col("id").cast("string"),
        "received_at": sf.lit(DAY) + sf.make_dt_interval(days=(sf.col("id") % 2).cast("int")),
        "change": sf.col("id"),
    }
    made = [given.get(field.name, sf.lit(None)).cast(field.dataType).alias(field.name) for field in event.schema]
    return rows.select(*made).withColumn("date", sf.to_date("received_at"))


def ids_in(folder: Path) -> list[str]:
    """What a reader gets that looks at the log now, without Spark."""
    found = [pyarrow.parquet.read_table(folder / path, columns=["id"]) for path in LakeLog(folder).state().files]
    return [str(value) for table in found for value in table.column("id").to_pylist()]


def run_job(spark: SparkSession, folder: Path, name: str, **arguments: str) -> JobResult:
    window = Window(start=DAY, end=DAY + timedelta(days=2))
    context = JobContext(
        spark=spark,
        dsn="",
        lake=folder.parent,
        run_id=uuid4(),
        window=window,
        arguments={"event": "receipts", **arguments},
    )
    return JOBS[name].run(context)


def test_commits_at_the_same_time_all_count_and_old_ones_are_swept(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
):
    def append(writer: int) -> None:
        for number in range(30):
            file = LakeFile(path=f"date=2026-03-01/{writer}-{number}", rows=1, bytes=1, last_change=number)
            LakeLog(folder).commit(partial(_one_more, file))

    with ThreadPoolExecutor(4) as writers:
        list(writers.map(append, range(4)))
    state = LakeLog(folder).state()
    assert (state.version, state.horizon, len(state.files), state.server) == (121, 120, 120, "7")
    monkeypatch.setattr(files, "_ABANDONED_S", 0.0)
    assert sweep(folder, grace_s=0) > 95
    assert LakeLog(folder).state() == state
    assert len(list((folder / "_log").iterdir())) == 22  # a snapshot and what came after it
    next((folder / "_log").glob("*110.json")).unlink()
    with pytest.raises(InternalError, match="commit 110 is missing"):
        LakeLog(folder).state()


def test_a_batch_that_comes_again_adds_nothing(spark: SparkSession, folder: Path):
    assert sum(file.rows for file in append_batch(batch_of(spark, 0, 10), folder)) == 10
    assert append_batch(batch_of(spark, 0, 10), folder) == ()
    assert sum(file.rows for file in append_batch(batch_of(spark, 5, 10), folder)) == 5
    assert sorted(map(int, ids_in(folder))) == list(range(15))
    assert {file.date for file in LakeLog(folder).state().files.values()} == set(DATES)


def test_compaction_shows_readers_the_old_files_or_the_new_ones(
    spark: SparkSession, folder: Path, monkeypatch: pytest.MonkeyPatch
):
    for number in range(4):
        append_batch(batch_of(spark, number * 10, 10), folder)
    wanted = sorted(ids_in(folder))

    with monkeypatch.context() as crash:  # between the files and the commit
        crash.setattr(LakeLog, "commit", _die)
        with pytest.raises(KeyboardInterrupt):
            compact_days(spark, folder, RECEIPTS, DATES)
    assert sorted(ids_in(folder)) == wanted

    seen: list[list[str]] = []
    done = Flag()
    reader = Thread(target=lambda: seen.extend(_looks(folder, done)))
    reader.start()
    held = read_versions(spark, folder.parent, RECEIPTS)  # planned on the old files
    result = run_job(spark, folder, "lake-compact")
    done.set()
    reader.join()
    assert result.rows_out == 40
    assert [day["files_before"] for day in result.details["receipts"]["days"]] == [4, 4]
    assert len(LakeLog(folder).state().files) == 2
    assert len(seen) > 1
    assert all(found == wanted for found in seen)
    assert held.count() == 40, "files that somebody reads stay for a while"
    assert run_job(spark, folder, "lake-compact", grace="0s").details["receipts"] == {"days": [], "files_deleted": 8}
    monkeypatch.setattr(files, "_ABANDONED_S", 0.0)  # what the crash left
    sweep(folder, grace_s=0)
    assert len(list(folder.glob("date=*/*.parquet"))) == 2
    assert not (folder / "_staging").exists() or not any((folder / "_staging").iterdir())
    assert sorted(ids_in(folder)) == wanted


def test_a_day_that_left_meanwhile_is_not_brought_back(
    spark: SparkSession, folder: Path, monkeypatch: pytest.MonkeyPatch
):
    for number in range(2):
        append_batch(batch_of(spark, number * 10, 10), folder)
    publish = files.publish
    monkeypatch.setattr(lake, "publish", lambda *a: (publish(*a), take_out(folder, since=date(2026, 3, 2)))[0])
    done = compact_days(spark, folder, RECEIPTS, DATES)
    assert [day.date for day in done] == ["2026-03-02"]
    assert {file.date for file in LakeLog(folder).state().files.values()} == {"2026-03-02"}


def test_old_days_leave_with_a_word_about_each(spark: SparkSession, folder: Path):
    append_batch(batch_of(spark, 0, 10), folder)
    with pytest.raises(ValidationError):
        run_job(spark, folder, "lake-retain", keep_days="0")
    result = run_job(spark, folder, "lake-retain", keep_days="1", grace="0s")
    assert result.details == {
        "kept_since": "2026-03-02",
        "receipts": {"days": {"2026-03-01": 5}, "files_deleted": 1},
    }
    assert [path.name for path in folder.glob("date=*")] == ["date=2026-03-02"]
    assert run_job(spark, folder, "lake-retain", keep_days="1", grace="0s").rows_in == 0
    assert append_batch(batch_of(spark, 0, 10), folder) == (), "what left does not come back"


def test_a_column_that_came_later_is_null_in_older_files(spark: SparkSession, folder: Path):
    append_batch(batch_of(spark, 0, 4), folder)
    wider = replace(RECEIPTS, derived=(*RECEIPTS.derived, Derived("fresh", "x", "x")))
    append_batch(batch_of(spark, 4, 4, event=wider).withColumn("fresh", sf.lit("yes")), folder)
    rows = read_events(spark, folder.parent, wider).groupBy("fresh").count().collect()
    assert {row["fresh"]: row["count"] for row in rows} == {None: 4, "yes": 4}
    compact_days(spark, folder, wider, DATES)
    assert read_events(spark, folder.parent, wider).where("fresh IS NULL").count() == 4
    changed = replace(RECEIPTS, table=replace(RECEIPTS.table, columns=_with(RECEIPTS.table.columns, part="string")))
    with pytest.raises(
        InternalError, match=r"date=2026-03-0\d/part-.*parquet: the column part is int32 and not string"
    ):
        read_events(spark, folder.parent, changed)


def test_bad_files_are_named(spark: SparkSession, folder: Path, tmp_path: Path):
    append_batch(batch_of(spark, 0, 2000), folder)
    append_batch(batch_of(spark, 2000, 2), folder)
    path = folder / max(LakeLog(folder).state().files.values(), key=lambda file: file.bytes).path
    whole = path.read_bytes()
    pyarrow.parquet.write_table(pyarrow.table({"id": [1, 2]}), path.parent / "stranger.parquet")
    assert read_events(spark, folder.parent, RECEIPTS).count() == 2002, "a file that nobody committed is not read"

    spoilt: tuple[tuple[Callable[[], object], str], ...] = (
        (lambda: path.write_bytes(whole[: len(whole) // 2]), "not a whole Parquet file"),
        (lambda: path.write_text("nonsense"), "not a whole Parquet file"),
        (lambda: shutil.copy(path.parent / "stranger.parquet", path), "not the file that was written here"),
        (path.unlink, "the file is gone"),
    )
    for spoil, words in spoilt:
        spoil()
        with pytest.raises(InternalError, match=f"{path.name}: .*{words}"):
            read_events(spark, folder.parent, RECEIPTS)

    path.write_bytes(
        whole[:5000] + bytes([whole[5000] ^ 1]) + whole[5001:]
    )  # whole from outside, one bit spoilt within
    with pytest.raises(InternalError, match=f"{path.name}: the file cannot be read"):
        run_job(spark, folder, "lake-compact")
    assert path.exists()


def _one_more(file: LakeFile, state: LakeState) -> Commit:
    return Commit(kind="append", add=(file,), horizon=state.horizon + 1)


def _die(*_: Any) -> None:
    raise KeyboardInterrupt


def _looks(folder: Path, done: Flag) -> Iterator[list[str]]:
    while not done.is_set():
        yield sorted(ids_in(folder))


def _with(schema: StructType, **types: str) -> StructType:
    kinds = {field.name: field.dataType for field in schema} | {name: TYPES[kind] for name, kind in types.items()}
    return StructType([StructField(name, kind) for name, kind in kinds.items()])
