"""One wish, one message: whatever is repeated, lost or raced on the way, the provider is called once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from butlers.storage.embedded import EmbeddedPostgres
from tests.ports import free_port
from tests.scenarios.messenger_door import (
    attempts,
    beside,
    call,
    deliver,
    execute,
    fault,
    hurry,
    lineage,
    mails,
    route,
    rows,
    sends,
    wish,
)
from tests.scenarios.shared_system import running, system
from tests.system import RunningSystem, running_system

MANY = 50

pytestmark = pytest.mark.asyncio(loop_scope="module")
__all__ = ["running", "system"]  # fixtures


@pytest.mark.scenario("M1-027")
async def test_the_key_is_made_of_request_origin_intent_channel_target_and_content(running: RunningSystem) -> None:
    context = lineage(running)
    base: dict[str, Any] = {"request_context": context, "recipient": "1000"}
    await deliver(running, wish("one", **base))
    for same in (wish("one", **base), wish("  one\n", **base), wish("one", **base | {"recipient": " 1000 "})):
        assert (await deliver(running, same))["delivery"]["deduplicated"] is True

    others = [
        wish("one", **base | {"request_context": lineage(running)}),
        wish("one", **base | {"origin_butler": "travel"}),
        wish("one", **base | {"intent": "reply"}),
        wish("one", **base | {"channel": "email", "recipient": "owner@butlers.example"}),
        wish("one", **base | {"channel": "email", "recipient": "owner@butlers.example", "subject": "S"}),
        wish("one", **base | {"recipient": "1001"}),
        wish("One", **base),
    ]
    for other in others:
        assert (await deliver(running, other))["delivery"]["deduplicated"] is False
    keys = [row["idempotency_key"] for row in await rows(running)]
    assert len(set(keys)) == len(others) + 1
    assert len(await mails(running)) == 2
    assert await sends(running) == 6


async def test_the_resolved_target_and_not_its_name_makes_the_key(running: RunningSystem) -> None:
    owner = await running.database.fetchval("select id from shared.contacts where is_owner")
    context = lineage(running)
    await deliver(running, wish("one", request_context=context))
    named = await deliver(running, wish("one", request_context=context, contact_id=str(owner)))
    addressed = await deliver(running, wish("one", request_context=context, recipient="1000"))
    assert named["delivery"]["deduplicated"] is True
    assert addressed["delivery"]["deduplicated"] is True
    assert await running.answers() == ["[health] one"]


@pytest.mark.scenario("M1-028")
async def test_without_a_request_id_the_callers_key_gives_exactly_once(running: RunningSystem) -> None:
    first = await deliver(running, wish("daily note", idempotency_key="2026-01-01"))
    again = await deliver(running, wish("daily note", idempotency_key="2026-01-01"))
    assert again["delivery"]["delivery_id"] == first["delivery"]["delivery_id"]
    assert again["delivery"]["deduplicated"] is True
    # Another butler's key of the same name is another key.
    other = await deliver(running, wish("daily note", idempotency_key="2026-01-01", origin_butler="travel"))
    assert other["delivery"]["deduplicated"] is False
    # Without either there is no duplicate detection, and the answer says so.
    loose = [await deliver(running, wish("loose")) for _ in range(2)]
    assert [answer["delivery"]["duplicate_detection"] for answer in loose] == [False, False]
    assert await running.answers() == ["[health] daily note", "[travel] daily note", *["[health] loose"] * 2]


@pytest.mark.scenario("M1-029")
async def test_a_duplicate_of_a_success_returns_the_original_delivery(running: RunningSystem) -> None:
    notify = wish("once", request_context=lineage(running))
    first = await deliver(running, notify)
    second = await deliver(running, notify)
    assert second == first | {"delivery": first["delivery"] | {"deduplicated": True}}
    assert await running.answers() == ["[health] once"]

    # The same while the original is in flight: its status, and no second row.
    await fault(running, "too_many_requests", retry_after=30)
    slow = wish("slowly", request_context=lineage(running))
    waiting = asyncio.create_task(deliver(running, slow))
    await running.until(lambda: _with_status(running, "awaiting_retry"))
    rerun = asyncio.create_task(deliver(running, slow))
    await hurry(running)
    answers = await asyncio.gather(waiting, rerun)
    assert len({answer["delivery"]["delivery_id"] for answer in answers}) == 1
    assert {answer["delivery"]["status"] for answer in answers} == {"delivered"}
    assert len(await rows(running)) == 2
    assert await running.answers() == ["[health] once", "[health] slowly"]


@pytest.mark.scenario("M1-030")
async def test_a_duplicate_of_a_terminal_failure_returns_the_same_failure(running: RunningSystem) -> None:
    await running.control("POST", "/users/77/block")
    blocked = wish("hello?", recipient="77", request_context=lineage(running))
    first = await deliver(running, blocked)
    await running.control("POST", "/users/77/unblock")
    second = await deliver(running, blocked)
    assert first["status"] == second["status"] == "error"
    assert second["error"] == first["error"]
    assert second["delivery"]["delivery_id"] == first["delivery"]["delivery_id"]

    await fault(running, "error_5xx", times=3)
    down = wish("anybody?", request_context=lineage(running))
    first, second = await deliver(running, down), await deliver(running, down)
    assert (first["error"], first["delivery"]["status"]) == (second["error"], "dead_lettered")
    assert await sends(running) == 4
    assert await running.answers() == await running.answers(77) == []


@pytest.mark.scenario("M1-031")
async def test_concurrent_duplicates_coalesce_to_one_send(running: RunningSystem) -> None:
    notify = wish("fifty times", request_context=lineage(running))
    await fault(running, "delay", seconds=0.5)
    async with running.mcp("messenger", caller="switchboard") as client:
        calls = [client.call_tool("route.execute", route(running, notify)) for _ in range(MANY)]
        results = [result.structured_content or {} for result in await asyncio.gather(*calls)]
    deliveries = [result["result"]["notify_response"]["delivery"] for result in results]
    assert {delivery["status"] for delivery in deliveries} == {"delivered"}
    assert len({delivery["delivery_id"] for delivery in deliveries}) == 1
    assert [delivery["deduplicated"] for delivery in deliveries].count(False) == 1
    assert await running.answers() == ["[health] fifty times"]
    assert len(await attempts(running)) == await sends(running) == 1


@pytest.mark.scenario("M1-045")
async def test_the_database_refuses_a_second_delivery_under_one_key(
    tmp_path: Path, postgres_server: EmbeddedPostgres
) -> None:
    async with running_system(tmp_path, postgres_server) as running:
        notify = wish("once", request_context=lineage(running))
        first = await deliver(running, notify)
        columns = (
            "idempotency_key, request_id, origin_butler, channel, intent, target_identity, ordering_key, message,"
            " envelope, next_attempt_at, created_at, updated_at"
        )
        copy = f"insert into messenger.delivery_requests (id, {columns}) select gen_random_uuid(), {columns}"
        with pytest.raises(asyncpg.UniqueViolationError):
            await running.database.execute(f"{copy} from messenger.delivery_requests")
        # It outlives the process: a new one, with an empty memory, answers from the row.
        await running.restart()
        again = await deliver(running, notify)
        assert again["delivery"]["delivery_id"] == first["delivery"]["delivery_id"]
        assert again["delivery"]["deduplicated"] is True
        assert await running.answers() == ["[health] once"]


@pytest.mark.scenario("M1-032")
async def test_two_processes_on_one_database_send_a_wish_once(running: RunningSystem) -> None:
    async with beside(running, ["messenger"], messenger=free_port()) as second:
        for text in ("one", "two", "three"):
            notify = wish(text, request_context=lineage(running))
            calls = [deliver(at, notify) for at in (running, second) * 5]
            deliveries = [answer["delivery"] for answer in await asyncio.gather(*calls)]
            assert len({delivery["delivery_id"] for delivery in deliveries}) == 1
            assert {delivery["status"] for delivery in deliveries} == {"delivered"}
    assert await running.answers() == ["[health] one", "[health] two", "[health] three"]


async def test_a_repeated_answer_of_a_butler_is_said_once(running: RunningSystem) -> None:
    """The whole way round: the same route twice, the same words from the butler, one message in the chat."""
    envelope = route(running, wish()) | {"target": {"butler": "health"}}
    envelope["input"] = {"prompt": "I weigh 80 kg"}
    envelope["request_context"]["source_channel"] = "api"  # answered to the owner: nothing on record is replied to
    for _ in range(2):
        response = await call(running, "health", "route.execute", envelope, caller="switchboard")
        assert response["status"] == "ok", response
    # Another segment id is other work, and is answered again.
    envelope["subrequest"]["segment_id"] = "another"
    assert (await call(running, "health", "route.execute", envelope, caller="switchboard"))["status"] == "ok"
    assert len(await running.answers()) == 2


async def test_a_request_id_names_the_same_delivery_in_any_case(running: RunningSystem) -> None:
    context = lineage(running)
    await deliver(running, wish("one", request_context=context))
    louder = context | {"request_id": context["request_id"].upper()}
    response = await execute(running, route(running, wish("one", request_context=louder)))
    assert response["result"]["notify_response"]["delivery"]["deduplicated"] is True


async def _with_status(running: RunningSystem, status: str) -> bool:
    return status in [row["status"] for row in await rows(running)]
