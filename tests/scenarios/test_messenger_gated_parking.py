"""Two reasons to wait, one after the other: first the contact's identifier comes, then a person is asked."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from tests.scenarios.gated_system import action_row, asked, decisions, ended, row_of, running, system, tool
from tests.scenarios.messenger_door import deliver, rows, sends, wish
from tests.scenarios.test_messenger_missing_identifier import add, contact, parked
from tests.system import RunningSystem

pytestmark = pytest.mark.asyncio(loop_scope="module")
__all__ = ["running", "system"]  # fixtures

KEYED: dict[str, Any] = {"idempotency_key": "dinner"}
REQUESTED: dict[str, Any] = {"request_context": {"request_id": "01989898-0000-7000-8000-000000000023"}}


async def addressed(running: RunningSystem, chat: int, message: str, **fields: Any) -> tuple[UUID, dict[str, Any]]:
    """A delivery that got its address and waits for a person now, with nothing sent: the contact and its row."""
    anna = await contact(running)
    held = await parked(running, message, anna, **fields)
    await add(running, anna, "telegram", str(chat))
    row = await ended(running, held["delivery_id"], "pending_approval")
    # The identifier came by itself; that was an answer to the first question only.
    first = await action_row(running, held["action_id"])
    assert (first["tool_name"], first["status"], first["decided_by"]) == ("missing_identifier", "executed", "messenger")
    assert (row["target_identity"], row["attempts"], row["admitted"]) == (str(chat), 0, False)
    assert row["action_id"] != first["id"]
    assert (await running.answers(chat), await sends(running)) == ([], 0)
    return anna, row


async def approved(running: RunningSystem, row: dict[str, Any]) -> dict[str, Any]:
    """What became of it when a person said yes."""
    answer = await tool(running, "approve_action", action_id=str(row["action_id"]))
    assert (answer["action"]["status"], answer["action"]["decided_by"]) == ("executed", "operator"), answer
    return await ended(running, str(row["id"]), "delivered")


async def repeated(running: RunningSystem, row: dict[str, Any], notify: dict[str, Any], status: str) -> None:
    """The request once more is the same delivery, and nothing is stored or sent for it."""
    before = (len(await rows(running)), await sends(running))
    again = (await deliver(running, notify))["delivery"]
    assert (again["deduplicated"], again["delivery_id"], again["status"]) == (True, str(row["id"]), status)
    assert (len(await rows(running)), await sends(running)) == before
    actions = await running.database.fetchval("select count(*) from messenger.pending_actions")
    assert actions == 2  # the identifier's and the person's, and no third


# --- the three kinds of request --------------------------------------------------------------------------------------


@pytest.mark.scenario("M0-005", "M1-022")
@pytest.mark.parametrize(("chat", "fields"), [(2301, KEYED), (2302, REQUESTED)], ids=["own key", "request id"])
async def test_a_request_that_can_be_told_apart_is_delivered_once(
    running: RunningSystem, chat: int, fields: dict[str, Any]
) -> None:
    anna, row = await addressed(running, chat, "come to dinner", **fields)
    waiting = await action_row(running, str(row["action_id"]))
    assert (waiting["tool_name"], waiting["status"], waiting["requested_by"]) == ("notify", "pending", "health")
    assert (waiting["tool_args"]["recipient"], waiting["subject_id"]) == (str(chat), row["id"])
    # Now that the address is known, both names of the recipient lead to the same delivery, before and after.
    names: list[dict[str, Any]] = [{"contact_id": str(anna)}, {"recipient": str(chat)}]
    for name in names:
        await repeated(running, row, wish("come to dinner", **name, **fields), "pending_approval")
    row = await approved(running, row)
    assert decisions(row)[:4] == [
        ("origin", "verified"),
        ("target", "missing"),
        ("approval", "pending"),
        ("release", "released"),
    ]
    for name in names:
        await repeated(running, row, wish("come to dinner", **name, **fields), "delivered")
    assert (row["attempts"], await running.answers(chat), await sends(running)) == (1, ["[health] come to dinner"], 1)


@pytest.mark.scenario("M0-005", "M1-022")
async def test_a_request_without_a_key_is_delivered_once_and_a_repeat_is_another_wish(running: RunningSystem) -> None:
    anna, row = await addressed(running, 2303, "come to dinner")
    assert not row["duplicate_detection"]
    row = await approved(running, row)
    assert (row["attempts"], await running.answers(2303)) == (1, ["[health] come to dinner"])
    # Nothing says that this is the same wish, so a person is asked about it, too.
    other = await asked(running, "come to dinner", contact_id=str(anna))
    assert other["delivery"] != str(row["id"])
    await tool(running, "reject_action", action_id=other["action"])
    assert (await row_of(running, other["delivery"]))["status"] == "failed"
    assert (await running.answers(2303), await sends(running)) == (["[health] come to dinner"], 1)


# --- what a person says ----------------------------------------------------------------------------------------------


@pytest.mark.scenario("M0-005")
async def test_what_is_rejected_after_its_address_came_is_never_sent(running: RunningSystem) -> None:
    anna, row = await addressed(running, 2304, "come to dinner", **KEYED)
    await tool(running, "reject_action", action_id=str(row["action_id"]), reason="not with her")
    row = await row_of(running, str(row["id"]))
    assert (row["status"], row["terminal_error_message"]) == ("failed", "rejected: not with her")
    again = await deliver(running, wish("come to dinner", contact_id=str(anna), **KEYED))
    assert (again["status"], again["delivery"]["delivery_id"]) == ("error", str(row["id"]))
    assert (await running.answers(2304), await sends(running)) == ([], 0)


@pytest.mark.scenario("M0-005")
async def test_to_say_that_the_identifier_is_there_is_not_to_approve(running: RunningSystem) -> None:
    anna = await contact(running)
    held = await parked(running, "come to dinner", anna)
    await add(running, anna, "telegram", "2305")
    said = await tool(running, "approve_action", action_id=held["action_id"])
    # Unless Messenger saw the identifier first, which says the same.
    assert "error" in said or said["action"]["status"] == "executed"
    row = await ended(running, held["delivery_id"], "pending_approval")
    assert str(row["action_id"]) != held["action_id"]
    assert (row["admitted"], await running.answers(2305), await sends(running)) == (False, [], 0)
    await approved(running, row)
    assert (await running.answers(2305), await sends(running)) == (["[health] come to dinner"], 1)


@pytest.mark.scenario("M0-005")
async def test_a_rule_about_the_address_lets_it_go_on_by_itself_for_one_use(running: RunningSystem) -> None:
    to_her = {"recipient": {"type": "exact", "value": "2306"}}
    made = await tool(running, "create_approval_rule", tool_name="notify", arg_constraints=to_her, max_uses=1)
    anna = await contact(running)
    held = await parked(running, "come to dinner", anna, **KEYED)
    assert (await tool(running, "show_approval_rule", rule_id=made["rule"]["id"]))["rule"]["use_count"] == 0
    await add(running, anna, "telegram", "2306")
    row = await ended(running, held["delivery_id"], "delivered")
    for name in ({"contact_id": str(anna)}, {"recipient": "2306"}):
        again = (await deliver(running, wish("come to dinner", **name, **KEYED)))["delivery"]
        assert (again["delivery_id"], again["status"]) == (str(row["id"]), "delivered")
    assert (await tool(running, "show_approval_rule", rule_id=made["rule"]["id"]))["rule"]["use_count"] == 1
    assert (await running.answers(2306), await sends(running)) == (["[health] come to dinner"], 1)
    # The record says by whose leave.
    assert f"rule {made['rule']['id']}" in str(row["decisions"])


# --- what else may happen meanwhile ----------------------------------------------------------------------------------


async def test_the_same_message_by_two_roads_is_asked_for_and_sent_once(running: RunningSystem) -> None:
    anna = await contact(running)
    by_contact = await parked(running, "come to dinner", anna, **REQUESTED)
    by_address = await asked(running, "come to dinner", recipient="2307", **REQUESTED)
    await add(running, anna, "telegram", "2307")
    row = await ended(running, by_contact["delivery_id"], "failed")
    assert by_address["delivery"] in row["terminal_error_message"]
    await approved(running, await row_of(running, by_address["delivery"]))
    again = (await deliver(running, wish("come to dinner", contact_id=str(anna), **REQUESTED)))["delivery"]
    assert (again["delivery_id"], again["status"]) == (by_address["delivery"], "delivered")
    assert (await running.answers(2307), await sends(running)) == (["[health] come to dinner"], 1)


async def test_an_address_that_must_not_be_written_to_is_not_even_asked_about(running: RunningSystem) -> None:
    anna = await contact(running)
    held = await parked(running, "come to dinner", anna)
    await tool(running, "messenger_recipient_suppress", channel="telegram", target="2308", reason="asked us to stop")
    await add(running, anna, "telegram", "2308")
    row = await ended(running, held["delivery_id"], "failed")
    assert "asked us to stop" in row["terminal_error_message"]
    assert "asked us to stop" in str(row["decisions"])
    waiting = await tool(running, "list_pending_actions")
    assert (waiting["actions"], await running.answers(2308), await sends(running)) == ([], [], 0)
