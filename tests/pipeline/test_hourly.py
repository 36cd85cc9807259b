"""Hourly statistics on Spark are those of an independent oracle and of the plain Python, over days of all kinds."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from random import Random
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.errors import PythonException
from pyspark.sql import SparkSession

from butlers.contracts.envelope import MAX_COUNT
from butlers.errors import ValidationError
from butlers.pipeline.generate.fleet import FleetPlan, heartbeats
from butlers.pipeline.generate.writing import write_lake
from butlers.pipeline.jobs.connector_stats_hourly import JOB
from butlers.pipeline.lake import hourly_files
from butlers.pipeline.lake.events import HEARTBEATS
from butlers.pipeline.lake.hourly_files import hourly_of_files, joined, parcels_of_files, parts_of_hours
from butlers.pipeline.lake.reading import read_versions
from butlers.pipeline.transforms.hourly import HEARTBEAT_COLUMNS, YOUNG_S, hourly
from butlers.pipeline.transforms.hourly_joining import put_together
from butlers.pipeline.transforms.hourly_stretches import folded
from butlers.pipeline.transforms.parcels import packed, unpacked
from butlers.pipeline.windows import Window
from butlers.storage.embedded import EmbeddedPostgres
from butlers.switchboard.fleet.windows import YOUNG_S as YOUNG_IN_THE_SERVICE
from tests.pipeline.fleets import STARTS, context_of, figures, fleets, frame_of, house, oracle, plain, reports_of, said
from tests.pipeline.splits import as_table, split_fleets, summed_up
from tests.unit.switchboard.fleet.reports import INSERT, Report, Stats, expected_hours

EVER = Window(start=datetime(2026, 1, 1, tzinfo=UTC), end=datetime(2029, 1, 1, tzinfo=UTC))
START = STARTS[0]
ONE_BY_ONE: dict[str, tuple[list[int], list[Report]]] = {}


def _cases() -> None:
    def one(name: str, wanted: list[int], *reports: Report) -> None:
        ONE_BY_ONE[name] = (wanted, [replace(report, endpoint=name) for report in reports])

    def beat(number: int, minutes: float, *counters: int, **changes: object) -> Report:
        return said(number, minutes, *counters, endpoint="", **changes)

    one("the hour of the later one", [25, 15], beat(1, 50, 10), beat(2, 59.9, 25), beat(3, 60, 40))
    one("restart", [10, 30], beat(1, 50, 10), beat(2, 70, 30, instance_id=UUID(int=2), uptime_s=5.0))
    one("counter reset", [10, 9], beat(1, 50, 10), beat(2, 70, 4), beat(3, 80, 9))
    late = beat(2, 65, 10, sent_at=START + timedelta(minutes=40), uptime_s=2400.0)
    one("overtaken", [20, 5], beat(1, 50, 20), late, beat(3, 70, 25))
    one("anew", [10, 15], beat(1, 50, 10), beat(2, 70, 15, uptime_s=1.0))
    one(
        "anew and overtaken by its old life",
        [10, 20],
        beat(1, 50, 10),
        beat(2, 70, 15, uptime_s=1.0),
        beat(3, 71, 11, uptime_s=0.5, sent_at=START),
        beat(4, 80, 20, uptime_s=600.0),
    )
    one("from the future", [20, 5], beat(1, 50, 20, sent_at=START + timedelta(days=3650)), beat(2, 70, 25))
    one("old", [0, 7], beat(1, 50, 100_000, uptime_s=YOUNG_S + 1), beat(2, 70, 100_007, uptime_s=YOUNG_S + 1201))
    one("just young", [5], beat(1, 50, 5, uptime_s=YOUNG_S))
    one("twice", [20, 10], beat(1, 50, 20), beat(2, 70, 30), beat(2, 70, 30), beat(2, 70, 30))
    one("same age", [10, 6], beat(1, 50, 10), beat(2, 70, 12, uptime_s=3000.0), beat(3, 71, 16, uptime_s=3000.0))
    one("same moment", [10], beat(1, 50, 4), beat(2, 50, 10))
    one("beyond measure", [MAX_COUNT], *(beat(n, 10 + n, MAX_COUNT, instance_id=UUID(int=n)) for n in (1, 2, 3)))


_cases()


def expected(reports: list[Report]) -> Stats:
    """The plain Python; what the log cannot hold twice counts once, and what cannot be stored is capped."""
    once = {(report.endpoint, report.received_at, report.id): report for report in reports}
    return {key: [min(value, MAX_COUNT) for value in found] for key, found in expected_hours(once.values()).items()}


def test_hours_are_those_of_the_oracle_and_of_plain_python(spark: SparkSession) -> None:
    reports = [*fleets(), *(report for _, reports in ONE_BY_ONE.values() for report in reports)]
    plan = FleetPlan(connectors=6, start=date(2028, 2, 28), days=2, seed=5)
    made = [heartbeats(spark, plan, day).select(*HEARTBEAT_COLUMNS) for day in plan.dates]
    frame = frame_of(spark, Random(3).sample(reports, len(reports))).unionByName(made[0]).unionByName(made[1]).cache()
    hours = hourly(frame, EVER).collect()

    assert plain(hours) == plain(oracle("hourly", heartbeats=frame))
    wanted = expected(reports_of(frame.collect()))
    assert figures(hours) == {key[1:]: numbers for key, numbers in wanted.items()}
    for name, (messages, _) in ONE_BY_ONE.items():
        found = sorted((row["hour"], row["messages_ingested"]) for row in hours if row["endpoint_identity"] == name)
        assert [count for _, count in found] == messages, name
    assert YOUNG_S == YOUNG_IN_THE_SERVICE
    frame.unpersist()


@pytest.mark.parametrize("task_bytes", [hourly_files.TASK_BYTES, 1])
def test_files_are_folded_where_they_lie(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task_bytes: int
) -> None:
    """Days of a lake, in a folder whose name has to be written differently as an address; by one task, and by one for
    each file, with a dozen buckets.
    """
    monkeypatch.setattr(hourly_files, "TASK_BYTES", task_bytes)
    monkeypatch.setattr(hourly_files, "BUCKET_BYTES", 100_000)
    plan = FleetPlan(connectors=8, start=date(2028, 2, 28), days=2, seed=6)
    write_lake(spark, plan, tmp_path / "a lake: 100% ä", tell=lambda _, __: None)
    stored = read_versions(spark, tmp_path / "a lake: 100% ä", HEARTBEATS)
    with hourly_of_files(stored, EVER) as frame:
        hours = frame.collect()
    assert plain(hours) == plain(hourly(stored, EVER).collect())
    parcels, buckets = parcels_of_files(stored)
    assert buckets > 5
    assert unpacked(parcels.toArrow().to_batches()).num_rows < stored.count() / 8
    assert parts_of_hours(parcels, buckets).where("troubled").count() == 0


def test_tasks_are_of_one_size_and_not_too_many() -> None:
    files = [f"file-{number}" for number in range(10_000)]
    for size, tasks in ((hourly_files.TASK_BYTES // 10, 1_000), (hourly_files.TASK_BYTES, hourly_files.MOST_TASKS)):
        shared = hourly_files.shared_out(files, [size] * len(files))
        assert [file for task in shared for file in task] == files
        assert {len(task) for task in shared} == {len(files) // tasks}


def test_files_without_rows_add_nothing_and_a_column_that_is_missing_is_named(
    spark: SparkSession, tmp_path: Path
) -> None:
    frame = frame_of(spark, fleets()[:50])
    frame.limit(0).coalesce(1).write.parquet(str(tmp_path / "empty"))
    frame.drop("sent_at").coalesce(1).write.parquet(str(tmp_path / "older"))
    with hourly_of_files(spark.read.schema(frame.schema).parquet(str(tmp_path / "empty")), EVER) as hours:
        assert hours.collect() == []
    older = spark.read.schema(frame.schema).parquet(str(tmp_path / "older"))
    with pytest.raises(PythonException, match=r"part-.*parquet: the file has no sent_at"), hourly_of_files(older, EVER):
        pass


def test_stretches_that_fit_together_tell_the_same_however_the_rows_are_split() -> None:
    """Hundreds of fleets, each cut into parts in its own way; without Spark."""
    reports, pieces = split_fleets(cases=360)
    loads = [batch for begin in range(0, len(pieces), 3_000) for batch in packed(pieces.slice(begin, 3_000), buckets=7)]
    assert len(loads) > 3
    moved = pa.Table.from_batches(loads)
    parts = pa.concat_tables(
        [put_together(unpacked(moved.filter(pc.field("bucket") == place).to_batches())) for place in range(7)]
    )
    told = [(row["endpoint_identity"], row["hour"]) for row in parts.to_pylist() if not row["troubled"]]
    assert len(told) == len(set(told)), "the bucket of an endpoint has all of it, and hours are whole"
    troubled = {(row["endpoint_identity"], row["instance_id"]) for row in parts.to_pylist() if row["troubled"]}
    fitting = [report for report in reports if (report.endpoint, str(report.instance_id)) not in troubled]
    assert summed_up(parts) == {key[1:]: numbers for key, numbers in expected(fitting).items()}
    assert sum(1 for hours in pieces.column("hours").to_pylist() if hours) > 1_000
    # Trouble is for those that need it: rows that lie anyhow, or make no sense.
    assert 100 < len(troubled) < len({(report.endpoint, report.instance_id) for report in reports}) / 5


def test_troubled_processes_are_told_again_from_their_rows(spark: SparkSession) -> None:
    reports, parts = split_fleets(cases=60)
    parcels = spark.createDataFrame(pa.Table.from_batches(packed(parts, buckets=3)))
    hours = joined(parts_of_hours(parcels, 3), frame_of(spark, reports), EVER).collect()
    assert figures(hours) == {key[1:]: numbers for key, numbers in expected(reports).items()}


@pytest.mark.parametrize("cut", [150, 0], ids=["within a body", "at loose ends"])
def test_two_of_one_moment_are_no_trouble(cut: int) -> None:
    """In the order of their ids, which is not that in which they lie; in one part, and each in a part of its own."""
    reports = [said(number, number, number * 3, endpoint="bot") for number in range(1, 300)]
    first, second = said(7_001, 150, 453, endpoint="bot"), said(7_000, 150, 451, endpoint="bot")
    ahead, rest = reports[:149], reports[150:]
    parts = [[*ahead, first, second, *rest]] if cut else [[*ahead, first], [second, *rest]]
    put = put_together(pa.concat_tables([folded(as_table(part)) for part in parts]))
    assert not any(put.column("troubled").to_pylist())
    everything = [report for part in parts for report in part]
    assert summed_up(put) == {key[1:]: numbers for key, numbers in expected(everything).items()}


@pytest.mark.parametrize("most_named", [hourly_files.MOST_NAMED, 0])
def test_a_few_troubled_ones_are_looked_for_by_name(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most_named: int
) -> None:
    """Two files of the same hours: what lies in one comes between what lies in the other."""
    monkeypatch.setattr(hourly_files, "MOST_NAMED", most_named)
    torn = [said(number, number, number * 3, endpoint="torn") for number in range(1, 200)]
    whole = [said(number, number, number * 2, endpoint="whole") for number in range(1, 200)]
    for part in (torn[::2] + whole, torn[1::2]):
        frame_of(spark, part).coalesce(1).write.mode("append").parquet(str(tmp_path))
    stored = spark.read.parquet(str(tmp_path))
    troubled = parts_of_hours(*parcels_of_files(stored)).where("troubled")
    assert {row["endpoint_identity"] for row in troubled.collect()} == {"torn"}
    assert hourly_files.of_endpoints(stored, troubled).count() == len(torn) + (0 if most_named else len(whole))
    with hourly_of_files(stored, EVER) as hours:
        assert figures(hours.collect()) == {key[1:]: numbers for key, numbers in expected(torn + whole).items()}


async def test_the_job_sees_what_came_before_its_window_and_may_be_repeated(
    spark: SparkSession, postgres_server: EmbeddedPostgres
) -> None:
    reports = [report for report in fleets() if report.endpoint.startswith(f"{START:%y%m%d}")]
    silent = [said(1, 5, 7, endpoint="silent"), said(2, 30 * 60, 9, endpoint="silent", uptime_s=YOUNG_S * 2)]
    everything = [*reports, *silent]
    window = Window(start=START + timedelta(hours=20), end=START + timedelta(hours=36))
    async with house(postgres_server, (date(2026, 3, 1), date(2026, 4, 1))) as (dsn, database):
        await database.executemany(INSERT, [report.row() for report in everything])
        rows = "SELECT *, xmin::text FROM switchboard.connector_stats_hourly ORDER BY 1, 2, 3"
        first = JOB.run(context_of(spark, dsn, window))
        stored = await database.fetch(rows)
        again = JOB.run(context_of(spark, dsn, window))
        assert await database.fetch(rows) == stored  # not even written again
        # What is late replaces what stands.
        late = said(3, 29 * 60, 8, endpoint="silent", uptime_s=YOUNG_S * 1.5)
        await database.executemany(INSERT, [late.row()])
        JOB.run(context_of(spark, dsn, window))
        after = await database.fetch(rows)

    come = [report for report in everything if report.received_at < window.end]
    wanted = {key: numbers for key, numbers in expected_hours(come).items() if key[2] >= window.start}
    assert {tuple(row)[:3]: [*tuple(row)[3:11]] for row in stored} == wanted
    assert first == again
    assert first.rows_in == sum(1 for report in come if report.received_at >= window.start)
    assert first.rows_out == len(wanted)
    steps = {row["hour"]: row["messages_ingested"] for row in after if row["endpoint_identity"] == "silent"}
    assert [*steps.values()] == [1, 1]


async def test_a_window_that_would_replace_results_by_less_is_refused(
    spark: SparkSession, postgres_server: EmbeddedPostgres
) -> None:
    async with house(postgres_server, ()) as (dsn, database):
        await database.execute(
            "INSERT INTO pipeline.pruning_log (run_id, job, table_name, rows, before)"
            " VALUES (gen_random_uuid(), 'connector-stats-pruning', 'connector_heartbeat_log', 0, $1)",
            START,
        )
        for start, end in ((START - timedelta(hours=1), START), (START, START + timedelta(minutes=90))):
            with pytest.raises(ValidationError):
                JOB.run(context_of(spark, dsn, Window(start=start, end=end)))
