"""A caller's own key: it stands in for the words of a message and for nothing else, so no message is lost by it."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import pytest

from butlers.storage.queries import Queries
from tests.ports import free_port
from tests.scenarios.messenger_door import (
    beside,
    call,
    deliver,
    execute,
    fault,
    lineage,
    mails,
    route,
    rows,
    sends,
    wish,
)
from tests.scenarios.shared_system import running, system
from tests.scenarios.test_messenger_missing_identifier import add, contact
from tests.system import RunningSystem

pytestmark = pytest.mark.asyncio(loop_scope="module")
__all__ = ["running", "system"]  # fixtures


async def with_status(running: RunningSystem, delivery_id: str, *statuses: str) -> bool:
    return any(str(row["id"]) == delivery_id and row["status"] in statuses for row in await rows(running))


@pytest.mark.scenario("M1-027")
async def test_a_key_beside_a_request_leaves_out_the_words_and_nothing_else(running: RunningSystem) -> None:
    base: dict[str, Any] = {"request_context": lineage(running), "recipient": "1000", "idempotency_key": "k"}
    first = (await deliver(running, wish("one", **base)))["delivery"]
    for same in (wish("one", **base), wish("worded anew", **base), wish("one", **base | {"recipient": " 01000 "})):
        again = (await deliver(running, same))["delivery"]
        assert (again["delivery_id"], again["deduplicated"]) == (first["delivery_id"], True)

    others = [
        wish("one", **base | {"request_context": lineage(running)}),
        wish("one", recipient="1000", idempotency_key="k"),
        wish("one", **base | {"origin_butler": "travel"}),
        wish("one", **base | {"intent": "reply"}),
        wish("one", **base | {"channel": "email", "recipient": "owner@butlers.example"}),
        wish("one", **base | {"recipient": "1001"}),
        wish("one", **base | {"idempotency_key": "K"}),
        wish("one", request_context=base["request_context"], recipient="1000"),
    ]
    for other in others:
        answer = (await deliver(running, other))["delivery"]
        assert (answer["status"], answer["deduplicated"]) == ("delivered", False)
    keys = [row["idempotency_key"] for row in await rows(running)]
    assert len(set(keys)) == len(keys) == len(others) + 1
    assert (len(await mails(running)), await sends(running)) == (1, len(others))
    assert await running.answers(1001) == ["[health] one"]


async def test_one_key_for_several_people_and_channels_reaches_all_of_them(running: RunningSystem) -> None:
    reminders = [
        wish("dinner at 8", recipient="71", idempotency_key="dinner"),
        wish("dinner at 8", recipient="72", idempotency_key="dinner"),
        wish("dinner at 8", channel="email", recipient="ann@example.com", subject="s", idempotency_key="dinner"),
    ]
    for _ in range(2):
        for reminder in reminders:
            assert (await deliver(running, reminder))["delivery"]["status"] == "delivered"
    assert await running.answers(71) == await running.answers(72) == ["[health] dinner at 8"]
    assert len(await mails(running)) == 1


async def test_a_keyed_wish_for_a_contact_is_one_delivery_before_and_after_the_address_is_known(
    running: RunningSystem,
) -> None:
    anna = await contact(running)
    by_contact = wish("hello", contact_id=str(anna), idempotency_key="k", request_context=lineage(running))
    first = (await deliver(running, by_contact))["delivery"]
    again = (await deliver(running, by_contact))["delivery"]
    assert (first["status"], again["deduplicated"]) == ("pending_missing_identifier", True)
    # The same key for somebody else does not wait for Anna.
    other = wish("hello", recipient="73", idempotency_key="k", request_context=by_contact["request_context"])
    assert (await deliver(running, other))["delivery"]["status"] == "delivered"
    await add(running, anna, "telegram", "74")
    await running.until(lambda: with_status(running, first["delivery_id"], "delivered"))
    by_address = wish("hello", recipient="74", idempotency_key="k", request_context=by_contact["request_context"])
    for repeat in (by_contact, by_address):
        answer = (await deliver(running, repeat))["delivery"]
        assert (answer["delivery_id"], answer["deduplicated"]) == (first["delivery_id"], True)
    assert await running.answers(74) == ["[health] hello"]


async def test_what_went_to_the_address_meanwhile_is_not_said_again(running: RunningSystem) -> None:
    anna = await contact(running)
    held = (await deliver(running, wish("hello", contact_id=str(anna), idempotency_key="k")))["delivery"]
    sent = (await deliver(running, wish("hello", recipient="75", idempotency_key="k")))["delivery"]
    await add(running, anna, "telegram", "75")
    await running.until(lambda: with_status(running, held["delivery_id"], "failed"))
    [row] = [row for row in await rows(running) if str(row["id"]) == held["delivery_id"]]
    assert row["terminal_error_message"] == f"the same message went out as {sent['delivery_id']}"
    assert await running.answers(75) == ["[health] hello"]


async def test_two_processes_take_a_keyed_wish_once_whatever_its_words(running: RunningSystem) -> None:
    async with beside(running, ["messenger"], messenger=free_port()) as second:
        calls = [
            deliver(at, wish(f"wording {number}", recipient="76", idempotency_key="k"))
            for number, at in enumerate((running, second) * 5)
        ]
        deliveries = [answer["delivery"] for answer in await asyncio.gather(*calls)]
    assert len({delivery["delivery_id"] for delivery in deliveries}) == 1
    assert len(await running.answers(76)) == 1


async def test_a_specialists_key_holds_when_its_work_is_run_again(running: RunningSystem) -> None:
    for words in ("gate 7", "the gate is 7"):
        answer = await call(running, "travel", "notify", {"message": words, "idempotency_key": "gate"})
    assert answer["delivery"]["deduplicated"] is True
    elsewhere = await call(
        running, "travel", "notify", {"message": "gate 7", "idempotency_key": "gate", "recipient": "77"}
    )
    assert elsewhere["delivery"]["deduplicated"] is False
    assert await running.answers() == ["[travel] gate 7"]
    assert await running.answers(77) == ["[travel] gate 7"]


# --- from an id to its delivery --------------------------------------------------------------------------------------


async def test_the_ids_of_a_delivery_its_dead_letter_and_its_action_lead_to_it(running: RunningSystem) -> None:
    await fault(running, "error_5xx", times=3)
    dead = (await deliver(running, wish("anybody?", recipient="78")))["delivery"]["delivery_id"]
    letter = str(await running.database.fetchval("select id from messenger.delivery_dead_letter"))
    held = (await deliver(running, wish("hello", contact_id=str(await contact(running)))))["delivery"]
    for asked, kind, found in (
        (dead, "delivery", dead),
        (letter, "dead_letter", dead),
        (held["action_id"], "action", held["delivery_id"]),
    ):
        why = await call(running, "messenger", "messenger_delivery_why", {"delivery_id": asked})
        assert (why["asked_about"], why["delivery_id"]) == ({"kind": kind, "id": asked}, found)
    unknown = await call(running, "messenger", "messenger_delivery_why", {"delivery_id": str(uuid4())})
    assert "no such delivery" in unknown["error"]["message"]


async def test_an_id_is_looked_up_and_not_searched_for(running: RunningSystem) -> None:
    await execute(running, route(running, wish("one", recipient="79")))
    columns = (
        "ordering_key, status, next_attempt_at, terminal_at, origin_butler, channel, intent, target_identity, message,"
        " created_at, updated_at, envelope"
    )
    await running.database.execute(
        f"insert into messenger.delivery_requests (id, idempotency_key, action_id, {columns})"
        f" select gen_random_uuid(), 'many-' || n, gen_random_uuid(), {columns}"
        " from messenger.delivery_requests, generate_series(1, 3000) as n"
    )
    await running.database.execute("analyze messenger.delivery_requests")
    query = Queries.load("butlers.messenger.tools", schema="messenger").delivery_behind.rstrip("; \n")
    unknown = f"'{uuid4()}'::uuid"
    plan = await running.database.fetch(f"explain {query.replace('$1', unknown)}")
    lines = "\n".join(row[0] for row in plan)
    assert "Seq Scan on delivery_requests" not in lines, lines
    assert "delivery_requests_of_action" in lines
