"""What is too late is not sent, and nobody is blamed for it: the provider was never asked."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from butlers.clock import ManualClock
from butlers.storage.embedded import EmbeddedPostgres
from tests.scenarios.messenger_door import attempts, call, deliver, execute, fault, route, rows, sends, wish
from tests.scenarios.messenger_time import advance, as_time_passes, later, standing_still, with_status
from tests.system import RunningSystem

MORE_THAN_TRIPS = 6  # a circuit opens after five failures
TELEGRAM = "telegram.bot"
ONE_AT_A_TIME = (r"max_concurrent_attempts = \d+", "max_concurrent_attempts = 1")
IMPATIENT = (r"\Z", "\n[butler.shutdown]\ntimeout_s = 0.2\n")


def timed(running: RunningSystem, number: int, seconds: float) -> dict[str, Any]:
    """A message that is worth something only until then."""
    until = running.clock.now() + timedelta(seconds=seconds)
    return wish(f"number {number}", recipient=str(800 + number), not_after=until.isoformat())


def pass_while_stopped(running: RunningSystem, seconds: float) -> None:
    assert isinstance(running.clock, ManualClock)
    running.clock.advance(seconds)


async def circuit(running: RunningSystem) -> dict[str, Any]:
    status: dict[str, Any] = (await call(running, "messenger", "messenger_circuit_status", {}))["channels"][TELEGRAM]
    return status


async def closed_and_clean(running: RunningSystem) -> None:
    """The circuit has counted nothing, as its row and its tool tell, and lets the next message pass."""
    row = await running.database.fetchrow("select * from messenger.channel_states where name = $1", TELEGRAM)
    assert row is not None
    assert (row["state"], row["consecutive_failures"], row["trip_reason"]) == ("closed", 0, None)
    assert (await circuit(running))["state"] == "closed"
    told = await deliver(running, wish("in time", recipient="899"))
    assert told["delivery"]["status"] == "delivered"
    assert await running.answers(899) == ["[health] in time"]


async def all_expired(running: RunningSystem, deliveries: Sequence[UUID]) -> None:
    found = [row for row in await rows(running) if row["id"] in deliveries]
    assert [row["status"] for row in found] == ["expired"] * MORE_THAN_TRIPS
    for row in found:
        assert (row["terminal_error_class"], row["terminal_retryable"]) == ("timeout", False)
        assert row["terminal_error_message"] == "it was too late to send it"
        assert row["terminal_at"] is not None
        assert await attempts(running, row["id"]) == []


async def nobody_heard(running: RunningSystem) -> None:
    for number in range(MORE_THAN_TRIPS):
        assert await running.transcript(800 + number) == []


async def test_requests_that_come_too_late_expire_and_the_circuit_stays_closed(
    tmp_path: Path, postgres_server: EmbeddedPostgres
) -> None:
    async with standing_still(tmp_path, postgres_server) as running:
        for number in range(MORE_THAN_TRIPS):
            response = await execute(running, route(running, timed(running, number, -1)))
            assert (response["status"], response["error"]["class"]) == ("error", "timeout"), response
            assert response["error"]["retryable"] is False
            assert response["result"]["notify_response"]["delivery"]["status"] == "expired"
        await all_expired(running, [row["id"] for row in await rows(running)])
        assert await sends(running) == 0
        await nobody_heard(running)
        await closed_and_clean(running)


async def test_what_a_restart_finds_overdue_expires_and_the_circuit_stays_closed(
    tmp_path: Path, postgres_server: EmbeddedPostgres
) -> None:
    async with standing_still(tmp_path, postgres_server, ONE_AT_A_TIME, IMPATIENT) as running:
        await fault(running, "delay", seconds=600, chat_id=850)
        callers = [await later(running, wish("slow", recipient="850"))]
        for number in range(MORE_THAN_TRIPS):  # the only hand is busy
            callers.append(await later(running, timed(running, number, 60)))
        advance(running, 25)  # longer than callers wait
        assert {told["delivery"]["status"] for told in await asyncio.gather(*callers)} == {"in_progress", "pending"}
        await running.stop()
        waiting = [row for row in await rows(running) if row["status"] == "pending"]
        assert len(waiting) == MORE_THAN_TRIPS
        pass_while_stopped(running, 120)
        await running.start()
        await as_time_passes(running, lambda: with_status(running, "expired", MORE_THAN_TRIPS))
        await all_expired(running, [row["id"] for row in waiting])
        await nobody_heard(running)
        await closed_and_clean(running)


async def test_a_retry_that_would_come_too_late_expires_and_a_request_to_wait_blames_nobody(
    tmp_path: Path, postgres_server: EmbeddedPostgres
) -> None:
    async with standing_still(tmp_path, postgres_server) as running:
        await fault(running, "too_many_requests", retry_after=20, times=None)
        for number in range(MORE_THAN_TRIPS):
            await running.database.execute("delete from messenger.throttles")  # each meets the provider itself
            told = await deliver(running, timed(running, number, 10))
            assert told["delivery"]["status"] == "expired"
        assert [made["outcome"] for made in await attempts(running)] == ["rejected"] * MORE_THAN_TRIPS
        for number in range(MORE_THAN_TRIPS):
            assert await running.answers(800 + number) == []
        await running.control("POST", "/reset")
        await running.database.execute("delete from messenger.throttles")
        await closed_and_clean(running)
