"""A provider that fails is left alone, probed, and used again (seed 000 "Circuit Breaker", seed 001 section 9)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.scenarios.messenger_door import attempts, deliver, fault, mails, rows, sends, wish
from tests.scenarios.messenger_time import (
    advance,
    all_have,
    as_time_passes,
    ended_attempts,
    later,
    running,
    system,
    tool,
    turned_away,
    with_status,
)
from tests.system import RunningSystem

pytestmark = pytest.mark.asyncio(loop_scope="module")
__all__ = ["running", "system"]  # fixtures

THRESHOLD = 5
RECOVERY_S = 60.0


async def circuit(running: RunningSystem, channel: str = "telegram.bot") -> dict[str, Any]:
    shown: dict[str, Any] = (await tool(running, "circuit_status", channel=channel))["channels"][channel]
    return shown


async def failing(running: RunningSystem, count: int, *, first_chat: int = 101) -> list[asyncio.Task[dict[str, Any]]]:
    """Deliveries to so many chats, each of which has failed once."""
    await fault(running, "error_5xx", times=None, status=502)
    before = len(await attempts(running))
    waiting = [await later(running, wish("hello", recipient=str(first_chat + n))) for n in range(count)]
    await ended_attempts(running, before + count)
    return waiting


async def tripped(running: RunningSystem) -> list[asyncio.Task[dict[str, Any]]]:
    waiting = await failing(running, THRESHOLD)
    assert (await circuit(running))["state"] == "open"
    return waiting


async def well_again(running: RunningSystem) -> None:
    await running.control("DELETE", "/faults")


@pytest.mark.scenario("M0-013")
async def test_closed_to_open_transition(running: RunningSystem) -> None:
    await failing(running, THRESHOLD - 1)
    shown = await circuit(running)
    assert (shown["state"], shown["consecutive_failures"]) == ("closed", THRESHOLD - 1)
    await failing(running, 1, first_chat=120)
    assert (await circuit(running))["state"] == "open"

    calls, deliveries = await sends(running), len(await rows(running))
    for intent in ({}, {"recipient": "131"}, {"priority": "urgent"}):
        error = await turned_away(running, wish("too late", **intent))
        assert (error["class"], error["retry_after_seconds"]) == ("target_unavailable", RECOVERY_S)
        assert "the circuit of telegram.bot is open: Telegram failed" in error["message"]
    # What was accepted before waits, although its second attempt is due by now.
    advance(running, 10)
    assert (await deliver(running, wish("by mail", channel="email", subject="s")))["delivery"]["status"] == "delivered"
    assert (await circuit(running, "email.bot"))["state"] == "closed"
    assert [row["status"] for row in await rows(running)][:-1] == ["awaiting_retry"] * deliveries
    assert await sends(running) == calls == THRESHOLD
    assert len(await mails(running)) == 1
    assert (await turned_away(running, wish("too late")))["retry_after_seconds"] == RECOVERY_S - 10


async def test_what_is_not_the_providers_fault_is_never_counted(running: RunningSystem) -> None:
    waiting = await failing(running, THRESHOLD - 1)
    await well_again(running)
    for number in range(THRESHOLD + 1):
        # Whom we may not write to, a message that Telegram would not take, and a request to wait.
        await fault(running, "refused", status=403, description="Forbidden: bot was blocked by the user")
        assert (await deliver(running, wish("x", recipient=str(200 + number))))["delivery"]["status"] == "failed"
        await fault(running, "refused", status=400, description="Bad Request: message is too odd")
        refused = await deliver(running, wish("x", recipient=str(300 + number)))
        assert (refused["error"]["class"], refused["delivery"]["status"]) == ("validation_error", "failed")
    made = len(await attempts(running))
    for number in range(THRESHOLD + 1):
        await fault(running, "too_many_requests", retry_after=3)
        waiting.append(await later(running, wish("x", recipient=str(400 + number))))
        await ended_attempts(running, made + number + 1)
        await running.database.execute("delete from messenger.throttles")
    shown = await circuit(running)
    assert (shown["state"], shown["consecutive_failures"]) == ("closed", THRESHOLD - 1)
    # A success ends the row of failures.
    assert (await deliver(running, wish("fine", recipient="500")))["delivery"]["status"] == "delivered"
    assert (await circuit(running))["consecutive_failures"] == 0
    # What the callers hear depends on their patience, which passes too; the rows tell.
    await as_time_passes(running, lambda: with_status(running, "delivered", len(waiting) + 1))
    await as_time_passes(running, lambda: _done(waiting))


@pytest.mark.scenario("M0-014")
@pytest.mark.scenario("M1-038")
async def test_recovery_via_half_open(running: RunningSystem) -> None:
    waiting = await tripped(running)
    # One probe, and no more, although five deliveries wait; it fails, and the wait begins anew.
    advance(running, RECOVERY_S - 1)
    assert await sends(running) == THRESHOLD
    advance(running, 1)
    await ended_attempts(running, THRESHOLD + 1)
    shown = await circuit(running)
    assert (shown["state"], shown["retry_after_s"]) == ("open", RECOVERY_S)
    assert (await turned_away(running, wish("too late")))["class"] == "target_unavailable"

    await well_again(running)
    await fault(running, "delay", seconds=20)
    advance(running, RECOVERY_S)
    await as_time_passes(running, lambda: with_status(running, "in_progress"))
    shown = await circuit(running)
    assert (shown["state"], shown["probes_out"], shown["probe_successes"]) == ("half-open", 1, 0)
    assert (await turned_away(running, wish("while probing")))["class"] == "target_unavailable"
    assert len(await with_status(running, "in_progress")) == 1
    await fault(running, "delay", seconds=22)
    advance(running, 20)
    await running.until(lambda: _delivered(running, 1))
    shown = await circuit(running)
    assert (shown["state"], shown["probe_successes"]) == ("half-open", 1)
    await as_time_passes(running, lambda: with_status(running, "in_progress"))
    assert (await circuit(running))["state"] == "half-open"
    advance(running, 22)
    await running.until(lambda: _delivered(running, 2))
    shown = await circuit(running)
    assert (shown["state"], shown["consecutive_failures"], shown["trip_reason"]) == ("closed", 0, None)

    await as_time_passes(running, lambda: all_have(running, "delivered"))
    await as_time_passes(running, lambda: _done(waiting))
    assert [await running.answers(101 + n) for n in range(THRESHOLD)] == [["[health] hello"]] * THRESHOLD
    assert (await deliver(running, wish("as before")))["delivery"]["status"] == "delivered"


@pytest.mark.scenario("M0-015")
@pytest.mark.scenario("M1-013")
async def test_circuit_status_visibility(running: RunningSystem) -> None:
    both = (await tool(running, "circuit_status"))["channels"]
    assert {name: shown["state"] for name, shown in both.items()} == {"email.bot": "closed", "telegram.bot": "closed"}
    assert both["telegram.bot"]["trip_reason"] is both["telegram.bot"]["tripped_at"] is None
    await tripped(running)
    moment = running.clock.now()
    advance(running, 12)
    shown = await circuit(running)
    assert shown == {
        "state": "open",
        "consecutive_failures": THRESHOLD,
        "trip_reason": "Telegram failed: Bad Gateway",
        "tripped_at": moment.isoformat().replace("+00:00", "Z"),
        "recovery_timeout_s": RECOVERY_S,
        "retry_after_s": RECOVERY_S - 12,
        "probes_out": 0,
        "probe_successes": 0,
        "failure_threshold": THRESHOLD,
        "success_threshold": 2,
    }
    assert (await circuit(running, "email.bot"))["state"] == "closed"


async def _done(tasks: list[asyncio.Task[dict[str, Any]]]) -> bool:
    return all(task.done() for task in tasks)


async def _delivered(running: RunningSystem, count: int) -> bool:
    return [row["status"] for row in await rows(running)].count("delivered") == count
