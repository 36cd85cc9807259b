"""Heartbeats for the tests of the rollups: made-up fleets as frames, as rows of a database, and what an oracle says."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import duckdb
from pyspark.sql import DataFrame, Row, SparkSession

from butlers.pipeline.job import JobContext, Window
from butlers.pipeline.tables import CONNECTOR_HEARTBEAT_LOG
from butlers.pipeline.transforms.connector_stats import COMPARED_COLUMNS
from butlers.storage.database import Database
from butlers.storage.embedded import EmbeddedPostgres
from butlers.storage.migrations import MigrationSet
from butlers.switchboard.connectors.deltas import ADDED, COUNTERS
from tests.database import cloned_database_uri
from tests.unit.switchboard.connectors.reports import Report, SimulatedConnectors, with_deltas

ORACLES = Path(__file__).parent / "oracles"
COLUMNS = (*COMPARED_COLUMNS, "state", *ADDED)
SCHEMA = CONNECTOR_HEARTBEAT_LOG.only(COLUMNS)
TABLES = [
    MigrationSet(schema="switchboard", package="butlers.switchboard", component="switchboard"),
    MigrationSet(schema="pipeline", package="butlers.pipeline"),
]
# Summer time begins and ends within, a leap day, a turn of the year.
STARTS = tuple(datetime(*day, 18, tzinfo=UTC) for day in ((2026, 3, 28), (2026, 10, 24), (2028, 2, 28), (2026, 12, 31)))


def many_reports() -> list[Report]:
    """Some days of several fleets, each with boxes of its own."""
    return [
        replace(report, endpoint=f"{start:%y%m%d}-{report.endpoint}")
        for seed, start in enumerate(STARTS)
        for report in SimulatedConnectors(Random(seed), start, hours=40).reports(3)
    ]


def upgraded(reports: Iterable[Report]) -> list[Report]:
    """As stored by a system that did not keep deltas at first, and did so from the middle on."""
    stored = with_deltas(reports)
    middle = stored[len(stored) // 2].received_at
    return [replace(report, added=None) if report.received_at < middle else report for report in stored]


def said(number: int, minutes: float, *counters: int, endpoint: str, **changes: Any) -> Report:
    """One heartbeat of a process that was born at the first of the starts."""
    at = STARTS[0] + timedelta(minutes=minutes)
    plain: dict[str, Any] = {
        "id": UUID(int=number),
        "endpoint": endpoint,
        "instance_id": UUID(int=1),
        "state": "healthy",
        "uptime_s": 60.0 * minutes,
        "sent_at": at,
        "received_at": at,
    }
    return Report(counters=(*counters, *(0,) * (4 - len(counters))), **(plain | changes))  # type: ignore[arg-type]


def frame_of(spark: SparkSession, reports: Iterable[Report]) -> DataFrame:
    return spark.createDataFrame([_values(report) for report in reports], SCHEMA)


def reports_of(rows: Iterable[Row]) -> list[Report]:
    """Rows of a frame as what the plain Python reads."""
    return [
        Report(
            id=UUID(row["id"]),
            endpoint=row["endpoint_identity"],
            instance_id=UUID(row["instance_id"]),
            state=row["state"],
            uptime_s=row["uptime_s"],
            counters=tuple(row[name] for name in COUNTERS),
            sent_at=_utc(row["sent_at"]),
            received_at=_utc(row["received_at"]),
        )
        for row in rows
    ]


def figures(rows: Iterable[Row]) -> dict[tuple[Any, ...], list[int]]:
    """Rows of hourly statistics as the plain Python has them, without the type of the connector."""
    return {(row["endpoint_identity"], _utc(row["hour"])): [*row[3:]] for row in rows}


def oracle(name: str, **tables: DataFrame) -> list[tuple[Any, ...]]:
    """What independent SQL says about the same rows."""
    with duckdb.connect(config={"threads": 2}) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        for table, frame in tables.items():
            connection.register(table, frame.toArrow())
        return connection.execute((ORACLES / f"{name}.sql").read_text()).fetchall()


def plain(rows: Iterable[Sequence[Any]]) -> list[tuple[Any, ...]]:
    """Rows in order, with moments in UTC: Spark hands them over without a zone, in that of this process."""
    return sorted(tuple(_utc(value) if isinstance(value, datetime) else value for value in row) for row in rows)


@asynccontextmanager
async def heartbeat_database(server: EmbeddedPostgres, months: Iterable[date]) -> AsyncIterator[tuple[str, Database]]:
    """A database with the tables of Switchboard and of the pipeline, and places for the heartbeats of some months."""
    async with cloned_database_uri(server, TABLES) as dsn, await Database.connect(dsn, max_size=2) as database:
        for table in ("connector_heartbeat_log", "message_inbox"):
            for month in months:
                after = (month.replace(day=28) + timedelta(days=5)).replace(day=1)
                await database.execute(
                    f"CREATE TABLE switchboard.{table}_p{month:%Y%m} PARTITION OF switchboard.{table}"
                    f" FOR VALUES FROM ('{month} 00:00Z') TO ('{after} 00:00Z')"
                )
        yield dsn, database


def context_of(spark: SparkSession, dsn: str, window: Window) -> JobContext:
    return JobContext(spark=spark, dsn=dsn, lake=Path("nowhere"), run_id=UUID(int=7), window=window)


def _values(report: Report) -> tuple[Any, ...]:
    process = ("imap", report.endpoint, str(report.instance_id), str(report.id), float(report.uptime_s))
    moments = (report.received_at, report.sent_at)
    return (*process, *report.counters, *moments, report.state, *(report.added or (None,) * len(ADDED)))


def _utc(moment: datetime) -> datetime:
    return moment.astimezone(UTC)
