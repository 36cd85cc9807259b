"""Several Messenger processes on one database share keys, budgets, windows and circuits (seed 001 sections 7 to 9), and
what a key is made of (seed 000 "Idempotent Delivery Requests").

Each process is a system of its own, with tools, memory, leases and wire log of its own.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from butlers.storage.embedded import EmbeddedPostgres
from tests.ports import free_port
from tests.scenarios.messenger_door import (
    attempts,
    beside,
    deliver,
    execute,
    fault,
    lineage,
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
    running,
    standing_still,
    system,
    tool,
    turned_away,
    with_status,
)
from tests.system import RunningSystem

pytestmark = pytest.mark.asyncio(loop_scope="module")
__all__ = ["running", "system"]  # fixtures


# --- keys ------------------------------------------------------------------------------------------------------------


def expected_key(request_id: str, *fields: str, message: str) -> str:
    """The key by the letter of the seed: identifiers trimmed and lower-cased, content by its SHA-256."""

    def digest(*parts: str) -> str:
        return sha256(b"".join(b"%d:%b" % (len(part.encode()), part.encode()) for part in parts)).hexdigest()

    return "delivery-" + digest("delivery", request_id.lower(), *fields, digest(message.strip()))


@pytest.mark.scenario("M0-006")
async def test_key_derivation(running: RunningSystem) -> None:
    context = lineage(running)
    fields = {"request_context": context, "recipient": "61"}
    await deliver(running, wish("Hello", **fields))
    [row] = await rows(running)
    key = expected_key(context["request_id"], "health", "send", "telegram", "61", message="Hello")
    assert row["idempotency_key"] == key
    assert "Hello" not in key

    # Normalised: blanks and the case of identifiers do not matter.
    louder = context | {"request_id": context["request_id"].upper()}
    for same in (wish("  Hello \r\n", **fields), wish("Hello", **fields | {"request_context": louder})):
        assert (await deliver(running, same))["delivery"]["deduplicated"] is True
    mail = {"channel": "email", "request_context": context}
    await deliver(running, wish("Hello", recipient="Friend@Elsewhere.example", **mail))
    again = await deliver(running, wish("Hello", recipient="friend@elsewhere.EXAMPLE", **mail))
    assert again["delivery"]["deduplicated"] is True

    # Each of the six parts makes another key.
    others = [
        wish("Hello", **fields | {"request_context": lineage(running)}),
        wish("Hello", **fields, origin_butler="travel"),
        wish("Hello", intent="reply", request_context=context),
        wish("Hello", **fields | {"recipient": "62"}),
        wish("Hello!", **fields),
    ]
    for other in others:
        assert (await deliver(running, other))["delivery"]["deduplicated"] is False
    assert len({row["idempotency_key"] for row in await rows(running)}) == len(others) + 2
    assert await sends(running) == 1 + len(others)


@pytest.mark.scenario("M0-007")
async def test_duplicate_detection(running: RunningSystem) -> None:
    # Ended well.
    done = wish("once", request_context=lineage(running), recipient="61")
    first = await deliver(running, done)
    assert await deliver(running, done) == first | {"delivery": first["delivery"] | {"deduplicated": True}}
    # Ended badly.
    await fault(running, "refused", status=400)
    bad = wish("bad", request_context=lineage(running), recipient="62")
    failed, repeat = await deliver(running, bad), await deliver(running, bad)
    assert (repeat["error"], repeat["delivery"]["delivery_id"]) == (failed["error"], failed["delivery"]["delivery_id"])
    # In flight: where it stands now, as soon as the caller has waited long enough.
    await fault(running, "too_many_requests", retry_after=60, chat_id=63)
    slow = wish("slow", request_context=lineage(running), recipient="63")
    original = await later(running, slow)
    await running.until(lambda: with_status(running, "awaiting_retry"))
    duplicate = asyncio.create_task(deliver(running, slow))
    await as_time_passes(running, lambda: _done(original, duplicate))
    for answer in (original.result(), duplicate.result()):
        assert (answer["status"], answer["delivery"]["status"]) == ("ok", "awaiting_retry")
    assert original.result()["delivery"]["delivery_id"] == duplicate.result()["delivery"]["delivery_id"]
    assert duplicate.result()["delivery"]["deduplicated"] is True
    # Nothing new came of any repeat.
    assert len(await rows(running)) == 3
    assert await sends(running) == 3
    advance(running, 60)
    await running.until(lambda: with_status(running, "delivered", 2))
    assert await running.answers(63) == ["[health] slow"]


async def _done(*tasks: asyncio.Task[Any]) -> bool:
    return all(task.done() for task in tasks)


# --- two processes ---------------------------------------------------------------------------------------------------


async def test_a_wish_handed_to_both_is_sent_once(running: RunningSystem) -> None:
    async with beside(running, ["messenger"], messenger=free_port()) as second:
        for batch in range(1, 11):  # one of them may be quicker to take everything that is there
            wishes = [wish(f"wish {n}", idempotency_key=f"{batch}-{n}", recipient=str(100 + n % 7)) for n in range(30)]
            doors = ((running, second) * 3, (second, running) * 3)  # each is asked first as often as the other
            calls = [deliver(at, notify) for n, notify in enumerate(wishes) for at in doors[n % 2]]
            deliveries = [answer["delivery"] for answer in await asyncio.gather(*calls)]
            assert {delivery["status"] for delivery in deliveries} == {"delivered"}
            assert len({delivery["delivery_id"] for delivery in deliveries}) == 30
            assert len(await rows(running)) == await sends(running) == 30 * batch
            workers = {attempt["worker"] for attempt in await attempts(running)}
            if len(workers) == 2:
                return
    pytest.fail("only one of them took part")


async def test_one_budget_for_both(tmp_path: Path, postgres_server: EmbeddedPostgres) -> None:
    tight = limits(global_per_minute=1000.0, telegram_bot=12.0, recipient_per_minute=1000.0)
    async with standing_still(tmp_path, postgres_server, *tight, shipped_limits=True) as running:
        async with beside(running, ["messenger"], messenger=free_port()) as second:
            calls = [_fared(at, 100 + n) for n in range(20) for at in (running, second)]
            assert Counter(await asyncio.gather(*calls)) == {"ok": 12, "overload_rejected": 28}
        assert await sends(running) == 12


async def _fared(running: RunningSystem, chat: int) -> str:
    response = await execute(running, route(running, wish("hello", recipient=str(chat))))
    return "ok" if response["status"] == "ok" else str(response["error"]["class"])


async def test_a_window_and_a_circuit_hold_for_both(running: RunningSystem) -> None:
    async with beside(running, ["messenger"], messenger=free_port()) as second:
        await fault(running, "too_many_requests", retry_after=30, chat_id=61)
        await later(running, wish("hello", recipient="61"))
        await ended_attempts(running, 1)
        assert (await turned_away(second, wish("hello", recipient="61")))["retry_after_seconds"] == 30.0
        await fault(running, "error_5xx", times=None)
        for number, at in enumerate((running, second, running, second, running)):
            await later(at, wish("hello", recipient=str(200 + number)))
        await ended_attempts(running, 6)
        for at in (running, second):
            assert (await tool(at, "circuit_status"))["channels"]["telegram.bot"]["state"] == "open"
            assert (await turned_away(at, wish("hello")))["retry_after_seconds"] == 60.0
        # One probe between them.
        advance(running, 60)
        await ended_attempts(running, 7)
        await running.control("DELETE", "/faults")
        advance(running, 60)
        await as_time_passes(running, lambda: all_have(running, "delivered"))
    assert [await running.answers(200 + n) for n in range(5)] == [["[health] hello"]] * 5
