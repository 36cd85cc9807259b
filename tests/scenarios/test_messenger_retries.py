"""What is tried again, how often and when; and what is not (seed 000 "Retry with Exponential Backoff")."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from butlers.channels.telegram.adapter import TelegramChannel
from butlers.daemon.settings import shipped_roster
from butlers.roster import load_roster
from butlers.storage.embedded import EmbeddedPostgres
from tests.scenarios.messenger_door import attempts, deliver, fault, mail_fault, mails, rows, sends, wish
from tests.scenarios.messenger_time import (
    NO_BREAKER,
    advance,
    all_have,
    emptied,
    ended_attempts,
    later,
    running,
    standing_still,
    system,
    with_status,
)
from tests.system import RunningSystem

pytestmark = pytest.mark.asyncio(loop_scope="module")
__all__ = ["running", "system"]  # fixtures

CHANGES = (NO_BREAKER,)
FRIEND = "friend@elsewhere.example"


def mail() -> dict[str, Any]:
    return wish("hello", channel="email", recipient=FRIEND, subject="s")


async def pauses(running: RunningSystem, notify: dict[str, Any]) -> list[float]:
    """Seconds between the attempts at a delivery that fails every time, up to its end."""
    await later(running, notify)
    seen: list[float] = []
    while True:
        last = (await ended_attempts(running, len(seen) + 1))[-1]
        [row] = await rows(running)
        assert last["started_at"] == running.clock.now()  # neither early nor late
        if row["status"] != "awaiting_retry":
            return seen
        seen.append((row["next_attempt_at"] - running.clock.now()).total_seconds())
        advance(running, seen[-1])


def within(pause: float, around: float, *, jitter: float = 0.3, cap: float) -> bool:
    lowest, highest = around * (1 - jitter), min(around * (1 + jitter), cap)
    return lowest - 0.001 <= pause <= highest + 0.001


@pytest.mark.scenario("M0-016")
async def test_retry_policy(running: RunningSystem) -> None:
    shipped = load_roster(shipped_roster())["messenger"].delivery.retry["default"]
    assert (shipped.max_attempts, shipped.base_delay_s, shipped.max_delay_s, shipped.jitter) == (3, 1.0, 60.0, 0.3)
    await fault(running, "error_5xx", times=None, status=503)
    first, second = await pauses(running, wish("never"))
    assert within(first, 1.0, cap=60)
    assert within(second, 2.0, cap=60)
    [row] = await rows(running)
    assert (row["status"], row["terminal_error_class"], row["attempts"]) == (
        "dead_lettered",
        "target_unavailable",
        3,
    )
    tried = await attempts(running)
    assert [(a["attempt_number"], a["error_class"], a["retryable"]) for a in tried] == [
        (n, "target_unavailable", True) for n in (1, 2, 3)
    ]
    assert await sends(running) == 3

    # Chance spreads those that failed together.
    await emptied(running)
    await fault(running, "error_5xx", times=None, status=503)
    for chat in range(101, 113):
        await later(running, wish("never", recipient=str(chat)))
    await ended_attempts(running, 12)
    waits = [(row["next_attempt_at"] - running.clock.now()).total_seconds() for row in await rows(running)]
    assert all(within(wait, 1.0, cap=60) for wait in waits)
    assert len({round(wait, 3) for wait in waits}) > 6


async def test_an_outage_of_minutes_makes_no_dead_letter(tmp_path: Path, postgres_server: EmbeddedPostgres) -> None:
    """As shipped, a message survives a provider that answers 500 for several minutes."""
    async with standing_still(tmp_path, postgres_server, NO_BREAKER, shipped_retries=True) as running:
        await fault(running, "error_5xx", times=None, status=500)
        seen = await pauses(running, wish("patience"))
        assert len(seen) == 13
        for number, pause in enumerate(seen):
            assert within(pause, min(2.0**number, 120.0), cap=120), (number, pause)
        assert sum(seen) > timedelta(minutes=8).total_seconds()


async def test_a_permanent_error_still_ends_a_delivery_at_once(
    tmp_path: Path, postgres_server: EmbeddedPostgres
) -> None:
    async with standing_still(tmp_path, postgres_server, shipped_retries=True) as running:
        await fault(running, "refused", times=None, status=400)
        await later(running, wish("never"))
        await ended_attempts(running, 1)
        assert await all_have(running, "failed")


@pytest.mark.scenario("M0-016")
async def test_email_has_a_longer_schedule_of_its_own(running: RunningSystem) -> None:
    await mail_fault(running, phase="rcpt", kind="reply", code=451, text="4.7.1 greylisted", times=None)
    seen = await pauses(running, mail())
    assert len(seen) == 7
    for number, pause in enumerate(seen):
        assert within(pause, min(60.0 * 2**number, 3600.0), cap=3600), (number, pause)
    assert await mails(running) == []
    assert await all_have(running, "dead_lettered")


async def test_a_pause_is_never_longer_than_the_cap(tmp_path: Path, postgres_server: EmbeddedPostgres) -> None:
    slow = (
        r"max_attempts = 3\nbase_delay_s = 1\.0\nmax_delay_s = 60\.0",
        "max_attempts = 6\nbase_delay_s = 40.0\nmax_delay_s = 60.0",
    )
    async with standing_still(tmp_path, postgres_server, NO_BREAKER, slow) as running:
        await fault(running, "error_5xx", times=None)
        seen = await pauses(running, wish("never"))
        assert within(seen[0], 40.0, cap=60)
        assert all(within(pause, 60.0, cap=60) for pause in seen[1:])
        assert len(seen) == 5


@pytest.mark.scenario("M0-017")
@pytest.mark.scenario("M1-037")
@pytest.mark.parametrize(
    ("code", "description", "error_class"),
    [
        (401, "Unauthorized", "target_unavailable"),  # auth
        (403, "Forbidden: bot was blocked by the user", "target_unavailable"),  # permission
        (400, "Bad Request: chat not found", "validation_error"),
        (400, "Bad Request: message content is not allowed", "validation_error"),  # content policy
    ],
)
async def test_what_telegram_refuses_for_good_fails_fast(
    running: RunningSystem, code: int, description: str, error_class: str
) -> None:
    await fault(running, "refused", status=code, description=description, times=None)
    answer = await deliver(running, wish("never"))
    assert (answer["delivery"]["status"], answer["error"]["class"]) == ("failed", error_class)
    assert answer["error"]["retryable"] is False
    await _tried_once(running, error_class, meanwhile=mail())
    assert await sends(running) == 1
    assert await running.answers() == []


@pytest.mark.scenario("M1-037")
@pytest.mark.parametrize(
    ("phase", "code", "text", "error_class"),
    [
        ("auth", 535, "5.7.8 authentication failed", "target_unavailable"),
        ("rcpt", 550, "5.1.1 no such user", "validation_error"),
        ("dot", 554, "5.7.1 message content rejected", "validation_error"),  # content policy
    ],
)
async def test_what_a_mail_server_refuses_for_good_fails_fast(
    running: RunningSystem, phase: str, code: int, text: str, error_class: str
) -> None:
    await mail_fault(running, phase=phase, kind="reply", code=code, text=text, times=None)
    answer = await deliver(running, mail())
    assert (answer["delivery"]["status"], answer["error"]["class"]) == ("failed", error_class)
    assert answer["error"]["retryable"] is False
    await _tried_once(running, error_class, meanwhile=wish("fine"))
    assert await mails(running) == []


@pytest.mark.scenario("M0-017")
async def test_a_mistake_of_ours_is_not_repeated(running: RunningSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(TelegramChannel, "attempt", broken)
    answer = await deliver(running, wish("never"))
    assert (answer["delivery"]["status"], answer["error"]["class"]) == ("failed", "internal_error")
    assert answer["error"]["retryable"] is False
    await _tried_once(running, "internal_error", meanwhile=mail())
    assert await sends(running) == 0


async def _tried_once(running: RunningSystem, error_class: str, *, meanwhile: dict[str, Any]) -> None:
    """Time passes, and nothing more happens; the failure is final and is no dead letter."""
    advance(running, 3600)
    assert (await deliver(running, meanwhile))["delivery"]["status"] == "delivered"
    first = (await rows(running))[0]
    [attempt] = await attempts(running, first["id"])
    assert (attempt["certainty"], attempt["retryable"], attempt["error_class"]) == ("not_sent", False, error_class)
    assert (first["status"], first["terminal_error_class"]) == ("failed", error_class)
    assert await running.database.fetchval("select count(*) from messenger.delivery_dead_letter") == 0


# --- not_after -------------------------------------------------------------------------------------------------------


def until(running: RunningSystem, seconds: float) -> str:
    return (running.clock.now() + timedelta(seconds=seconds)).isoformat()


async def test_what_expires_behind_another_message_is_never_sent(running: RunningSystem) -> None:
    await fault(running, "delay", seconds=10)
    slow = await later(running, wish("slow"))
    await running.until(lambda: with_status(running, "in_progress"))
    brief = await later(running, wish("at once or never", not_after=until(running, 5)))
    patient = await later(running, wish("any time", not_after=until(running, 60)))
    advance(running, 6)
    expired = await brief
    assert (expired["delivery"]["status"], expired["error"]["class"]) == ("expired", "timeout")
    assert expired["error"]["retryable"] is False
    advance(running, 4)
    assert [(await task)["delivery"]["status"] for task in (slow, patient)] == ["delivered"] * 2
    assert await running.answers() == ["[health] slow", "[health] any time"]
    assert await attempts(running, expired["delivery"]["delivery_id"]) == []


async def test_a_retry_that_would_come_too_late_is_not_waited_for(running: RunningSystem) -> None:
    await fault(running, "too_many_requests", retry_after=30)
    late = await deliver(running, wish("soon", not_after=until(running, 20)))
    assert (late["delivery"]["status"], late["error"]["class"]) == ("expired", "target_unavailable")
    # One that comes in time is.
    advance(running, 30)
    await fault(running, "too_many_requests", retry_after=10)
    await later(running, wish("later", not_after=until(running, 20)))
    await running.until(lambda: with_status(running, "awaiting_retry"))
    advance(running, 10)
    await running.until(lambda: with_status(running, "delivered"))
    assert await running.answers() == ["[health] later"]


async def test_what_is_too_late_already_is_never_sent(running: RunningSystem) -> None:
    answer = await deliver(running, wish("yesterday", not_after=until(running, -1)))
    assert (answer["delivery"]["status"], answer["error"]["class"]) == ("expired", "timeout")
    assert await sends(running) == 0
