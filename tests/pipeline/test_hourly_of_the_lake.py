"""`connector-stats-hourly --set source=lake`: the same hours from files, and never fewer than the database has."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from butlers.errors import ConfigurationError, ValidationError
from butlers.pipeline.job import JobContext
from butlers.pipeline.jobs import connector_stats_hourly, lake_retain, lake_stream
from butlers.pipeline.windows import Window
from butlers.storage.embedded import EmbeddedPostgres
from tests.pipeline.fleets import STARTS, context_of, fleets, house, said
from tests.unit.switchboard.fleet.reports import INSERT

START = STARTS[0]
WINDOW = Window(start=START + timedelta(hours=20), end=START + timedelta(hours=30))  # neither of them midnight
ROWS = "SELECT * FROM switchboard.connector_stats_hourly ORDER BY 1, 2, 3"


async def test_hours_of_the_lake_are_those_of_the_table_and_a_part_is_refused(
    spark: SparkSession, postgres_server: EmbeddedPostgres, tmp_path: Path
) -> None:
    reports = [report for report in fleets() if report.endpoint.startswith(f"{START:%y%m%d}")]
    async with house(postgres_server, (date(2026, 3, 1), date(2026, 4, 1))) as (dsn, database):
        table = replace(context_of(spark, dsn, WINDOW), lake=tmp_path)
        lake = replace(table, arguments={"source": "lake"})
        await database.executemany(INSERT, [report.row() for report in reports])
        with pytest.raises(ConfigurationError, match="no such events yet"):
            connector_stats_hourly.run(lake)
        _stream(table)
        from_lake = connector_stats_hourly.run(lake)
        stored = await database.fetch(ROWS)
        from_table = connector_stats_hourly.run(table)
        assert await database.fetch(ROWS) == stored
        assert (from_lake.rows_in, from_lake.rows_out) == (from_table.rows_in, from_table.rows_out)
        assert {WINDOW.start <= row["hour"] < WINDOW.end for row in stored} == {True}

        # A heartbeat that came late, and has not reached the lake.
        await database.executemany(INSERT, [said(1, 21 * 60, 7, endpoint="late").row()])
        with pytest.raises(ConfigurationError, match="not in the lake yet"):
            connector_stats_hourly.run(lake)
        _stream(table)
        assert connector_stats_hourly.run(lake).rows_in == from_table.rows_in + 1
        # Days that left the lake.
        lake_retain.run(replace(table, arguments={"keep_days": "1"}, window=_until(WINDOW.end + timedelta(days=1))))
        with pytest.raises(ValidationError, match="older days of heartbeats left the lake"):
            connector_stats_hourly.run(lake)
        with pytest.raises(ValidationError, match="must be one of table, lake"):
            connector_stats_hourly.run(replace(table, arguments={"source": "sea"}))
        assert await database.fetchval("SELECT count(*) FROM switchboard.connector_stats_hourly") == len(stored) + 1


def _stream(context: JobContext) -> None:
    lake_stream.run(replace(context, arguments={"event": "heartbeats"}))


def _until(end: datetime) -> Window:
    return replace(WINDOW, end=end)
