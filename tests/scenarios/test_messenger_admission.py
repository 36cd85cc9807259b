"""How much is taken on, and what is said to whom it is too much (seed 000 "Rate Limiting", seed 001 section 8)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from butlers.daemon.settings import shipped_roster
from butlers.roster import load_roster
from butlers.storage.embedded import EmbeddedPostgres
from tests.scenarios.messenger_door import (
    deliver,
    execute,
    fault,
    lineage,
    mail_fault,
    mails,
    refusal,
    route,
    rows,
    sends,
    wish,
)
from tests.scenarios.messenger_time import (
    advance,
    all_have,
    as_time_passes,
    ended_attempts,
    later,
    limits,
    standing_still,
    tool,
    turned_away,
    with_status,
)
from tests.system import RunningSystem

SHIPPED = load_roster(shipped_roster())["messenger"].delivery.limits
WIDE = {"global_per_minute": 1000.0, "telegram_bot": 1000.0, "email_bot": 1000.0, "recipient_per_minute": 1000.0}


async def sent(running: RunningSystem, *wishes: dict[str, Any]) -> None:
    for notify in wishes:
        assert (await deliver(running, notify))["delivery"]["status"] == "delivered"


async def overloaded(running: RunningSystem, notify: dict[str, Any]) -> tuple[str, float]:
    """What Messenger says about a budget, and when to come again."""
    error = await turned_away(running, notify)
    assert error["class"] == "overload_rejected"
    return error["message"], error["retry_after_seconds"]


async def throttled(running: RunningSystem, notify: dict[str, Any]) -> float:
    error = await turned_away(running, notify)
    assert error["class"] == "target_unavailable"
    assert "asked to wait" in error["message"]
    wait: float = error["retry_after_seconds"]
    return wait


def to(chat: int, message: str = "hello") -> dict[str, Any]:
    return wish(message, recipient=str(chat))


def mail(number: int = 1) -> dict[str, Any]:
    return wish("hello", channel="email", recipient=f"friend{number}@elsewhere.example", subject="s")


def answer(running: RunningSystem) -> dict[str, Any]:
    return wish("an answer", intent="reply", request_context=lineage(running))


async def rejected_by(running: RunningSystem) -> dict[str, int]:
    """How many were turned away, by rule."""
    query = (
        "select rule, sum(requests)::int as n from messenger.admission_outcomes where outcome = 'rejected' group by 1"
    )
    return {row["rule"]: row["n"] for row in await running.database.fetch(query)}


@pytest.mark.scenario("M0-009")
async def test_global_admission_control(tmp_path: Path, postgres_server: EmbeddedPostgres) -> None:
    assert (SHIPPED.global_per_minute, SHIPPED.max_in_flight) == (60.0, 100)
    tight = limits(**WIDE | {"global_per_minute": 6.0, "max_in_flight": 3})
    async with standing_still(tmp_path, postgres_server, *tight, shipped_limits=True) as running:
        await sent(running, *map(to, range(101, 104)), *map(mail, range(3)))
        for too_much in (to(104), mail(9)):
            assert await overloaded(running, too_much) == ("the budget of all channels is used up", 10.0)
        advance(running, 9)
        assert (await overloaded(running, to(104)))[1] == 1.0
        advance(running, 1)
        await sent(running, to(104))
        assert await sends(running) == 4
        assert len(await mails(running)) == 3

        advance(running, 60)
        await fault(running, "delay", seconds=5, times=3)
        slow = [await later(running, to(chat)) for chat in (111, 112, 113)]
        assert await overloaded(running, mail()) == ("3 deliveries are in flight, the limit is 3", 1.0)
        advance(running, 5)
        assert {(await task)["delivery"]["status"] for task in slow} == {"delivered"}
        await sent(running, mail())
        assert await rejected_by(running) == {"global": 3, "in_flight": 1}
        assert await all_have(running, "delivered")


@pytest.mark.scenario("M0-010")
async def test_channel_level_limits(tmp_path: Path, postgres_server: EmbeddedPostgres) -> None:
    assert SHIPPED.channel_per_minute["telegram.bot"] == 30.0
    assert SHIPPED.channel_per_minute["email.bot"] == 20.0
    assert SHIPPED.reply_multiplier == 2.0
    tight = limits(**WIDE | {"telegram_bot": 4.0, "email_bot": 2.0})
    async with standing_still(tmp_path, postgres_server, *tight, shipped_limits=True) as running:
        await sent(running, *map(to, range(101, 105)))
        assert await overloaded(running, to(105)) == ("the budget of telegram.bot is used up", 15.0)
        # Another channel has a budget of its own.
        await sent(running, mail(1), mail(2))
        assert await overloaded(running, mail(3)) == ("the budget of email.bot is used up", 30.0)
        # An answer costs half: it is due after half the time, and twice as many fit.
        assert (await overloaded(running, answer(running)))[1] == 7.5
        advance(running, 60)
        await sent(running, *(answer(running) for _ in range(8)))
        assert (await overloaded(running, answer(running)))[1] == 7.5
        assert (await overloaded(running, to(105)))[1] == 15.0
        assert await rejected_by(running) == {"channel": 5}
        assert await sends(running) == 12


@pytest.mark.scenario("M0-011")
async def test_per_recipient_anti_flood(tmp_path: Path, postgres_server: EmbeddedPostgres) -> None:
    assert SHIPPED.recipient_per_minute == 10.0
    tight = limits(**WIDE | {"recipient_per_minute": 2.0})
    async with standing_still(tmp_path, postgres_server, *tight, shipped_limits=True) as running:
        await sent(running, to(101), to(101))
        assert await overloaded(running, to(101)) == ("the budget of this recipient is used up", 30.0)
        await sent(running, to(102), mail(1), mail(1))
        assert (await overloaded(running, mail(1)))[0] == "the budget of this recipient is used up"
        advance(running, 30)
        await sent(running, to(101))
        assert (await overloaded(running, to(101)))[1] == 30.0
        assert await rejected_by(running) == {"recipient": 3}
        assert await running.answers(101) == ["[health] hello"] * 3


async def test_whoever_has_moved_has_one_budget(tmp_path: Path, postgres_server: EmbeddedPostgres) -> None:
    tight = limits(**WIDE | {"recipient_per_minute": 2.0})
    async with standing_still(tmp_path, postgres_server, *tight, shipped_limits=True) as running:
        await running.database.execute(
            "insert into messenger.recipient_rules (channel, target, rule, moved_to, reason, decided_by, since)"
            " values ('telegram', '101', 'moved', '-1001', 'supergroup', 'provider', now())"
        )
        await sent(running, to(101), to(-1001))
        for too_much in (to(101), to(-1001)):
            assert await overloaded(running, too_much) == ("the budget of this recipient is used up", 30.0)
        assert len(await running.answers(-1001)) == 2
        # Whoever is gone from the new address is not written to at the old one either.
        await running.database.execute(
            "insert into messenger.recipient_rules (channel, target, rule, reason, decided_by, since)"
            " values ('telegram', '-1001', 'suppressed', 'kicked', 'provider', now())"
        )
        assert "is suppressed" in (await refusal(running, to(101)))["message"]


@pytest.mark.scenario("M1-033")
async def test_a_delivery_draws_from_all_three_budgets_or_from_none(
    tmp_path: Path, postgres_server: EmbeddedPostgres
) -> None:
    async with standing_still(tmp_path, postgres_server, shipped_limits=True) as running:
        await sent(running, *(to(101) for _ in range(10)), to(102), mail(1))
        drawn = {
            "global": (60.0, 48.0),
            "channel:telegram.bot": (30.0, 19.0),
            "channel:email.bot": (20.0, 19.0),
            "recipient:telegram.bot:101": (10.0, 0.0),
            "recipient:telegram.bot:102": (10.0, 9.0),
            "recipient:email.bot:friend1@elsewhere.example": (10.0, 9.0),
        }
        assert await _buckets(running) == drawn
        for _ in range(5):
            assert (await overloaded(running, to(101)))[0] == "the budget of this recipient is used up"
        assert await _buckets(running) == drawn
        shown = await tool(running, "rate_limit_status", channel="telegram")
        assert shown["channels"].keys() == {"telegram.bot"}
        assert len(await rows(running)) == 12


async def _buckets(running: RunningSystem) -> dict[str, tuple[float, float]]:
    query = "select name, capacity, tokens from messenger.rate_buckets where layer is null and name <> 'lock'"
    return {row["name"]: (row["capacity"], row["tokens"]) for row in await running.database.fetch(query)}


@pytest.mark.scenario("M0-012")
async def test_provider_throttle_passthrough(tmp_path: Path, postgres_server: EmbeddedPostgres) -> None:
    async with standing_still(tmp_path, postgres_server) as running:
        await fault(running, "too_many_requests", retry_after=30, chat_id=61)
        await later(running, to(61, "first"))
        await ended_attempts(running, 1)
        # Telegram means the chat: others are not concerned, whatever their intent.
        assert await throttled(running, to(61)) == 30.0
        await sent(running, to(62, "in between"), mail())
        advance(running, 10)
        assert await throttled(running, to(61)) == 20.0

        # A second chat that has to wait means that Telegram is tired of the bot.
        await fault(running, "too_many_requests", retry_after=40, chat_id=62)
        await later(running, to(62, "second"))
        await ended_attempts(running, 4)
        for refused in (to(62), to(63), answer(running)):
            assert await throttled(running, refused) == 40.0
        await sent(running, mail())
        scopes = await running.database.fetch("select scope from messenger.throttles order by scope")
        assert [row["scope"] for row in scopes] == ["telegram.bot", "telegram.bot:61"]

        # The window of the first chat closes, that of the bot is open still.
        advance(running, 20)
        assert await throttled(running, to(61)) == 20.0
        assert await sends(running) == 3
        advance(running, 20)
        await sent(running, to(63))
        await running.until(lambda: all_have(running, "delivered"))
        assert (await running.answers(61), await running.answers(62)) == (
            ["[health] first"],
            ["[health] in between", "[health] second"],
        )
        assert await rejected_by(running) == {"throttle": 6}


async def test_a_mail_server_that_has_enough_is_left_alone(tmp_path: Path, postgres_server: EmbeddedPostgres) -> None:
    async with standing_still(tmp_path, postgres_server) as running:
        await mail_fault(running, phase="mail", kind="reply", code=421, text="4.7.0 too many messages")
        waiting = await later(running, mail(1))
        await ended_attempts(running, 1)
        assert await throttled(running, mail(2)) == 60.0
        await sent(running, to(101))
        advance(running, 60)
        await sent(running, mail(2))
        await as_time_passes(running, lambda: with_status(running, "delivered", 3))
        await waiting
        assert len(await mails(running)) == 2


@pytest.mark.scenario("M1-026")
async def test_refusals_have_the_canonical_classes(tmp_path: Path, postgres_server: EmbeddedPostgres) -> None:
    tight = limits(**WIDE | {"recipient_per_minute": 1.0})
    async with standing_still(tmp_path, postgres_server, *tight, shipped_limits=True) as running:
        await sent(running, to(101))
        overload = await turned_away(running, to(101))
        await fault(running, "too_many_requests", retry_after=30, chat_id=102)
        await later(running, to(102))
        await ended_attempts(running, 2)
        throttle = await turned_away(running, to(102))
        caller = await refusal(running, wish("x", intent="shout"))
        assert [error["class"] for error in (overload, throttle, caller)] == [
            "overload_rejected",
            "target_unavailable",
            "validation_error",
        ]
        assert [error["retryable"] for error in (overload, throttle, caller)] == [True, True, False]
        assert [error.get("retry_after_seconds") for error in (overload, throttle, caller)] == [60.0, 30.0, None]
        # A delivery that fails after it was taken on says the same in the route's and in its own answer.
        for code, error_class in ((400, "validation_error"), (403, "target_unavailable")):
            await fault(running, "refused", status=code)
            response = await execute(running, route(running, to(code)))
            for told in (response["error"], response["result"]["notify_response"]["error"]):
                assert (told["class"], told["retryable"]) == (error_class, False)
