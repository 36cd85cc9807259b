"""The seeds' scenarios that need Spark: by the schedules and commands that start the jobs, with one Java for all.

The jobs run in this process. `test_runs.py` has a service start one in a process of its own.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any
from uuid import uuid4

import pytest
from pyspark.sql import SparkSession

from butlers.clock import SystemClock
from butlers.daemon.cli.exits import FAILED
from butlers.daemon.compose import connectors
from butlers.ids import Uuid7Factory
from butlers.pipeline import runner
from butlers.pipeline.job import Window
from butlers.pipeline.session import SessionSettings
from butlers.pipeline.tables.routing import ROUTING_QUALITY
from butlers.storage.database import Record
from butlers.storage.embedded import EmbeddedPostgres
from butlers.storage.retention import ensure_month_partitions, list_month_partitions
from tests.database import cloned_database_uri
from tests.pipeline.command_line import butlers
from tests.pipeline.routing_record import MIGRATIONS, alerts, by_slice, stored
from tests.pipeline.routing_record import Record as RoutingRecord
from tests.scenarios.connector_door import COUNTERS, RemoteConnector, a_connector, operator
from tests.scenarios.switchboard_door import all_finished
from tests.scenarios.test_retention import MovedClock
from tests.system import RunningSystem, running_system

EVENING = datetime(2026, 1, 31, 22, 50, tzinfo=UTC)
BOX = "ann@example.org"
LEVELS = "service-levels"
HOURLY, DAILY, PRUNING = (f"connector-stats-{deed}" for deed in ("hourly-rollup", "daily-rollup", "pruning"))


class Night:
    """A system whose clock a test moves on; what becomes due runs by itself."""

    def __init__(self, running: RunningSystem, clock: MovedClock) -> None:
        self.running = running
        self.clock = clock

    def at(self, hour: int, minute: int, second: float = 0, *, day: int = 1) -> None:
        """Move to a time of the night between January's last day (31) and February's first."""
        month = 1 if day == 31 else 2
        self.clock.by += datetime(2026, month, day, hour, minute, tzinfo=UTC) - self.clock.now()
        self.clock.by += timedelta(seconds=second)

    async def ran(self, schedule: str) -> dict[str, Any]:
        """What a schedule's run said; it was started by the clock, not by a test."""

        async def result() -> Any:
            row = await self.running.database.fetchrow(
                "SELECT last_run_at, last_result FROM switchboard.scheduled_tasks WHERE name = $1", schedule
            )
            due = self.clock.now() - timedelta(minutes=20)
            return row["last_result"] if row and row["last_run_at"] and row["last_run_at"] >= due else None

        outcome: dict[str, Any] = await self.running.until(result, deadline_s=240)
        assert (outcome["status"], outcome["mode"]) == ("ok", "native"), outcome
        said: dict[str, Any] = outcome["result"]
        return said

    async def next_run(self, schedule: str, moment: str) -> None:
        """Runs before this moment are left out: each is a start of Spark, and shows nothing."""
        await self.running.database.execute(
            "UPDATE switchboard.scheduled_tasks SET next_run_at = $2::text::timestamptz WHERE name = $1",
            schedule,
            moment,
        )

    async def rows(self, table: str, columns: str = "*") -> list[Record]:
        return await self.running.database.fetch(
            f"SELECT {columns} FROM switchboard.{table} WHERE endpoint_identity = $1 ORDER BY 1, 2, 3", BOX
        )

    async def run_again(self, schedule: str) -> dict[str, Any]:
        await self.running.database.execute(
            "UPDATE switchboard.scheduled_tasks SET next_run_at = $2, last_run_at = NULL, last_result = NULL"
            " WHERE name = $1",
            schedule,
            self.clock.now(),
        )
        return await self.ran(schedule)


@asynccontextmanager
async def a_night(tmp_path: Path, server: EmbeddedPostgres) -> AsyncIterator[Night]:
    clock = MovedClock(EVENING)
    settings: dict[str, Any] = {"connector_heartbeat_s": 3600, "spark_master": "local[2]"}
    async with running_system(tmp_path, server, clock=clock, **settings) as running:
        yield Night(running, clock)


def counted(*numbers: int) -> dict[str, int]:
    return dict(zip(COUNTERS, numbers, strict=True))


