"""The delivery policy of butler.toml: every control is a line in the file, and every line is seen at the door."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from butlers.errors import ConfigurationError
from butlers.roster import load_roster
from butlers.storage.embedded import EmbeddedPostgres
from tests.scenarios.messenger_door import (
    attempts,
    call,
    certainty,
    changed_roster,
    deliver,
    email_retries,
    execute,
    fault,
    mail_fault,
    mails,
    route,
    rows,
    time_limit,
    wish,
)
from tests.system import RunningSystem, running_system

FRIEND = "friend@elsewhere.example"
QUIET = (r"^tell_owner = true", "tell_owner = false")
IMPATIENT = (r"^route_timeout_s = .*$", "route_timeout_s = 1.0")


async def tool(running: RunningSystem, name: str, **arguments: Any) -> dict[str, Any]:
    return await call(running, "messenger", f"messenger_{name}", arguments)


async def refused(running: RunningSystem, **fields: Any) -> dict[str, Any]:
    error: dict[str, Any] = (await execute(running, route(running, wish("no room", **fields))))["error"]
    assert (error["class"], error["retryable"]) == ("overload_rejected", True)
    assert error["retry_after_seconds"] > 0
    return error


def mail(message: str, **fields: Any) -> dict[str, Any]:
    return wish(message, channel="email", recipient=FRIEND, subject="s", **fields)


@pytest.mark.scenario("M1-043")
async def test_limits_in_flight_per_channel_and_per_recipient(
    tmp_path: Path, postgres_server: EmbeddedPostgres
) -> None:
    changes = (
        (r"^max_in_flight = .*$", "max_in_flight = 1"),
        (r'^"telegram\.bot" = .*$', '"telegram.bot" = 2.0'),
        (r"^recipient_per_minute = .*$", "recipient_per_minute = 1.0"),
        QUIET,
    )
    roster = changed_roster(tmp_path, "messenger", *changes)
    async with running_system(tmp_path, postgres_server, roster_dir=roster, shipped_limits=True) as running:
        await fault(running, "delay", seconds=2, chat_id=31)
        slow = asyncio.create_task(deliver(running, wish("slow", recipient="31")))

        async def under_way() -> int:
            in_call: int = (await tool(running, "queue_depth"))["by_phase"]["in_provider_call"]
            return in_call

        await running.until(under_way)
        assert "in flight" in (await refused(running, recipient="32"))["message"]
        assert (await slow)["delivery"]["status"] == "delivered"
        assert "this recipient" in (await refused(running, recipient="31"))["message"]
        assert (await deliver(running, wish("fits", recipient="32")))["status"] == "ok"
        assert "telegram.bot" in (await refused(running, recipient="33"))["message"]
        # Another channel has a budget of its own.
        assert (await deliver(running, mail("by mail")))["status"] == "ok"
        shown = await tool(running, "rate_limit_status")
        assert (shown["channels"]["telegram.bot"]["total"], shown["recipients"]["total"]) == (2.0, 1.0)
        assert (await running.answers(31), await running.answers(32)) == (["[health] slow"], ["[health] fits"])
        assert (await running.answers(33), len(await mails(running))) == ([], 1)


@pytest.mark.scenario("M1-043")
async def test_the_global_limit(tmp_path: Path, postgres_server: EmbeddedPostgres) -> None:
    changes = ((r"^global_per_minute = .*$", "global_per_minute = 2.0"), QUIET)
    roster = changed_roster(tmp_path, "messenger", *changes)
    async with running_system(tmp_path, postgres_server, roster_dir=roster, shipped_limits=True) as running:
        await deliver(running, wish("one", recipient="34"))
        await deliver(running, mail("two"))
        assert "all channels" in (await refused(running, recipient="35"))["message"]
        assert len(await rows(running)) == 2


@pytest.mark.scenario("M1-043")
async def test_timeout_retry_and_backoff_per_channel(tmp_path: Path, postgres_server: EmbeddedPostgres) -> None:
    changes = (
        time_limit(telegram=0.3),
        (r"^max_attempts = 3\nbase_delay_s = 1\.0", "max_attempts = 2\nbase_delay_s = 0.05"),
        email_retries(25.0, jitter=0.0),
        IMPATIENT,
    )
    roster = changed_roster(tmp_path, "messenger", *changes)
    async with running_system(tmp_path, postgres_server, roster_dir=roster) as running:
        # The same second of silence is too long for the one and nothing to the other.
        await fault(running, "delay", seconds=1, chat_id=36)
        impatient = await deliver(running, wish("no answer", recipient="36"))
        assert impatient["delivery"]["status"] == "uncertain"
        [tried] = await attempts(running, impatient["delivery"]["delivery_id"])
        assert 250 <= tried["latency_ms"] < 1000
        await mail_fault(running, phase="rcpt", kind="delay", seconds=0.5)
        assert (await deliver(running, mail("patience")))["delivery"]["status"] == "delivered"
        # Two attempts on Telegram, then it is set aside.
        await fault(running, "error_5xx", times=3, status=502, chat_id=37)
        exhausted = await deliver(running, wish("never", recipient="37"))
        assert exhausted["delivery"]["status"] == "dead_lettered"
        assert len(await attempts(running, exhausted["delivery"]["delivery_id"])) == 2
        # A mail comes back after the configured pause, exactly, because chance has no share in it.
        await mail_fault(running, phase="rcpt", kind="reply", code=451)
        later = await deliver(running, mail("greylisted"))
        assert later["delivery"]["status"] == "awaiting_retry"
        row = (await rows(running))[-1]
        [tried] = await attempts(running, row["id"])
        pause = row["next_attempt_at"] - tried["completed_at"]
        assert timedelta(seconds=24) < pause < timedelta(seconds=26)


@pytest.mark.scenario("M1-043")
async def test_how_long_a_key_is_known(tmp_path: Path, postgres_server: EmbeddedPostgres) -> None:
    roster = changed_roster(tmp_path, "messenger", (r"^dedupe_retention_days = .*$", "dedupe_retention_days = 2.0"))
    async with running_system(tmp_path, postgres_server, roster_dir=roster) as running:
        notify = wish("once in a while", recipient="38", idempotency_key="now and then")

        async def days_later(days: float) -> dict[str, Any]:
            await running.database.execute(
                "update messenger.delivery_requests set terminal_at = now() - $1::interval", timedelta(days=days)
            )
            await running.run_service("messenger", "tidying")
            answer: dict[str, Any] = (await deliver(running, notify))["delivery"]
            return answer

        first = (await deliver(running, notify))["delivery"]
        known = await days_later(1.9)
        assert (known["deduplicated"], known["delivery_id"]) == (True, first["delivery_id"])
        new = await days_later(2.1)
        assert (new["deduplicated"], new["status"]) == (False, "delivered")
        assert new["delivery_id"] != first["delivery_id"]
        assert await running.answers(38) == ["[health] once in a while"] * 2
        # The record of the old one stays.
        assert [str(row["id"]) for row in await rows(running)] == [first["delivery_id"], new["delivery_id"]]


@pytest.mark.scenario("M1-043")
@pytest.mark.parametrize("allowed", [0, 1])
async def test_how_often_a_dead_letter_may_be_replayed(
    tmp_path: Path, postgres_server: EmbeddedPostgres, allowed: int
) -> None:
    changes = (
        (r"^max_replays = .*$", f"max_replays = {allowed}"),
        (r"^max_attempts = 3$", "max_attempts = 1"),
    )
    roster = changed_roster(tmp_path, "messenger", *changes)
    async with running_system(tmp_path, postgres_server, names=["messenger"], roster_dir=roster) as running:
        await fault(running, "error_5xx", times=1 + allowed, status=502)
        assert (await deliver(running, wish("never")))["delivery"]["status"] == "dead_lettered"
        letter = (await tool(running, "dead_letter_list"))["dead_letters"][0]["id"]
        for _ in range(allowed):
            replay = await tool(running, "dead_letter_replay", dead_letter_id=letter)
            assert replay["status"] == "dead_lettered"
        too_often = await tool(running, "dead_letter_replay", dead_letter_id=letter)
        assert (too_often["error"]["class"], "replay" in too_often["error"]["message"]) == ("validation_error", True)
        assert len(await rows(running)) == 1 + allowed
        assert await running.answers() == []


@pytest.mark.scenario("M1-043")
async def test_what_cannot_be_meant_stops_the_start_and_names_the_line(tmp_path: Path) -> None:
    wrong = {
        "delivery.limits.max_in_flight": (r"^max_in_flight = .*$", "max_in_flight = 0"),
        "delivery.limits.channel_per_minute": (r'^"telegram\.bot" = .*$', '"telegram.bot" = -1.0'),
        "delivery.retry.default.max_attempts": (r"^max_attempts = 3$", "max_attempts = 0"),
        "delivery.timeout_s": time_limit(telegram=0.0),
        "delivery.dedupe_retention_days": (r"^dedupe_retention_days = .*$", "dedupe_retention_days = 0.0"),
        "delivery.max_replays": (r"^max_replays = .*$", "max_replays = -1"),
        "delivery.certainty.telegram": certainty(telegram="whatever"),
        "delivery.max_in_fligth": (r"^max_replays = .*$", "max_in_fligth = 3"),
    }
    for key, change in wrong.items():
        with pytest.raises(ConfigurationError) as refused:
            load_roster(changed_roster(tmp_path / key, "messenger", change))
        assert key in str(refused.value)
        assert "messenger/butler.toml" in str(refused.value)
