"""A contact without an address on the channel: the delivery waits, the owner is told, and it goes out by itself."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
import pytest_asyncio

from butlers.storage.embedded import EmbeddedPostgres
from tests.scenarios.messenger_door import call, deliver, forget, mails, quick, refusal, rows, sends, wish
from tests.system import RunningSystem, running_system

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def system(
    tmp_path_factory: pytest.TempPathFactory, postgres_server: EmbeddedPostgres
) -> AsyncIterator[RunningSystem]:
    tmp_path = tmp_path_factory.mktemp("parked")
    async with running_system(tmp_path, postgres_server, roster_dir=quick(tmp_path), shipped_limits=True) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def running(system: RunningSystem) -> RunningSystem:
    await forget(system)
    await system.database.execute("delete from shared.contacts where not is_owner")
    return system


async def contact(running: RunningSystem, **identifiers: str) -> UUID:
    identity, now = uuid4(), running.clock.now()
    await running.database.execute(
        "insert into shared.contacts (id, name, created_at, updated_at) values ($1, 'Anna', $2, $2)", identity, now
    )
    for channel, value in identifiers.items():
        await add(running, identity, channel, value)
    return identity


async def add(running: RunningSystem, identity: UUID, channel: str, value: str) -> None:
    await running.database.execute(
        "insert into shared.contact_info (id, contact_id, type, value, is_primary, created_at)"
        " values ($1, $2, $3, $4, true, $5)",
        uuid4(),
        identity,
        channel,
        value,
        running.clock.now(),
    )


async def parked(running: RunningSystem, message: str, whom: UUID, **fields: Any) -> dict[str, Any]:
    answer = await deliver(running, wish(message, contact_id=str(whom), **fields))
    assert (answer["status"], answer["delivery"]["status"]) == ("ok", "pending_missing_identifier"), answer
    delivery: dict[str, Any] = answer["delivery"]
    return delivery


async def row_of(running: RunningSystem, delivery_id: str) -> dict[str, Any]:
    return next(row for row in await rows(running) if str(row["id"]) == delivery_id)


async def ended(running: RunningSystem, delivery_id: str, status: str = "delivered") -> dict[str, Any]:
    async def look() -> dict[str, Any]:
        row = await row_of(running, delivery_id)
        return row if row["status"] == status else {}

    return await running.until(look)


async def action(running: RunningSystem, action_id: str) -> dict[str, Any]:
    shown = await call(running, "messenger", "show_pending_action", {"action_id": action_id})
    found: dict[str, Any] = shown["action"]
    return found


@pytest.mark.scenario("M1-022")
async def test_a_missing_identifier_parks_an_action_and_the_owner_is_told(running: RunningSystem) -> None:
    anna = await contact(running, email="anna@elsewhere.example")
    held = await parked(running, "come to dinner", anna)
    row = await row_of(running, held["delivery_id"])
    assert (row["status"], row["target_identity"], row["contact_id"]) == ("pending_missing_identifier", None, anna)
    assert (row["attempts"], str(row["action_id"])) == (0, held["action_id"])
    waiting = await action(running, held["action_id"])
    assert (waiting["tool_name"], waiting["status"]) == ("missing_identifier", "pending")
    assert waiting["tool_args"]["contact_id"] == str(anna)
    # The owner hears of it, by the way of all deliveries, and nobody else hears anything.
    [notice] = await running.until(running.answers)
    assert notice.startswith("[messenger] One delivery needs you:")
    assert f"the contact {anna} has no telegram identifier" in notice
    assert "come to dinner" not in notice
    assert (await sends(running), await mails(running)) == (1, [])
    [told] = [found for found in await rows(running) if found["origin_butler"] == "messenger"]
    assert told["message"] == notice
    assert not (await row_of(running, held["delivery_id"]))["tell_owner"]


@pytest.mark.scenario("M1-022")
async def test_an_identifier_that_comes_later_lets_it_go_out_by_itself(running: RunningSystem) -> None:
    anna = await contact(running)
    notify = {"contact_id": str(anna), "idempotency_key": "dinner"}
    held = await parked(running, "come to dinner", anna, idempotency_key="dinner")
    waiting = await deliver(running, wish("come to dinner", **notify))
    assert (waiting["delivery"]["deduplicated"], waiting["delivery"]["delivery_id"]) == (True, held["delivery_id"])
    await add(running, anna, "telegram", "2101")
    row = await ended(running, held["delivery_id"])
    assert (row["target_identity"], row["attempts"]) == ("2101", 1)
    assert await running.answers(2101) == ["[health] come to dinner"]
    assert "the contact has an identifier now" in str(row["decisions"])
    decided = await action(running, held["action_id"])
    assert (decided["status"], decided["decided_by"]) == ("executed", "messenger")
    # A repeat of the request is the same delivery still, under the key that it has now.
    again = await deliver(running, wish("come to dinner", **notify))
    assert (again["delivery"]["deduplicated"], again["delivery"]["delivery_id"]) == (True, held["delivery_id"])
    assert await running.answers(2101) == ["[health] come to dinner"]
    assert len([found for found in await rows(running) if found["origin_butler"] == "health"]) == 1


async def test_a_request_without_a_key_of_its_own_is_found_again(running: RunningSystem) -> None:
    anna = await contact(running)
    request = {"request_context": {"request_id": "01989898-0000-7000-8000-000000000001"}}
    held = await parked(running, "by request id", anna, **request)
    await add(running, anna, "telegram", "2102")
    await ended(running, held["delivery_id"])
    # Now the key is derived from the address, and both roads lead to it.
    for target in ({"contact_id": str(anna)}, {"recipient": "2102"}):
        again = await deliver(running, wish("by request id", **target, **request))
        assert (again["delivery"]["deduplicated"], again["delivery"]["delivery_id"]) == (True, held["delivery_id"])
    assert await running.answers(2102) == ["[health] by request id"]


async def test_a_person_may_say_that_the_identifier_is_there_or_that_it_is_not_wanted(running: RunningSystem) -> None:
    anna = await contact(running)
    wanted, unwanted = await parked(running, "yes", anna), await parked(running, "no", anna)
    early = await call(running, "messenger", "approve_action", {"action_id": wanted["action_id"]})
    assert early["error"]["class"] == "validation_error"  # it is not there, so there is nothing to approve
    await call(running, "messenger", "reject_action", {"action_id": unwanted["action_id"], "reason": "never mind"})
    await add(running, anna, "telegram", "2103")
    await ended(running, wanted["delivery_id"])
    row = await row_of(running, unwanted["delivery_id"])
    assert (row["status"], "never mind" in row["terminal_error_message"]) == ("failed", True)
    assert await running.answers(2103) == ["[health] yes"]


@pytest.mark.scenario("M1-022")
async def test_nobody_else_is_written_to_in_the_meantime(running: RunningSystem) -> None:
    anna = await contact(running, telegram="2104")
    error = await refusal(running, wish("to whom?", contact_id=str(uuid4())))
    assert [field["field"] for field in error["fields"]] == ["contact_id"]
    # A named recipient does not stand in for the contact, nor does the owner.
    held = await parked(running, "a mail", anna, channel="email", recipient="wrong@elsewhere.example", subject="s")
    assert (await mails(running), await running.answers(2104)) == ([], [])
    await add(running, anna, "email", "anna@elsewhere.example")
    await ended(running, held["delivery_id"])
    [mail] = await mails(running)
    assert [recipient["address"] for recipient in mail["recipients"]] == ["anna@elsewhere.example"]


async def test_what_nobody_supplies_runs_out(running: RunningSystem) -> None:
    held = await parked(running, "too long", await contact(running))
    waiting = await running.database.fetchrow("select requested_at, expires_at from messenger.pending_actions")
    assert waiting is not None
    assert waiting["expires_at"] - waiting["requested_at"] == timedelta(hours=48)
    await running.database.execute("update messenger.pending_actions set expires_at = now() - interval '1 second'")
    await ended(running, held["delivery_id"], "expired")
    assert (await action(running, held["action_id"]))["status"] == "expired"