async def an_evening(night: Night) -> RemoteConnector:
    """A connector that is slow for a while and is restarted."""
    box = a_connector(night.running, BOX)
    await box.beat_and_be_seen(counters=counted(10, 1, 20, 9, 8))
    night.at(22, 59, 50, day=31)
    slow = {"state": "degraded", "error_message": "slow", "uptime_s": 600.0}
    await box.beat_and_be_seen(counters=counted(25, 1, 40, 9, 20), status=slow)
    night.at(23, 0, 20, day=31)
    await box.beat_and_be_seen(counters=counted(40, 2, 50, 9, 30), status=slow | {"uptime_s": 630.0})
    night.at(23, 30, day=31)
    restarted = {**box.named, "instance_id": str(uuid4())}
    await box.beat_and_be_seen(connector=restarted, counters=counted(3, 0, 4, 0, 3))
    return box


@pytest.fixture
def one_java(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs run here, in the session that all tests share."""

    @contextmanager
    def shared_session(_name: str, _settings: SessionSettings) -> Iterator[SparkSession]:
        spark.createDataFrame([], "nothing int")  # makes it the session of this thread, which a writer looks for
        yield spark

    async def run_here(
        job: str, window: Window, *, dsn: str, lake: Path, scratch: Path, arguments: Mapping[str, str], **_: Any
    ) -> dict[str, Any]:
        session = SessionSettings(scratch=scratch, master="local[2]")
        request = runner.RunRequest(job=job, window=window, dsn=dsn, lake=lake, session=session, arguments=arguments)
        clock = SystemClock()
        return await asyncio.to_thread(runner.run_job, request, clock=clock, new_id=Uuid7Factory(clock))

    monkeypatch.setattr(runner, "spark_session", shared_session)
    monkeypatch.setattr(connectors, "run_in_process", run_here)


@pytest.mark.timeout(600)  # on a busy machine
@pytest.mark.scenario("S3-064")
@pytest.mark.scenario("S3-078")
@pytest.mark.scenario("S3-079")
@pytest.mark.scenario("S3-080")
@pytest.mark.scenario("S3-081")
@pytest.mark.scenario("S3-082")
@pytest.mark.usefixtures("one_java")
async def test_a_night_of_rollups_and_pruning(tmp_path: Path, postgres_server: EmbeddedPostgres) -> None:
    async with a_night(tmp_path, postgres_server) as night:
        for text in ("I paid the electricity bill", "I paid the gas bill", "My blood pressure was 120 over 80"):
            await night.running.ingest(text)
        await all_finished(night.running)
        await night.next_run(HOURLY, "2026-02-01T00:05:00Z")
        await an_evening(night)
        await _old_records(night)

        night.at(0, 5, 1)
        said = await night.ran(HOURLY)
        assert (said["to"], said["rows"] >= 2) == ("2026-02-01T00:00:00+00:00", True)
        night.at(0, 15, 1)
        await night.ran(DAILY)
        statistics = await _statistics(night)
        _are_of_the_evening(*statistics)

        await night.run_again(DAILY)  # which rolls up the hours again, too
        assert await _statistics(night) == statistics

        await night.next_run(HOURLY, "2026-02-01T02:05:00Z")
        night.at(1, 30, 1)
        _removed((await night.ran(PRUNING))["removed"])
        await _is_kept(night)
        runs = await night.running.database.fetch("SELECT job, outcome, rows_out FROM pipeline.pipeline_runs")
        assert {row["job"] for row in runs} == {HOURLY.removesuffix("-rollup"), DAILY.removesuffix("-rollup"), PRUNING}
        assert {row["outcome"] for row in runs} == {"succeeded"}


@pytest.mark.heavy
@pytest.mark.timeout(600)
async def test_service_levels_by_a_schedule_of_an_operator(tmp_path: Path, postgres_server: EmbeddedPostgres) -> None:
    """In a process of its own. Messenger has no such schedule of its own."""
    async with a_night(tmp_path, postgres_server) as night:
        await night.running.ingest("I paid the electricity bill")
        await all_finished(night.running)
        for schedule in (HOURLY, DAILY, PRUNING):
            await night.next_run(schedule, "2026-02-02T00:00:00Z")
        night.at(1, 10)
        wanted = {"name": LEVELS, "cron": "20 * * * *", "job_name": "service_levels"}
        assert (await operator(night.running, "schedule_create", **wanted))["name"] == LEVELS
        night.at(1, 20, 1)
        said = await night.ran(LEVELS)
        assert said["as_of"] == "2026-02-01T01:00:00+00:00"
        day = "SELECT good FROM messenger.long_budget WHERE name = 'telegram.bot' AND window_s = 86400"
        assert await night.running.database.fetchval(day) == 1  # the answer


async def _statistics(night: Night) -> tuple[list[Any], list[Any], list[Any]]:
    """Hours, days and fanout of the evening."""
    fanout = await night.running.database.fetch(
        "SELECT * FROM switchboard.connector_fanout_daily WHERE day >= '2026-01-01' ORDER BY 3"
    )
    hours, days = await night.rows("connector_stats_hourly"), await night.rows("connector_stats_daily")
    return [tuple(row)[2:] for row in hours], [tuple(row)[2:] for row in days], [tuple(row) for row in fanout]


def _are_of_the_evening(hours: list[Any], days: list[Any], fanout: list[Any]) -> None:
    assert hours == [
        (datetime(2026, 1, 31, 22, tzinfo=UTC), 25, 1, 40, 20, 2, 1, 1, 0),
        (datetime(2026, 1, 31, 23, tzinfo=UTC), 18, 1, 14, 13, 2, 1, 1, 0),
    ]
    assert days == [(date(2026, 1, 31), 43, 2, 54, 33, 4, 2, 2, 0, Decimal("50.00"))]
    assert fanout == [
        ("api", "tests", "finance", date(2026, 1, 31), 2),
        ("api", "tests", "health", date(2026, 1, 31), 1),
    ]


def _removed(removed: list[dict[str, Any]]) -> None:
    by_place = {what.get("partition", what["table"]): what for what in removed}
    assert by_place["connector_heartbeat_log_p202512"]["rows"] == 2
    assert by_place["connector_heartbeat_log_p202512"]["newest"] == "2025-12"
    assert by_place["connector_heartbeat_log"]["rows"] == 1
    assert by_place["connector_heartbeat_log"]["oldest"].startswith("2026-01-20T12:00")
    hours = by_place["connector_stats_hourly"]
    assert (hours["rows"], hours["oldest"][:10]) == (1, "2026-01-01")
    for table in ("connector_stats_daily", "connector_fanout_daily"):
        assert (by_place[table]["rows"], by_place[table]["newest"]) == (1, "2025-01-31")


async def _is_kept(night: Night) -> None:
    """What is young enough, the registry, and a log of what was removed."""
    database = night.running.database
    async with database.connection() as connection:
        months = await list_month_partitions(connection, "switchboard", "connector_heartbeat_log")
    assert [month.month for month in months][:2] == [date(2026, 1, 1), date(2026, 2, 1)]
    oldest = {
        "connector_heartbeat_log": ("received_at", date(2026, 1, 25)),
        "connector_stats_hourly": ("hour", date(2026, 1, 3)),
        "connector_stats_daily": ("day", date(2025, 2, 1)),
        "connector_fanout_daily": ("day", date(2025, 2, 1)),
    }
    for table, (column, day) in oldest.items():
        assert await database.fetchval(f"SELECT min({column})::date FROM switchboard.{table}") == day
    assert len(await night.rows("connector_registry")) == 1
    registered = (await operator(night.running, "connectors.list"))["connectors"]
    assert "from-the-past" in {row["endpoint_identity"] for row in registered}  # never pruned
    logged = await database.fetch("SELECT table_name, rows FROM pipeline.pruning_log WHERE rows > 0")
    assert sum(row["rows"] for row in logged) == 6


async def _old_records(night: Night) -> None:
    """What earlier days left: some of it just too old, some of it just not."""
    database = night.running.database
    async with database.connection() as connection:
        await ensure_month_partitions(connection, "switchboard", "connector_heartbeat_log", date(2025, 12, 1), 0)
    for moment in ("2025-12-30T12:00Z", "2025-12-31T23:59Z", "2026-01-20T12:00Z", "2026-01-25T12:00Z"):
        await database.execute(
            "INSERT INTO switchboard.connector_heartbeat_log VALUES (gen_random_uuid(), 'imap', 'from-the-past',"
            " gen_random_uuid(), 'healthy', NULL, 100000, 0, 0, 0, 0, 0, $1::text::timestamptz, now())",
            moment,
        )
    for moment in ("2026-01-01T12:00Z", "2026-01-03T12:00Z"):
        await database.execute(
            "INSERT INTO switchboard.connector_stats_hourly VALUES"
            " ('imap', 'from-the-past', $1::text::timestamptz, 1, 0, 0, 0, 1, 1, 0, 0)",
            moment,
        )
    for day in ("2025-01-31", "2025-02-01"):
        await database.execute(
            "INSERT INTO switchboard.connector_stats_daily VALUES"
            " ('imap', 'from-the-past', $1::text::date, 1, 0, 0, 0, 1, 1, 0, 0, 100)",
            day,
        )
        await database.execute(
            "INSERT INTO switchboard.connector_fanout_daily VALUES ('api', 'tests', 'finance', $1::text::date, 1)", day
        )
    await database.execute(
        "INSERT INTO switchboard.connector_registry VALUES ('imap', 'from-the-past', 'gone', gen_random_uuid(), NULL,"
        " 'healthy', NULL, 1, '2020-01-01Z', '2020-01-01Z', 'self', 0, 0, 0, 0, 0)"
    )


DAY = datetime(2026, 3, 2, tzinfo=UTC)


@pytest.fixture
async def routed(postgres_server: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    async with cloned_database_uri(postgres_server, MIGRATIONS) as uri:
        monkeypatch.setenv("DATABASE_URL", uri)
        yield uri


def _drifting() -> RoutingRecord:
    """A day that went well, and a day after it on which a new prompt sends half of the messages to the wrong butler."""
    record = RoutingRecord(random=Random(5))
    for minute in range(40):
        row = record.message(DAY - timedelta(days=1) + timedelta(minutes=minute), f"before {minute}")
        record.decide(row, ("llm", "claude:big", "triage-1"), ["finance" if minute % 2 else "health"])
        record.dispatch(row, 1)
    for minute in range(60):
        prompt = "triage-2" if minute % 3 else "triage-1"
        row = record.message(DAY + timedelta(minutes=minute), "the same words", channel="email")
        split = ["travel", "general"] if minute % 2 else ["travel"]
        record.decide(row, ("llm", "claude:big", prompt), split if prompt == "triage-2" else ["health"])
        record.dispatch(row, 1, failing={"s1"} if minute % 4 == 0 else {"s2"})
        if minute % 4 == 0:
            record.reroute(row, 30, "health", was="errored")
    for minute in range(40):
        row = record.message(DAY + timedelta(hours=2, minutes=minute), f"unclear {minute}", channel="api")
        record.decide(row, ("fallback", "local-1", None), ["general"])
        record.dispatch(row, 1)
    return record


@pytest.mark.timeout(600)  # on a busy machine
@pytest.mark.scenario("S3-106")
@pytest.mark.usefixtures("one_java")
def test_quality_drift_dimensions(routed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _drifting().store(routed)
    day = ("--from", DAY.isoformat(), "--to", (DAY + timedelta(days=1)).isoformat())
    code = butlers("pipeline", "run", "routing-quality", *day, "--data-dir", str(tmp_path), "--json")

    # Thresholds trigger alerts, and whoever started the job hears of it.
    told = json.loads(capsys.readouterr().out)
    assert (code, told["outcome"]) == (FAILED, "needs_attention"), told
    assert told["details"]["alerts"] == len(alerts(routed))

    # Every dimension is there, by model and prompt version, by source and by target butler.
    rows = by_slice(stored(routed, ROUTING_QUALITY.name))
    old, new = rows["*", "claude:big", "triage-1", "*", "*"], rows["*", "claude:big", "triage-2", "*", "*"]
    assert (old["correctness"], new["correctness"]) == (1.0, 0.75)
    assert (new["repeats"], new["repeats_same"], new["stability"]) == (29, 4, pytest.approx(4 / 29))
    assert (new["multi_segment_change"], new["shift"]) == (0.5, 1.0)
    assert rows["*", "*", "*", "api", "*"]["fallback_rate"] == 1.0
    assert rows["*", "*", "*", "email", "*"]["total_failures"] == 15
    assert rows["*", "*", "*", "*", "travel"]["total_failures"] == 10
    assert rows["*", "*", "*", "*", "general"]["partial_failures"] == 20

    fired = alerts(routed)
    assert ("correctness", "*", "claude:big", "triage-2", "*", "*") in fired
    assert not any(metric == "correctness" and slice_[2] == "triage-1" for metric, *slice_ in fired)
    assert {metric for metric, *_ in fired} >= {
        "correctness",
        "stability",
        "fallback_rate",
        "partial_failure_rate",
        "total_failure_rate",
        "dispatch_failure_rate",
        "shift",
    }
    assert ("total_failure_rate", "*", "*", "*", "email", "*") in fired
    assert ("total_failure_rate", "*", "*", "*", "*", "travel") in fired
