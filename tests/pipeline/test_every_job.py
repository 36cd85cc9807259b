"""Every job from the command line, each in a process of its own, over what a running system wrote."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from benchmarks.planning import people
from benchmarks.planning.recipients import settle

from butlers.clock import SystemClock
from butlers.pipeline.jobs import FORMER_NAMES, NAMES
from butlers.pipeline.lake.events import EVENTS
from butlers.pipeline.lake.log import LakeLog
from butlers.storage.database import Record
from butlers.storage.embedded import EmbeddedPostgres
from tests.pipeline.command_line import run_job
from tests.scenarios.connector_door import COUNTERS, a_connector
from tests.scenarios.test_retention import MovedClock
from tests.system import RunningSystem, running_system

BOX = "ann@example.org"
MESSAGES = ("I paid the electricity bill", "I slept badly", "Book the train to Graz")


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandLine:
    running: RunningSystem
    folder: Path

    @property
    def window(self) -> tuple[datetime, datetime]:
        """The system's today, which is over by the clock of the command line."""
        today = datetime.combine(self.running.clock.now().astimezone(UTC).date(), time(), UTC)
        return today, today + timedelta(days=1)

    async def run(
        self, job: str, *, since: datetime | None = None, to: datetime | None = None, **arguments: str
    ) -> dict[str, Any]:
        """`butlers pipeline run JOB`; what it printed."""
        start, end = since or self.window[0], to or self.window[1]
        dsn = self.running.settings.database_url or ""
        code, told = await run_job(job, start, end, dsn=dsn, folder=self.folder, **arguments)
        assert code == 0, (job, told)
        assert (told["job"], told["outcome"]) == (FORMER_NAMES.get(job, job), "succeeded")
        return told

    async def rows(self, query: str, *values: Any) -> list[Record]:
        return await self.running.database.fetch(query, *values)

    async def count(self, table: str) -> int:
        return int(await self.running.database.fetchval(f"SELECT count(*) FROM {table}"))


@pytest.mark.heavy
@pytest.mark.timeout(900)
async def test_every_job_from_the_command_line(tmp_path: Path, postgres_server: EmbeddedPostgres) -> None:
    clock = MovedClock(SystemClock().now() - timedelta(hours=50))
    async with running_system(tmp_path, postgres_server, clock=clock, connector_heartbeat_s=3600) as running:
        command = CommandLine(running=running, folder=tmp_path / "jobs")
        await _traffic(running)
        await _lake(command)
        await _connectors(command)
        await _levels(command)
        await _routing(command)
        await _reconciliation(command)
        await _audience(command)
        await _end_of_the_lake(command)
        ran = await command.rows("SELECT job, outcome, rows_in, spark_app_id FROM pipeline.pipeline_runs")
        assert {row["job"] for row in ran} == set(NAMES)
        assert all(row["outcome"] == "succeeded" and row["spark_app_id"] for row in ran)


async def _traffic(running: RunningSystem) -> None:
    box = a_connector(running, BOX)
    for messages in (5, 9):
        await box.beat_and_be_seen(counters=dict(zip(COUNTERS, (messages, 1, 7, 3, 4), strict=True)))
    for text in MESSAGES:
        reply = await running.ingest(text)
        assert (await running.finished(reply["request_id"]))["lifecycle_state"] == "parsed"


async def _lake(command: CommandLine) -> None:
    told = await command.run("lake-stream")
    for event in EVENTS.values():
        stored = await command.count(event.table.qualified)
        assert told["details"][event.name]["rows"] == _in_the_lake(command)[event.name] == stored
    before = _in_the_lake(command)
    await command.run("lake-compact", grace="0s")
    assert _in_the_lake(command) == before
    assert before["requests"] == len(MESSAGES)


def _in_the_lake(command: CommandLine) -> Mapping[str, int]:
    return {name: LakeLog(command.folder / "lake" / name).state().rows for name in EVENTS}


async def _connectors(command: CommandLine) -> None:
    hours = "SELECT *, xmin::text FROM switchboard.connector_stats_hourly WHERE endpoint_identity = $1 ORDER BY hour"
    await command.run("connector-stats-hourly")
    from_the_table = await command.rows(hours, BOX)
    assert sum(row["messages_ingested"] for row in from_the_table) == 9
    told = await command.run("connector-stats-hourly", source="lake")
    assert await command.rows(hours, BOX) == from_the_table
    assert told["rows_in"] == await command.count("switchboard.connector_heartbeat_log")

    await command.run("connector-stats-daily")
    days = await command.rows("SELECT * FROM switchboard.connector_stats_daily WHERE endpoint_identity = $1", BOX)
    assert sum(row["messages_ingested"] for row in days) == 9
    fanout = await command.rows("SELECT sum(message_count) AS messages FROM switchboard.connector_fanout_daily")
    assert fanout[0]["messages"] == len(MESSAGES)
    assert (await command.run("connector-stats-pruning"))["rows_out"] == 0


async def _levels(command: CommandLine) -> None:
    deliveries = await command.count("messenger.delivery_requests")
    await command.run("delivery-stats", group_by="channel")
    stats = await command.rows("SELECT grouping, sum(total) AS total FROM pipeline.delivery_stats GROUP BY grouping")
    assert {row["grouping"]: row["total"] for row in stats} == {"": deliveries, "channel": deliveries}
    await command.run("service-levels")
    assert await command.count("pipeline.service_levels") > 0
    budget = await command.rows("SELECT sum(good) AS good FROM messenger.long_budget WHERE name = 'telegram.bot'")
    assert budget[0]["good"] > 0


async def _routing(command: CommandLine) -> None:
    await command.run("routing-quality")
    [everything] = await command.rows(
        "SELECT decisions FROM pipeline.routing_quality WHERE '*' = ALL (ARRAY[router, model_version, prompt_version,"
        " source_channel, target_butler])"
    )
    assert everything["decisions"] == len(MESSAGES)
    told = await command.run("routing-evaluate")
    assert told["rows_in"] == len(MESSAGES)


async def _reconciliation(command: CommandLine) -> None:
    told = await command.run("books", grace="0s")  # as it was called before
    assert told["job"] == "reconciliation"
    assert told["details"]["rules"]["request-left-open"]["checked"] == len(MESSAGES)
    assert await command.count("pipeline.books_findings") == 0


async def _audience(command: CommandLine) -> None:
    await settle(command.running.database, range(50))
    message, audience = command.folder / "message.json", command.folder / "audience.csv"
    message.write_text(people.message(str(uuid4()), pacing=people.UNLIMITED))
    audience.write_text("\n".join(["recipient_id", *(people.person_id(number) for number in range(50))]))
    now = SystemClock().now()
    files = {"message": str(message), "audience": str(audience)}
    await command.run("audience-plan", since=now, to=now + timedelta(days=7), load="yes", **files)
    queued = await command.count("outbound.scheduled_messages")
    assert queued > 0
    assert queued + await command.count("outbound.blocked_recipients") == 50


async def _end_of_the_lake(command: CommandLine) -> None:
    await command.run("lake-retain", to=SystemClock().now(), keep_days="1", grace="0s")
    assert set(_in_the_lake(command).values()) == {0}
