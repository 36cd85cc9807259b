"""What is no longer kept goes, with an entry in the log for each table; what is kept stays."""

from __future__ import annotations

import asyncio
from datetime import UTC, date, datetime, timedelta

from pyspark.sql import SparkSession

from butlers.pipeline.job import Window
from butlers.pipeline.jobs.connector_stats import PRUNED, PRUNING
from butlers.storage.embedded import EmbeddedPostgres
from butlers.switchboard.connectors.rollups import DAILY_RETENTION, HOURLY_RETENTION, LOG_RETENTION
from tests.pipeline.heartbeats import context_of, heartbeat_database

NOW = datetime(2026, 2, 1, 1, 30, tzinfo=UTC)
WINDOW = Window(start=NOW - timedelta(days=1), end=NOW)
MONTHS = (date(2025, 12, 1), date(2026, 1, 1), date(2026, 2, 1))
ROWS = {
    "connector_heartbeat_log": (
        "(gen_random_uuid(), 'imap', 'box', gen_random_uuid(), 'healthy', NULL, 1, 0, 0, 0, 0, 0, '{}', now())",
        ("2025-12-30T12:00Z", "2025-12-31T23:59Z", "2026-01-20T12:00Z", "2026-01-25T01:30Z"),
    ),
    "connector_stats_hourly": (
        "('imap', 'box', '{}', 1, 0, 0, 0, 1, 1, 0, 0)",
        ("2026-01-02T01:00Z", "2026-01-02T02:00Z"),
    ),
    "connector_stats_daily": ("('imap', 'box', '{}', 1, 0, 0, 0, 1, 1, 0, 0, 100)", ("2025-01-31", "2025-02-01")),
    "connector_fanout_daily": ("('api', 'tests', 'finance', '{}', 1)", ("2025-01-31", "2025-02-01")),
    "connector_processes": (
        "('imap', 'box', gen_random_uuid(), '{}', '[]')",
        ("2026-01-02T01:29Z", "2026-01-02T01:30Z"),
    ),
}
GONE = [
    ("connector_heartbeat_log", "connector_heartbeat_log_p202512", 2, "2025-12-30T12:00", "2025-12-31T23:59"),
    ("connector_heartbeat_log", None, 1, "2026-01-20T12:00", "2026-01-20T12:00"),
    ("connector_stats_hourly", None, 1, "2026-01-02T01:00", "2026-01-02T01:00"),
    ("connector_stats_daily", None, 1, "2025-01-31T00:00", "2025-01-31T00:00"),
    ("connector_fanout_daily", None, 1, "2025-01-31T00:00", "2025-01-31T00:00"),
    ("connector_processes", None, 1, "2026-01-02T01:29", "2026-01-02T01:29"),
]
LOGGED = "SELECT table_name, partition_name, rows, oldest, newest, before FROM pipeline.pruning_log ORDER BY id"


async def test_pruning_logs_what_it_removed(spark: SparkSession, postgres_server: EmbeddedPostgres) -> None:
    async with heartbeat_database(postgres_server, MONTHS) as (dsn, database):
        for table, (values, moments) in ROWS.items():
            for moment in moments:
                await database.execute(f"INSERT INTO switchboard.{table} VALUES {values.format(moment)}")
        result = await asyncio.to_thread(PRUNING.run, context_of(spark, dsn, WINDOW))
        again = await asyncio.to_thread(PRUNING.run, context_of(spark, dsn, WINDOW))
        logged = [tuple(row) for row in await database.fetch(LOGGED)]
        kept = [await database.fetchval(f"SELECT count(*) FROM switchboard.{table}") for table in ROWS]
        months = await database.fetch("SELECT inhrelid::regclass::text FROM pg_inherits"
                                      " WHERE inhparent = 'switchboard.connector_heartbeat_log'::regclass")  # fmt: skip

    assert [(*row[:3], *(f"{at:%Y-%m-%dT%H:%M}" for at in row[3:5])) for row in logged[:6]] == GONE
    assert [row[2:5] for row in logged[6:]] == [(0, None, None)] * 5  # nothing was left to remove
    assert {row[5] for row in logged if row[0] == "connector_stats_daily"} == {datetime(2025, 2, 1, tzinfo=UTC)}
    assert kept == [1, 1, 1, 1, 1]
    assert len(months) == 2
    assert (result.rows_in, again.rows_in) == (7, 0)
    told = result.details["removed"]
    assert told[0] == {
        "table": "connector_heartbeat_log",
        "partition": "connector_heartbeat_log_p202512",
        "rows": 2,
        "oldest": "2025-12",
        "newest": "2025-12",
    }
    assert told[3] == {"table": "connector_stats_daily", "rows": 1, "oldest": "2025-01-31", "newest": "2025-01-31"}
    assert [table.retention for table in PRUNED] == [
        LOG_RETENTION,
        HOURLY_RETENTION,
        DAILY_RETENTION,
        DAILY_RETENTION,
        HOURLY_RETENTION,
    ]
