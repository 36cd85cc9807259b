"""Who goes first when there is not enough for all: answers, and each butler in its turn (seed 001 section 8)."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from butlers.storage.embedded import EmbeddedPostgres
from tests.scenarios.messenger_door import deliver, execute, fault, lineage, mails, route, rows, wish
from tests.scenarios.messenger_time import (
    advance,
    all_have,
    as_time_passes,
    later,
    limits,
    standing_still,
    tool,
    with_status,
)
from tests.system import RunningSystem

WIDE = {"global_per_minute": 1000.0, "telegram_bot": 1000.0, "recipient_per_minute": 1000.0}
ONE_AT_A_TIME = (r"max_concurrent_attempts = \d+", "max_concurrent_attempts = 1")
NOISY, QUIET = "health", "travel"


def to(chat: int, origin: str = NOISY) -> dict[str, Any]:
    return wish(f"to {chat}", recipient=str(chat), origin_butler=origin)


def answer(running: RunningSystem, chat: int, origin: str = NOISY) -> dict[str, Any]:
    thread = {"source_sender_identity": str(chat), "source_thread_identity": str(chat)}
    return wish("an answer", intent="reply", request_context=lineage(running, **thread), origin_butler=origin)


async def fared(running: RunningSystem, notify: dict[str, Any]) -> str:
    """Admitted, or the class of the refusal."""
    response = await execute(running, route(running, notify))
    return "admitted" if response["status"] == "ok" else str(response["error"]["class"])


async def at_the_door(running: RunningSystem) -> None:
    """Return when whatever was handed in before has come as far as the lock: others overtake it there."""
    for _ in range(10):
        await tool(running, "dry_run", notify_request=wish("meanwhile"))


async def _waits_for_the_lock(running: RunningSystem) -> bool:
    query = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
    return bool(await running.database.fetchval(query))


async def begun_before(running: RunningSystem) -> dict[str, int]:
    """By recipient, how many attempts had begun before the one at it; of those of one moment none is before another."""
    query = (
        "select request.target_identity as chat, rank() over (order by attempt.started_at) - 1 as before"
        " from messenger.delivery_attempts as attempt"
        " join messenger.delivery_requests as request on request.id = attempt.delivery_id"
    )
    return {row["chat"]: row["before"] for row in await running.database.fetch(query)}


@pytest.mark.scenario("M1-034")
async def test_answers_are_admitted_first_when_there_is_not_enough_for_all(
    tmp_path: Path, postgres_server: EmbeddedPostgres
) -> None:
    tight = limits(**WIDE | {"telegram_bot": 5.0})
    async with standing_still(tmp_path, postgres_server, *tight, shipped_limits=True) as running:
        async with running.database.transaction() as connection:
            # As long as another process decides, everything waits at the door; then it is judged together. Two commits
            # may be under way at one time, one at the lock and one behind it, and their batches are closed: the openers
            # are in those.
            await connection.fetchval("select name from messenger.rate_buckets where name = 'lock' for update")
            openers = []
            for chat in (99, 100):
                openers.append(asyncio.create_task(fared(running, to(chat))))
                await running.until(partial(_waits_for_the_lock, running))
                await at_the_door(running)
            sends = [asyncio.create_task(fared(running, to(101 + n))) for n in range(6)]
            await at_the_door(running)
            answers = [asyncio.create_task(fared(running, answer(running, 201 + n))) for n in range(6)]
            await at_the_door(running)
        assert await asyncio.gather(*openers) == ["admitted"] * 2
        # Three tokens are left: six answers at half a token each, and nothing for those who came before them.
        assert await asyncio.gather(*answers) == ["admitted"] * 6
        assert await asyncio.gather(*sends) == ["overload_rejected"] * 6
        assert sorted(row["intent"] for row in await rows(running)) == ["reply"] * 6 + ["send"] * 2
        for chat in range(201, 207):
            assert await running.answers(chat) == ["[health] an answer"]


@pytest.mark.scenario("M1-034")
async def test_an_answer_overtakes_the_waiting_sends_of_other_conversations(
    tmp_path: Path, postgres_server: EmbeddedPostgres
) -> None:
    async with standing_still(tmp_path, postgres_server, ONE_AT_A_TIME) as running:
        await fault(running, "delay", seconds=1, times=None)
        for chat in range(101, 106):
            await later(running, to(chat))
        await running.until(lambda: with_status(running, "in_progress"))
        await later(running, wish("urgent", recipient="301", priority="urgent"))
        await later(running, answer(running, 201))
        await as_time_passes(running, lambda: all_have(running, "delivered"))
        before = await begun_before(running)
        assert sorted(before, key=before.__getitem__) == ["101", "201", "301", "102", "103", "104", "105"]


@pytest.mark.scenario("M1-035")
async def test_a_noisy_butler_leaves_the_others_their_share(tmp_path: Path, postgres_server: EmbeddedPostgres) -> None:
    tight = limits(**WIDE | {"telegram_bot": 10.0})
    async with standing_still(tmp_path, postgres_server, *tight, shipped_limits=True) as running:
        assert await fared(running, to(1, QUIET)) == "admitted"
        noisy = Counter([await fared(running, to(100 + n)) for n in range(20)])
        assert noisy == {"admitted": 5, "overload_rejected": 15}
        assert [await fared(running, to(2 + n, QUIET)) for n in range(4)] == ["admitted"] * 4
        # The share of a butler that wants nothing any more goes back to the others.
        advance(running, 120)
        assert [await fared(running, to(200 + n)) for n in range(10)] == ["admitted"] * 10


@pytest.mark.scenario("M1-035")
async def test_a_newcomer_gets_its_share_of_what_a_noisy_butler_has_used_up(
    tmp_path: Path, postgres_server: EmbeddedPostgres
) -> None:
    tight = limits(**WIDE | {"telegram_bot": 10.0})
    async with standing_still(tmp_path, postgres_server, *tight, shipped_limits=True) as running:
        assert {await fared(running, to(100 + n)) for n in range(10)} == {"admitted"}
        assert await fared(running, to(1, QUIET)) == "overload_rejected"
        got: Counter[str] = Counter()
        for turn in range(10):  # a minute, in which ten tokens come
            advance(running, 6)
            for n in range(3):
                got[NOISY] += await fared(running, to(1000 + 10 * turn + n)) == "admitted"
            got[QUIET] += await fared(running, to(2 + turn, QUIET)) == "admitted"
        assert got[QUIET] >= got[NOISY] > 0
        assert sum(got.values()) == 10


@pytest.mark.scenario("M1-035")
async def test_a_flood_of_answers_leaves_the_other_butlers_their_answers(
    tmp_path: Path, postgres_server: EmbeddedPostgres
) -> None:
    tight = limits(**WIDE | {"telegram_bot": 10.0})
    async with standing_still(tmp_path, postgres_server, *tight, shipped_limits=True) as running:
        assert await fared(running, answer(running, 1, QUIET)) == "admitted"
        noisy = Counter([await fared(running, answer(running, 100 + n)) for n in range(30)])
        assert noisy == {"admitted": 10, "overload_rejected": 20}  # half of ten tokens, at half a token each
        assert [await fared(running, answer(running, 2 + n, QUIET)) for n in range(9)] == ["admitted"] * 9
        assert [await running.answers(chat) for chat in range(1, 11)] == [[f"[{QUIET}] an answer"]] * 10
        by_origin = Counter(row["origin_butler"] for row in await rows(running))
        assert by_origin == {NOISY: 10, QUIET: 10}


@pytest.mark.scenario("M1-035")
async def test_a_newcomers_answer_gets_through_a_lasting_flood_of_answers(
    tmp_path: Path, postgres_server: EmbeddedPostgres
) -> None:
    tight = limits(**WIDE | {"telegram_bot": 10.0})
    async with standing_still(tmp_path, postgres_server, *tight, shipped_limits=True) as running:
        assert {await fared(running, answer(running, 100 + n)) for n in range(20)} == {"admitted"}
        assert await fared(running, answer(running, 1, QUIET)) == "overload_rejected"
        got: Counter[str] = Counter()
        for turn in range(10):  # a minute, in which ten tokens come: twenty answers
            advance(running, 6)
            for n in range(4):
                got[NOISY] += await fared(running, answer(running, 1000 + 10 * turn + n)) == "admitted"
            got[QUIET] += await fared(running, answer(running, 2 + turn, QUIET)) == "admitted"
        assert got[QUIET] == 10, got
        assert got[NOISY] > 0, got


@pytest.mark.scenario("M1-035")
async def test_a_noisy_channel_leaves_the_others_their_room(tmp_path: Path, postgres_server: EmbeddedPostgres) -> None:
    tight = limits(**WIDE | {"global_per_minute": 15.0, "telegram_bot": 10.0, "email_bot": 5.0})
    async with standing_still(tmp_path, postgres_server, *tight, shipped_limits=True) as running:
        noisy = Counter([await fared(running, to(100 + n)) for n in range(30)])
        assert noisy == {"admitted": 10, "overload_rejected": 20}
        letters = [wish("a mail", channel="email", recipient=f"friend{n}@far.example", subject="s") for n in range(5)]
        assert [await fared(running, letter) for letter in letters] == ["admitted"] * 5
        assert len(await mails(running)) == 5


@pytest.mark.scenario("M1-035")
@pytest.mark.parametrize("at_a_time", [1, 3])
async def test_a_full_queue_of_one_butler_does_not_keep_another_waiting(
    tmp_path: Path, postgres_server: EmbeddedPostgres, at_a_time: int
) -> None:
    room = (ONE_AT_A_TIME[0], f"max_concurrent_attempts = {at_a_time}")
    async with standing_still(tmp_path, postgres_server, room) as running:
        for chat in range(101, 121):  # each takes a little longer than the one before, so places fall free one by one
            await fault(running, "delay", seconds=1 + (chat - 100) / 10, times=None, chat_id=chat)
            await later(running, to(chat))
        await running.until(lambda: with_status(running, "in_progress", at_a_time))
        for chat in (1, 2):
            await later(running, to(chat, QUIET))
        await as_time_passes(running, lambda: all_have(running, "delivered"))
        before = await begun_before(running)
        assert len(before) == 22
        # Behind what was under way already, each butler has its turn.
        assert before["1"] <= at_a_time + 1, before
        assert before["2"] <= at_a_time + 3, before


async def test_deliveries_of_all_butlers_arrive_in_the_end(tmp_path: Path, postgres_server: EmbeddedPostgres) -> None:
    async with standing_still(tmp_path, postgres_server, ONE_AT_A_TIME) as running:
        butlers = ("finance", "general", NOISY, QUIET)
        answers = await asyncio.gather(*(deliver(running, to(n, butlers[n % 4])) for n in range(1, 21)))
        assert {told["delivery"]["status"] for told in answers} == {"delivered"}
        assert {chat: await running.answers(chat) for chat in range(1, 21)} == {
            chat: [f"[{butlers[chat % 4]}] to {chat}"] for chat in range(1, 21)
        }
