"""What is kept for how long: old months go, coming months are there before they begin."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path

import pytest

from butlers.clock import SystemClock
from butlers.storage.embedded import EmbeddedPostgres
from butlers.storage.retention import add_months, ensure_month_partitions, list_month_partitions
from tests.scenarios.switchboard_door import all_finished, post
from tests.system import RunningSystem, running_system


async def months(running: RunningSystem) -> list[date]:
    async with running.database.connection() as connection:
        partitions = await list_month_partitions(connection, "switchboard", "message_inbox")
    return [partition.month for partition in partitions]


async def with_older_months(running: RunningSystem, count: int) -> date:
    """As if a system had run for months: partitions of the past, each with a message. Returns the present month."""
    this_month = running.clock.now().date().replace(day=1)
    async with running.database.connection() as connection:
        await ensure_month_partitions(connection, "switchboard", "message_inbox", add_months(this_month, -count), count)
    for ago in range(count + 1):
        await running.database.execute(
            "INSERT INTO switchboard.message_inbox (request_id, received_at, request_context, normalized_text,"
            " policy_tier, dedupe_key, submitted_by, lifecycle_state, schema_version, updated_at)"
            " VALUES (gen_random_uuid(), $1, '{}', 'hello', 'default', 'key', 'tests', 'parsed', 'ingest.v1', $1)",
            datetime.combine(add_months(this_month, -ago), time(12), UTC),
        )
    return this_month


@pytest.mark.scenario("S3-006")
async def test_one_month_retention_policy(tmp_path: Path, postgres_server: EmbeddedPostgres) -> None:
    async with running_system(tmp_path, postgres_server, start=False) as running:
        this_month = await with_older_months(running, 4)
        assert await running.database.fetchval("SELECT count(*) FROM switchboard.message_inbox") == 5
        await running.start()

        assert await months(running) == [add_months(this_month, ahead) for ahead in (-1, 0, 1, 2)]
        assert await running.database.fetchval("SELECT count(*) FROM switchboard.message_inbox") == 2


@pytest.mark.scenario("S3-006")
async def test_a_policy_override_keeps_more_months(tmp_path: Path, postgres_server: EmbeddedPostgres) -> None:
    async with running_system(tmp_path, postgres_server, start=False, inbox_keep_months=3) as running:
        this_month = await with_older_months(running, 4)
        await running.start()
        assert await months(running) == [add_months(this_month, ahead) for ahead in (-3, -2, -1, 0, 1, 2)]


async def test_events_are_recognised_until_they_are_forgotten(
    tmp_path: Path, postgres_server: EmbeddedPostgres
) -> None:
    async with running_system(tmp_path, postgres_server, dedupe_keep_days=62) as running:
        documents = [running.envelope(text) | {"control": {"idempotency_key": text}} for text in ("young", "old")]
        first = [(await post(running, document)).json() for document in documents]
        await all_finished(running)
        for reply, days in zip(first, (61, 63), strict=True):
            await running.database.execute(
                "UPDATE switchboard.ingress_dedupe SET received_at = $2 WHERE request_id = $1::uuid",
                reply["request_id"],
                running.clock.now() - timedelta(days=days),
            )
        await running.restart()

        young, old = [(await post(running, document)).json() for document in documents]
        assert young == first[0] | {"duplicate": True}
        assert old["request_id"] != first[1]["request_id"]
        assert old["duplicate"] is False
        await all_finished(running)


class MovedClock(SystemClock):
    """The machine's clock, seen from another day."""

    def __init__(self, now: datetime) -> None:
        self.by = now - super().now()

    def now(self) -> datetime:
        return super().now() + self.by


async def test_a_month_that_begins_while_the_system_runs_has_its_partition(
    tmp_path: Path, postgres_server: EmbeddedPostgres
) -> None:
    clock = MovedClock(datetime(2026, 1, 31, 23, 59, tzinfo=UTC))
    async with running_system(tmp_path, postgres_server, clock=clock) as running:
        assert await months(running) == [date(2026, 1, 1), date(2026, 2, 1), date(2026, 3, 1)]
        january = await running.ingest("a message of January")
        clock.by += timedelta(minutes=1)
        february = await running.ingest("a message of February")
        await all_finished(running)

        partitions = await running.database.fetch(
            "SELECT request_id::text AS request_id, tableoid::regclass::text AS name FROM switchboard.message_inbox"
        )
        assert {partition["request_id"]: partition["name"] for partition in partitions} == {
            january["request_id"]: "switchboard.message_inbox_p202601",
            february["request_id"]: "switchboard.message_inbox_p202602",
        }
