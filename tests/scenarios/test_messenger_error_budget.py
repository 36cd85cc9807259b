"""A channel whose error budget burns is used more strictly, everybody can see it, and it passes again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from butlers.storage.embedded import EmbeddedPostgres
from tests.scenarios.messenger_door import attempts, deliver, fault, rows, wish
from tests.scenarios.messenger_time import advance, as_time_passes, later, standing_still, tool, turned_away
from tests.system import RunningSystem

JUDGED_EVERY_S = 15
SHORT_WINDOW_S, HOLD_S = 300, 120  # as shipped
CHANNEL = "telegram.bot"
CHANGES = (
    # Six endings are enough to judge by; the rest of the policy is the shipped one.
    (r"^\[delivery\.breaker\]", "[delivery.error_budget]\nmin_events = 6\n\n[delivery.breaker]"),
    (r"^tell_owner = true", "tell_owner = false"),
)


@pytest_asyncio.fixture
async def running(tmp_path: Path, postgres_server: EmbeddedPostgres) -> AsyncIterator[RunningSystem]:
    async with standing_still(tmp_path, postgres_server, *CHANGES, shipped_limits=True) as system:
        yield system


async def state(running: RunningSystem) -> dict[str, Any]:
    row = await running.database.fetchrow("select * from messenger.channel_states where name = $1", CHANNEL)
    assert row is not None
    return dict(row)


async def judged(running: RunningSystem, mode: str) -> dict[str, Any]:
    """Let time pass until the budget was looked at; the state of the channel, when it is what is expected."""

    async def look() -> dict[str, Any]:
        now = await state(running)
        return now if now["stance"] == mode else {}

    return await as_time_passes(running, look)


async def failing(running: RunningSystem, chat: str, message: str = "into the void") -> dict[str, Any]:
    """A delivery that uses up its attempts; its row."""
    await fault(running, "error_5xx", times=10, status=502, chat_id=int(chat))
    task = await later(running, wish(message, recipient=chat))

    async def over() -> bool:
        return task.done()

    await as_time_passes(running, over)
    answer = await task
    assert answer["delivery"]["status"] == "dead_lettered", answer
    await running.control("DELETE", "/faults")
    return next(row for row in await rows(running) if str(row["id"]) == answer["delivery"]["delivery_id"])


async def burnt(running: RunningSystem) -> None:
    """Four deliveries, three of whose seven attempts fail."""
    for number in range(4):
        assert (await deliver(running, wish("hello", recipient=f"30{number}")))["status"] == "ok"
    row = await failing(running, "310")
    assert row["attempts"] == 3
    assert not [line for line in row["decisions"] if line["rule"].startswith("error_budget")]


async def pauses(running: RunningSystem, delivery_id: Any) -> list[timedelta]:
    made = await attempts(running, delivery_id)
    return [second["started_at"] - first["completed_at"] for first, second in pairwise(made)]


async def gauge(running: RunningSystem, name: str) -> float:
    text = (await running.http.get(running.url("messenger", "/metrics"))).text
    [line] = [
        line
        for line in text.splitlines()
        if line.startswith(f"butlers_messenger_{name}{{") and 'channel="telegram"' in line
    ]
    return float(line.rsplit(" ", 1)[1])


@pytest.mark.scenario("M1-055")
async def test_burn_tightens_retry_and_admission_visibly_and_relaxes_again(running: RunningSystem) -> None:
    assert (await state(running))["stance"] == "normal"
    await burnt(running)
    tight = await judged(running, "tight")
    assert tight["burn_rate"] == pytest.approx(3 / 7 / 0.01, abs=0.01)

    # Everybody can see it: limits, dry run, service levels, metrics.
    limits = (await tool(running, "rate_limit_status"))["channels"]
    telegram = limits[CHANNEL]
    assert (telegram["stance"], telegram["total"], telegram["configured"]) == ("tight", 15.0, 30.0)
    assert (limits["email.bot"]["stance"], limits["email.bot"]["total"]) == ("normal", 20.0)
    budgets = {b["channel"]: b for b in (await tool(running, "service_levels"))["error_budget"]}
    assert (budgets["telegram"]["stance"], budgets["email"]["stance"]) == ("tight", "normal")

    async def shown() -> bool:
        return await gauge(running, "stance") == 1.0 and await gauge(running, "error_budget_burn") > 6

    await running.until(shown)

    # Fewer attempts, further apart. (A success before, so that the circuit stays out of it.)
    await deliver(running, wish("hello", recipient="312"))
    row = await failing(running, "311", "still nothing")
    assert row["attempts"] == 2
    [pause] = await pauses(running, row["id"])
    assert timedelta(seconds=1.4) <= pause <= timedelta(seconds=3.2)  # 2 s and chance, seen in steps of half a second
    assert ("error_budget_retry", "tightened") in {(d["rule"], d["verdict"]) for d in row["decisions"]}
    told = await tool(running, "delivery_why", delivery_id=str(row["id"]))
    assert "error budget burns" in str(told)

    # Half the budget, and whoever is refused reads why.
    advance(running, 60)
    for number in range(15):
        answer = await deliver(running, wish("hello", recipient=f"32{number}"))
        assert answer["delivery"]["status"] == "delivered", number
    error = await turned_away(running, wish("hello", recipient="399"))
    assert error["class"] == "overload_rejected"
    assert "error budget burns" in error["message"]
    admitted = (await rows(running))[-1]
    assert "error_budget_admission" in {decision["rule"] for decision in admitted["decisions"]}
    assert await running.answers(399) == []


@pytest.mark.scenario("M1-055")
async def test_a_channel_that_recovers_is_used_as_before(running: RunningSystem) -> None:
    await burnt(running)
    since = (await judged(running, "tight"))["stance_since"]
    # Good news at once does not count before the stance has been held for its time.
    advance(running, SHORT_WINDOW_S - 2 * JUDGED_EVERY_S)
    for number in range(6):
        await deliver(running, wish("good again", recipient=f"33{number}"))
    advance(running, 2 * JUDGED_EVERY_S)  # the failures are older than the short window now
    relaxed = await judged(running, "normal")
    assert relaxed["stance_since"] - since >= timedelta(seconds=HOLD_S)
    assert relaxed["burn_rate"] == 0
    telegram = (await tool(running, "rate_limit_status"))["channels"][CHANNEL]
    assert (telegram["stance"], telegram["total"]) == ("normal", 30.0)
    row = await failing(running, "340")
    assert row["attempts"] == 3
    assert not [line for line in row["decisions"] if line["rule"].startswith("error_budget")]


@pytest.mark.scenario("M1-055")
async def test_a_stance_is_held_and_a_few_failures_are_no_burn(running: RunningSystem) -> None:
    # Three failures are too few to say anything.
    await failing(running, "350")
    for _ in range(2 * JUDGED_EVERY_S):
        advance(running, 1)
        assert (await state(running))["stance"] == "normal"
    for number in range(4):
        await deliver(running, wish("hello", recipient=f"36{number}"))
    tight = await judged(running, "tight")
    # Nothing happens for a while: it stays tight for as long as it is held, whatever is measured.
    for _ in range(HOLD_S // 2):
        advance(running, 1)
        now = await state(running)
        assert (now["stance"], now["stance_since"]) == ("tight", tight["stance_since"])
    # What nobody knows keeps nothing tight for longer.
    advance(running, SHORT_WINDOW_S)
    relaxed = await judged(running, "normal")
    assert relaxed["burn_rate"] is None
    assert relaxed["stance_since"] - tight["stance_since"] >= timedelta(seconds=HOLD_S)
