"""Certainty is a value: an attempt ends sent, not sent or uncertain, and what is uncertain is never sent again."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest

from butlers.daemon.settings import shipped_roster
from butlers.roster import load_roster
from butlers.storage.embedded import EmbeddedPostgres
from tests.scenarios.messenger_door import (
    attempts,
    deliver,
    fault,
    forget,
    hurry,
    mail_fault,
    quick,
    route,
    rows,
    sends,
    time_limit,
    wish,
)
from tests.scenarios.shared_system import running, system
from tests.system import HOST, RunningSystem, running_system

MESSAGES = 30

pytestmark = pytest.mark.asyncio(loop_scope="module")
__all__ = ["running", "system"]  # fixtures


@pytest.mark.scenario("M1-036")
async def test_the_retry_after_of_a_429_is_honoured(running: RunningSystem) -> None:
    await fault(running, "too_many_requests", retry_after=1)
    answer = await deliver(running, wish("patience"))
    assert answer["delivery"]["status"] == "delivered"
    first, second = await attempts(running)
    assert (first["outcome"], first["certainty"], first["retryable"]) == ("rejected", "not_sent", True)
    assert first["error_class"] == "target_unavailable"
    assert (second["started_at"] - first["completed_at"]).total_seconds() >= 1
    assert await running.answers() == ["[health] patience"]


async def test_a_failing_provider_is_tried_again(running: RunningSystem) -> None:
    await fault(running, "error_5xx", times=2, status=502)
    assert (await deliver(running, wish("third time")))["delivery"]["status"] == "delivered"
    assert [a["certainty"] for a in await attempts(running)] == ["not_sent", "not_sent", "sent"]
    # Three attempts in all are the limit.
    await fault(running, "error_5xx", times=5)
    answer = await deliver(running, wish("never"))
    assert answer["delivery"]["status"] == "dead_lettered"
    assert (answer["error"]["class"], answer["error"]["retryable"]) == ("target_unavailable", True)
    assert len(await attempts(running, answer["delivery"]["delivery_id"])) == 3
    assert await running.answers() == ["[health] third time"]


async def test_a_blocked_bot_and_a_bad_request_fail_fast(running: RunningSystem) -> None:
    await running.control("POST", "/users/77/block")
    blocked = await deliver(running, wish("hello", recipient="77"))
    assert (blocked["error"]["class"], blocked["error"]["retryable"]) == ("target_unavailable", False)
    nobody = await deliver(running, wish("hello", recipient="@nobody_of_that_name"))
    assert (nobody["error"]["class"], nobody["error"]["retryable"]) == ("validation_error", False)
    assert {row["status"] for row in await rows(running)} == {"failed"}
    assert [a["outcome"] for a in await attempts(running)] == ["rejected", "rejected"]
    assert await sends(running) == 2


async def test_a_refused_connection_is_certainly_not_sent_and_tried_again(
    tmp_path: Path, postgres_server: EmbeddedPostgres
) -> None:
    with socket.socket() as nobody:
        nobody.bind((HOST, 0))  # bound and not listening: whoever connects is refused
        dead = {"telegram_simulator": nobody.getsockname()[1]}
        roster = quick(tmp_path)
        async with running_system(tmp_path, postgres_server, roster_dir=roster, ports=dead) as running:
            answer = await deliver(running, wish("hello"))
            assert answer["delivery"]["status"] == "dead_lettered"
            assert (answer["error"]["class"], answer["error"]["retryable"]) == ("target_unavailable", True)
            tried = await attempts(running)
            assert [(a["outcome"], a["certainty"]) for a in tried] == [("failed", "not_sent")] * 3


async def test_a_lost_answer_is_uncertain_and_the_message_is_never_sent_again(running: RunningSystem) -> None:
    for kind, arrives in (("drop_before", 0), ("drop_after", 1)):
        await forget(running)
        await fault(running, kind)
        request_id = (await running.ingest(f"I weigh 80 kg ({kind})"))["request_id"]
        # The request itself comes to an end; the doubt stays on record for a person.
        assert (await running.finished(request_id))["lifecycle_state"] == "parsed"
        (row,) = await rows(running)
        (attempt,) = await attempts(running)
        assert (row["status"], row["terminal_retryable"], attempt["certainty"]) == ("uncertain", False, "uncertain")
        assert row["terminal_at"] is not None
        assert len(await running.answers()) == arrives
        # Neither a later delivery to the chat nor a new process sends it again.
        await deliver(running, wish("later"))
        await running.restart()
        await deliver(running, wish("much later"))
        assert await sends(running) == 3
        assert (await rows(running))[0]["status"] == "uncertain"
        assert len(await running.answers()) == arrives + 2


@pytest.mark.scenario("M0-018")
async def test_each_channel_has_its_own_time_limit(tmp_path: Path, postgres_server: EmbeddedPostgres) -> None:
    shipped = load_roster(shipped_roster())["messenger"].delivery.timeout_s
    assert shipped == {"telegram": 15.0, "email": 45.0, "default": 30.0}
    limits = (time_limit(telegram=0.4, email=0.8),)
    waiting = (r"route_timeout_s = 20\.0", "route_timeout_s = 2.0")
    async with running_system(tmp_path, postgres_server, roster_dir=quick(tmp_path, *limits, waiting)) as running:
        await fault(running, "delay", seconds=20)
        await _timed_out(running, wish("slow"), at_least_ms=400)
        await mail_fault(running, phase="dot", kind="delay", seconds=20)
        await _resent(running, wish("slow", channel="email"), at_least_ms=800)
        # Too slow before anything left: certainly not sent, and tried again.
        await mail_fault(running, phase="mail", kind="delay", seconds=20)
        early = await deliver(running, wish("early", channel="email"))
        first, second = await attempts(running, early["delivery"]["delivery_id"])
        assert (first["error_class"], first["certainty"], second["certainty"]) == ("timeout", "not_sent", "sent")
        # A caller that stops waiting does not stop the delivery.
        await fault(running, "too_many_requests", retry_after=3)
        answer = await deliver(running, wish("in the end"))
        assert (answer["status"], answer["delivery"]["status"]) == ("ok", "awaiting_retry")
        await hurry(running)
        await running.until(lambda: _arrived(running, 1))
        assert "[health] in the end" in await running.answers()


async def _timed_out(running: RunningSystem, notify: dict[str, Any], *, at_least_ms: int) -> None:
    answer = await deliver(running, notify)
    assert (answer["error"]["class"], answer["error"]["retryable"]) == ("timeout", False)
    assert answer["delivery"]["status"] == "uncertain"
    (attempt,) = await attempts(running, answer["delivery"]["delivery_id"])
    assert attempt["certainty"] == "uncertain"
    assert at_least_ms <= attempt["latency_ms"] < at_least_ms + 2000


async def _resent(running: RunningSystem, notify: dict[str, Any], *, at_least_ms: int) -> None:
    """A mailbox can tell a repeat by its Message-ID, so mail that may have arrived is sent again as it was."""
    answer = await deliver(running, notify)
    assert answer["delivery"]["status"] == "delivered"
    first, second = await attempts(running, answer["delivery"]["delivery_id"])
    assert (first["error_class"], first["certainty"], second["certainty"]) == ("timeout", "uncertain", "sent")
    assert at_least_ms <= first["latency_ms"] < at_least_ms + 2000


async def test_messages_to_one_chat_arrive_in_order_through_a_429(running: RunningSystem) -> None:
    await fault(running, "delay", seconds=1)
    async with running.mcp("messenger", caller="switchboard") as client:
        calls = [
            asyncio.create_task(client.call_tool("route.execute", route(running, wish(f"message {n}"))))
            for n in range(MESSAGES)
        ]
        await running.until(lambda: _recorded(running, MESSAGES))
        await running.until(lambda: _arrived(running, 5))
        await fault(running, "too_many_requests", retry_after=1)
        results: list[Any] = [result.structured_content for result in await asyncio.gather(*calls)]
    assert {r["result"]["notify_response"]["delivery"]["status"] for r in results} == {"delivered"}
    assert [a["outcome"] for a in await attempts(running)].count("rejected") == 1
    assert await running.answers() == [row["message"] for row in await rows(running)]
    assert len(set(await running.answers())) == MESSAGES


async def test_one_slow_chat_does_not_hold_up_another(running: RunningSystem) -> None:
    await fault(running, "too_many_requests", retry_after=30, chat_id=61)
    waiting = [asyncio.create_task(deliver(running, wish(text, recipient="61"))) for text in ("a", "b")]
    await running.until(lambda: _recorded(running, 2))
    assert (await deliver(running, wish("c", recipient="62")))["delivery"]["status"] == "delivered"
    assert await running.answers(62) == ["[health] c"]
    assert await running.answers(61) == []
    await hurry(running)
    assert {(await task)["delivery"]["status"] for task in waiting} == {"delivered"}
    assert await running.answers(61) == [row["message"] for row in await rows(running)][:2]


async def _recorded(running: RunningSystem, count: int) -> bool:
    return len(await rows(running)) == count


async def _arrived(running: RunningSystem, count: int) -> bool:
    return len(await running.answers()) >= count
