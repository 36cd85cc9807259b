"""`connector-stats-hourly --set source=lake`: the same hours from files, and never fewer than the database has."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from butlers.daemon.cli.exits import OK, USAGE
from butlers.errors import ConfigurationError, ValidationError
from butlers.pipeline.job import JobContext, Window
from butlers.pipeline.jobs.connector_stats import roll_hours
from butlers.pipeline.jobs.lake import retain, stream
from butlers.pipeline.lake.events import HEARTBEATS
from butlers.pipeline.lake.log import Commit, LakeFile, LakeLog
from butlers.pipeline.lake.reading import GENERATED, must_hold, note_gap
from butlers.storage.embedded import EmbeddedPostgres
from tests.pipeline.command_line import run_job
from tests.pipeline.heartbeats import STARTS, context_of, heartbeat_database, many_reports, said, upgraded
from tests.unit.switchboard.connectors.reports import INSERT

START = STARTS[0]
WINDOW = Window(start=START + timedelta(hours=20), end=START + timedelta(hours=30))  # neither of them midnight
ROWS = "SELECT * FROM switchboard.connector_stats_hourly ORDER BY 1, 2, 3"


async def test_hours_of_the_lake_are_those_of_the_table_and_a_part_is_refused(
    spark: SparkSession, postgres_server: EmbeddedPostgres, tmp_path: Path
) -> None:
    reports = [report for report in many_reports() if report.endpoint.startswith(f"{START:%y%m%d}")]
    async with heartbeat_database(postgres_server, (date(2026, 3, 1), date(2026, 4, 1))) as (dsn, database):
        table = replace(context_of(spark, dsn, WINDOW), lake=tmp_path)
        lake = replace(table, arguments={"source": "lake"})
        await database.executemany(INSERT, [report.row() for report in upgraded(reports)])
        with pytest.raises(ConfigurationError, match="no such events yet"):
            roll_hours(lake)
        _stream(table)
        from_lake = roll_hours(lake)
        stored = await database.fetch(ROWS)
        from_table = roll_hours(table)
        assert await database.fetch(ROWS) == stored
        assert (from_lake.rows_in, from_lake.rows_out) == (from_table.rows_in, from_table.rows_out)
        assert {WINDOW.start <= row["hour"] < WINDOW.end for row in stored} == {True}

        # A heartbeat that came late, and has not reached the lake.
        await database.executemany(INSERT, [said(1, 21 * 60, 7, endpoint="late").row()])
        with pytest.raises(ConfigurationError, match="not in the lake yet"):
            roll_hours(lake)
        _stream(table)
        assert roll_hours(lake).rows_in == from_table.rows_in + 1
        # Days that left the lake.
        retain(replace(table, arguments={"keep_days": "1"}, window=_until(WINDOW.end + timedelta(days=1))))
        with pytest.raises(ValidationError, match="older days of heartbeats are not in the lake"):
            roll_hours(lake)
        with pytest.raises(ValidationError, match="must be one of table, lake"):
            roll_hours(replace(table, arguments={"source": "sea"}))
        assert await database.fetchval("SELECT count(*) FROM switchboard.connector_stats_hourly") == len(stored) + 1


def _stream(context: JobContext) -> None:
    stream(replace(context, arguments={"event": "heartbeats"}))


def _until(end: datetime) -> Window:
    return replace(WINDOW, end=end)


def test_rows_that_were_pruned_before_they_were_streamed_leave_a_gap(tmp_path: Path) -> None:
    log = LakeLog(tmp_path / HEARTBEATS.name)
    log.create(server=GENERATED)
    note_gap(tmp_path, HEARTBEATS, None)
    assert log.state().since == ""
    # A first look at a table whose older rows are gone: the day of the cut is a part of one.
    note_gap(tmp_path, HEARTBEATS, START)
    assert log.state().since == "2026-03-29"
    file = LakeFile(path="date=2026-04-02/x.parquet", rows=1, bytes=1, last_change=1)
    log.commit(lambda _: Commit(kind="append", add=(file,)))
    # Pruned behind what is in the lake: nothing is missing. Pruned ahead of it: the stream stood still for too long.
    for cut, since in ((START + timedelta(days=3), "2026-03-29"), (START + timedelta(days=9), "2026-04-07")):
        note_gap(tmp_path, HEARTBEATS, cut)
        assert log.state().since == since
    whole = replace(WINDOW, start=datetime(2026, 4, 8, tzinfo=UTC), end=datetime(2026, 4, 9, tzinfo=UTC))
    assert must_hold(tmp_path, HEARTBEATS, whole, dsn="").since == "2026-04-07"
    with pytest.raises(ValidationError, match="must be after 2026-04-07"):
        must_hold(tmp_path, HEARTBEATS, replace(whole, start=whole.start - timedelta(hours=1)), dsn="")


@pytest.mark.heavy
async def test_days_that_were_pruned_before_they_were_streamed_are_refused(
    postgres_server: EmbeddedPostgres, tmp_path: Path
) -> None:
    """Pruning, stream and rollup each as an operator runs them; the results that stand are left alone."""
    reports = [report for report in many_reports() if report.endpoint.startswith(f"{START:%y%m%d}")]
    async with heartbeat_database(postgres_server, (date(2026, 3, 1), date(2026, 4, 1))) as (dsn, database):
        await database.executemany(INSERT, [report.row() for report in reports])
        run = partial(run_job, dsn=dsn, folder=tmp_path)
        assert (await run("connector-stats-hourly", WINDOW.start, WINDOW.end))[0] == OK
        stands = await database.fetch(ROWS)
        later = START + timedelta(days=9)
        code, pruned = await run("connector-stats-pruning", later - timedelta(days=1), later)
        assert (code, pruned["rows_in"]) == (OK, len(reports))
        assert (await run("lake-stream", WINDOW.start, WINDOW.end, event="heartbeats"))[0] == OK
        code, told = await run("connector-stats-hourly", WINDOW.start, WINDOW.end, source="lake")
        assert code == USAGE
        assert "older days of heartbeats are not in the lake" in told["error"]["message"]
        assert await database.fetch(ROWS) == stands
