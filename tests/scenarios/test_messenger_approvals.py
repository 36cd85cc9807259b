"""What waits for a person: gated deliveries, the decision by tool, HTTP and command line, and the rules."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio

from butlers.storage.embedded import EmbeddedPostgres
from tests.scenarios.messenger_door import (
    call,
    changed_roster,
    deliver,
    forget,
    hurry,
    lineage,
    mails,
    quick,
    rows,
    sends,
    wish,
)
from tests.scenarios.test_messenger_cli import api, cli
from tests.system import RunningSystem, running_system

pytestmark = pytest.mark.asyncio(loop_scope="module")

FRIEND = "friend@elsewhere.example"
GATED = (r"^\[modules\.calendar\]", "[modules.approvals]\n\n[modules.calendar]")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def system(
    tmp_path_factory: pytest.TempPathFactory, postgres_server: EmbeddedPostgres
) -> AsyncIterator[RunningSystem]:
    tmp_path = tmp_path_factory.mktemp("gated")
    async with running_system(tmp_path, postgres_server, roster_dir=quick(tmp_path, GATED)) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def running(system: RunningSystem) -> RunningSystem:
    await forget(system)
    return system


async def tool(running: RunningSystem, name: str, caller: str = "operator", **arguments: Any) -> dict[str, Any]:
    return await call(running, "messenger", name, arguments, caller=caller)


async def asked(running: RunningSystem, message: str = "may I?", **fields: Any) -> dict[str, str]:
    """A delivery that waits: its id and the id of the action, with nothing sent."""
    before = (await sends(running), len(await mails(running)))
    answer = await deliver(running, wish(message, **fields))
    assert (answer["status"], answer["delivery"]["status"]) == ("ok", "pending_approval"), answer
    assert (await sends(running), len(await mails(running))) == before
    return {"delivery": answer["delivery"]["delivery_id"], "action": answer["delivery"]["action_id"]}


async def action_row(running: RunningSystem, action_id: str) -> dict[str, Any]:
    row = await running.database.fetchrow("select * from messenger.pending_actions where id = $1", action_id)
    assert row is not None
    return dict(row)


async def row_of(running: RunningSystem, delivery_id: str) -> dict[str, Any]:
    return next(row for row in await rows(running) if str(row["id"]) == delivery_id)


async def ended(running: RunningSystem, delivery_id: str, status: str) -> dict[str, Any]:
    async def look() -> dict[str, Any]:
        row = await row_of(running, delivery_id)
        return row if row["status"] == status else {}

    return await running.until(look)


def decisions(row: dict[str, Any]) -> list[tuple[str, str]]:
    return [(line["rule"], line["verdict"]) for line in row["decisions"]]


# --- what waits ------------------------------------------------------------------------------------------------------


@pytest.mark.scenario("M0-005", "M1-005")
async def test_a_routed_notify_waits_for_a_person_and_then_goes_out_once(running: RunningSystem) -> None:
    held = await asked(running, "may I?", recipient="51")
    row = await row_of(running, held["delivery"])
    assert (row["status"], str(row["action_id"]), row["attempts"]) == ("pending_approval", held["action"], 0)
    action = await action_row(running, held["action"])
    assert (action["tool_name"], action["status"], action["requested_by"]) == ("notify", "pending", "health")
    assert (action["tool_args"]["recipient"], action["tool_args"]["message"]) == ("51", "may I?")
    listed = await tool(running, "list_pending_actions")
    assert [found["id"] for found in listed["actions"]] == [held["action"]]

    approved = await tool(running, "approve_action", action_id=held["action"], reason="go ahead")
    assert (approved["action"]["status"], approved["action"]["decided_by"]) == ("executed", "operator")
    row = await ended(running, held["delivery"], "delivered")
    assert await running.answers(51) == ["[health] may I?"]
    assert (row["attempts"], await sends(running)) == (1, 1)
    assert ("approval", "pending") in decisions(row)
    [release] = [line for line in row["decisions"] if line["rule"] == "release"]
    assert release["detail"] == "approved by operator"
    # Decided once: a second word changes nothing.
    again = await tool(running, "approve_action", action_id=held["action"])
    assert again["error"]["class"] == "validation_error"
    assert "error" in await tool(running, "reject_action", action_id=held["action"])
    assert await running.answers(51) == ["[health] may I?"]


@pytest.mark.scenario("M0-005", "M1-005")
async def test_the_default_gates_the_two_sending_tools_and_notify(running: RunningSystem) -> None:
    chat = await tool(running, "telegram_send_message", message="x", recipient="52")
    mail = await tool(running, "email_send_message", message="y", recipient=FRIEND, subject="s")
    for answer in (chat, mail):
        assert answer["delivery"]["status"] == "pending_approval"
    names = {(await action_row(running, a["delivery"]["action_id"]))["tool_name"] for a in (chat, mail)}
    assert names == {"telegram_send_message", "email_send_message"}
    # A routed answer is a notify; the tool for answers is not on the list.
    held = await asked(running, "an answer", intent="reply", request_context=lineage(running))
    assert (await action_row(running, held["action"]))["tool_name"] == "notify"
    context = lineage(running)
    given = {
        name: context[name] for name in context if name.startswith(("request_id", "source_")) and "chann" not in name
    }
    reply = await tool(running, "telegram_reply_to_message", message="at once", **given)
    assert reply["delivery"]["status"] == "delivered"
    assert (await running.answers(), await mails(running)) == (["[messenger] at once"], [])
    for answer in (chat, mail):
        await tool(running, "approve_action", action_id=answer["delivery"]["action_id"])
        await ended(running, answer["delivery"]["delivery_id"], "delivered")
    assert (await running.answers(52), len(await mails(running))) == (["[messenger] x"], 1)


@pytest.mark.scenario("M1-005")
async def test_without_the_module_nothing_is_gated(tmp_path: Path, postgres_server: EmbeddedPostgres) -> None:
    async with running_system(tmp_path, postgres_server) as running:
        assert (await deliver(running, wish("at once")))["delivery"]["status"] == "delivered"
        for name, arguments in (
            ("telegram_send_message", {"message": "x", "recipient": "53"}),
            ("email_send_message", {"message": "y", "recipient": FRIEND, "subject": "s"}),
        ):
            answer = await tool(running, name, **arguments)
            assert answer["delivery"]["status"] == "delivered"
        assert await running.database.fetchval("select count(*) from messenger.pending_actions") == 0


@pytest.mark.scenario("M1-005")
async def test_the_gated_tools_may_be_a_table(tmp_path: Path, postgres_server: EmbeddedPostgres) -> None:
    table = "[modules.approvals.gated_tools]\nemail_send_message = true\ntelegram_send_message = false\n"
    roster = changed_roster(
        tmp_path, "messenger", (r"^\[modules\.calendar\]", f"[modules.approvals]\n\n{table}\n[modules.calendar]")
    )
    async with running_system(tmp_path, postgres_server, roster_dir=roster) as running:
        assert (await deliver(running, wish("at once")))["delivery"]["status"] == "delivered"
        # The same deed by the other door: a routed mail is what email_send_message does.
        held = await asked(running, "a mail", channel="email", recipient=FRIEND, subject="s")
        assert (await action_row(running, held["action"]))["tool_name"] == "email_send_message"


# --- deciding --------------------------------------------------------------------------------------------------------


@pytest.mark.scenario("M0-005", "M1-005")
async def test_a_person_approves_over_http(running: RunningSystem) -> None:
    held = await asked(running, "over HTTP", recipient="54")
    assert (await api(running, "GET", f"/approvals/{held['action']}")).json()["action"]["status"] == "pending"
    response = await api(running, "POST", f"/approvals/{held['action']}/approve", json={"reason": "fine"})
    assert response.status_code == 200, response.text
    assert (await action_row(running, held["action"]))["decided_by"] == "operator"
    row = await ended(running, held["delivery"], "delivered")
    assert "approved by operator" in str(row["decisions"])
    assert await running.answers(54) == ["[health] over HTTP"]
    assert (await api(running, "POST", f"/approvals/{held['action']}/approve", json={})).status_code == 422
    assert (await api(running, "POST", f"/approvals/{uuid4()}/approve", json={})).status_code == 404
    assert (await running.answers(54), await sends(running)) == (["[health] over HTTP"], 1)


@pytest.mark.scenario("M0-005", "M1-005")
async def test_a_person_approves_at_the_command_line(running: RunningSystem) -> None:
    held, unwanted = await asked(running, "by hand", recipient="55"), await asked(running, "not this", recipient="55")
    listed = (await cli(running, "approvals", "list")).stdout
    assert held["action"] in listed
    await cli(running, "approvals", "approve", held["action"], "--reason", "fine")
    await cli(running, "approvals", "reject", unwanted["action"], "--reason", "too much")
    await ended(running, held["delivery"], "delivered")
    assert (await row_of(running, unwanted["delivery"]))["status"] == "failed"
    assert await running.answers(55) == ["[health] by hand"]
    told = (await cli(running, "why", held["delivery"])).stdout
    assert "approved by operator" in told
    assert "Whether a person has to approve it: pending" in told
    await cli(running, "approvals", "approve", held["action"], code=2)


@pytest.mark.scenario("M0-005")
async def test_what_is_rejected_is_never_sent(running: RunningSystem) -> None:
    notify = wish("no", recipient="56", idempotency_key="no")
    held = await asked(running, "no", recipient="56", idempotency_key="no")
    rejected = await tool(running, "reject_action", action_id=held["action"], reason="not today")
    assert rejected["action"]["status"] == "rejected"
    row = await row_of(running, held["delivery"])
    assert (row["status"], row["terminal_error_class"], row["terminal_retryable"]) == (
        "failed",
        "validation_error",
        False,
    )
    assert "not today" in row["terminal_error_message"]
    # Asking again is the same wish: the same answer, and nobody is bothered twice.
    again = await deliver(running, notify)
    assert (again["status"], again["delivery"]["delivery_id"]) == ("error", held["delivery"])
    assert "not today" in again["error"]["message"]
    assert (await running.answers(56), await sends(running), len(await rows(running))) == ([], 0, 1)


@pytest.mark.scenario("M0-005")
async def test_what_nobody_decides_expires(running: RunningSystem) -> None:
    held = await asked(running, "soon", recipient="57")
    action = await action_row(running, held["action"])
    assert action["expires_at"] - action["requested_at"] == timedelta(hours=48)
    await running.database.execute("update messenger.pending_actions set expires_at = now() - interval '1 second'")
    row = await ended(running, held["delivery"], "expired")  # by a timer, without anybody's word
    assert (await action_row(running, held["action"]))["status"] == "expired"
    assert row["terminal_error_message"] == "nobody decided in time"
    late = await tool(running, "approve_action", action_id=held["action"])
    assert late["error"]["class"] == "validation_error"
    assert (await running.answers(57), await sends(running)) == ([], 0)


async def test_a_repeat_meets_the_same_action_and_later_the_same_outcome(running: RunningSystem) -> None:
    notify = wish("once", recipient="58", idempotency_key="once")
    first = (await deliver(running, notify))["delivery"]
    waiting = (await asyncio.gather(*(deliver(running, notify) for _ in range(3))))[-1]["delivery"]
    assert (waiting["status"], waiting["deduplicated"]) == ("pending_approval", True)
    assert (waiting["action_id"], waiting["delivery_id"]) == (first["action_id"], first["delivery_id"])
    assert await running.database.fetchval("select count(*) from messenger.pending_actions") == 1
    await tool(running, "approve_action", action_id=first["action_id"])
    await ended(running, first["delivery_id"], "delivered")
    after = (await deliver(running, notify))["delivery"]
    assert (after["status"], after["delivery_id"], after["deduplicated"]) == ("delivered", first["delivery_id"], True)
    assert await running.answers(58) == ["[health] once"]


@pytest.mark.scenario("M0-005")
async def test_a_butler_cannot_approve_what_it_asked_for(running: RunningSystem) -> None:
    held = await asked(running, "please", recipient="59")
    for caller in ("health", "messenger"):
        for name in ("approve_action", "reject_action"):
            refused = await tool(running, name, caller=caller, action_id=held["action"])
            assert refused["error"]["class"] == "validation_error"
            assert "may not call" in refused["error"]["message"]
        response = await api(running, "POST", f"/approvals/{held['action']}/approve", caller=caller, json={})
        assert response.status_code == 403
        rule = await tool(running, "create_approval_rule", caller=caller, tool_name="notify")
        assert "may not call" in rule["error"]["message"]
    assert (await row_of(running, held["delivery"]))["status"] == "pending_approval"
    assert (await action_row(running, held["action"]))["status"] == "pending"
    assert (await running.answers(59), await sends(running)) == ([], 0)


async def test_an_approved_delivery_waits_for_room_and_then_goes_out(
    tmp_path: Path, postgres_server: EmbeddedPostgres
) -> None:
    tight = (r"^recipient_per_minute = .*$", "recipient_per_minute = 1.0")
    roster = quick(tmp_path, GATED, tight, (r"^tell_owner = true", "tell_owner = false"))
    async with running_system(tmp_path, postgres_server, roster_dir=roster, shipped_limits=True) as running:
        first, second = [await asked(running, text, recipient="60") for text in ("first", "second")]
        for held in (first, second):
            await tool(running, "approve_action", action_id=held["action"])
        await ended(running, first["delivery"], "delivered")

        async def put_off() -> dict[str, Any]:
            row = await row_of(running, second["delivery"])
            return row if ("recipient", "wait") in decisions(row) else {}

        row = await running.until(put_off)
        assert (row["status"], row["admitted"], row["attempts"]) == ("pending", False, 0)
        assert await running.answers(60) == ["[health] first"]
        # A minute later there is room again.
        await running.database.execute("delete from messenger.rate_buckets where name <> 'lock'")
        await hurry(running)
        await ended(running, second["delivery"], "delivered")
        assert await running.answers(60) == ["[health] first", "[health] second"]


async def test_what_became_too_late_while_it_waited_cannot_be_approved(running: RunningSystem) -> None:
    soon = (running.clock.now() + timedelta(seconds=1)).isoformat()
    held = await asked(running, "only today", recipient="69", not_after=soon)
    await ended(running, held["delivery"], "expired")
    refused = await tool(running, "approve_action", action_id=held["action"])
    assert "too late" in refused["error"]["message"]
    assert (await action_row(running, held["action"]))["status"] == "pending"  # nobody may think it was done
    assert (await running.answers(69), await sends(running)) == ([], 0)


async def test_a_wish_of_long_ago_is_asked_for_again(running: RunningSystem) -> None:
    first = await asked(running, "the yearly one", recipient="70", idempotency_key="yearly")
    await tool(running, "approve_action", action_id=first["action"])
    await ended(running, first["delivery"], "delivered")
    # Longer ago than keys are kept.
    await running.database.execute("update messenger.delivery_requests set terminal_at = now() - interval '31 days'")
    await running.butler("messenger").timers["tidying"][1]()
    second = await asked(running, "the yearly one", recipient="70", idempotency_key="yearly")
    assert second["action"] != first["action"]
    await tool(running, "approve_action", action_id=second["action"])
    await ended(running, second["delivery"], "delivered")
    assert await running.answers(70) == ["[health] the yearly one"] * 2


# --- rules -----------------------------------------------------------------------------------------------------------


@pytest.mark.scenario("M0-005")
async def test_a_rule_lets_pass_what_matches_and_only_that(running: RunningSystem) -> None:
    constraints = {"recipient": {"type": "exact", "value": "65"}, "message": {"type": "pattern", "value": "Report *"}}
    made = await tool(running, "create_approval_rule", tool_name="notify", arg_constraints=constraints)
    rule = made["rule"]["id"]
    passed = (await deliver(running, wish("Report of today", recipient="65")))["delivery"]
    assert passed["status"] == "delivered"
    [allowed] = [d for d in (await row_of(running, passed["delivery_id"]))["decisions"] if d["rule"] == "approval"]
    assert (allowed["verdict"], allowed["detail"]) == ("allowed", f"rule {rule}")
    await asked(running, "Report of today", recipient="66")
    await asked(running, "Something else", recipient="65")
    assert (await tool(running, "show_approval_rule", rule_id=rule))["rule"]["use_count"] == 1
    await tool(running, "revoke_approval_rule", rule_id=rule)
    await asked(running, "Report of tomorrow", recipient="65")
    assert await running.answers(65) == ["[health] Report of today"]


@pytest.mark.scenario("M0-005")
async def test_the_most_specific_rule_is_used_first_and_only_so_often(running: RunningSystem) -> None:
    wide = (await tool(running, "create_approval_rule", tool_name="notify"))["rule"]["id"]
    to_him = {"recipient": {"type": "exact", "value": "67"}}
    narrow = await tool(running, "create_approval_rule", tool_name="notify", arg_constraints=to_him, max_uses=2)
    for number in range(3):
        answer = await deliver(running, wish(f"message {number}", recipient="67"))
        assert answer["delivery"]["status"] == "delivered"
    used = {
        str(row["id"]): row["use_count"]
        for row in await running.database.fetch("select id, use_count from messenger.approval_rules")
    }
    assert used == {narrow["rule"]["id"]: 2, wide: 1}
    # Without the wide one, what the narrow one allowed is used up.
    await tool(running, "revoke_approval_rule", rule_id=wide)
    await asked(running, "message 3", recipient="67")
    assert len(await running.answers(67)) == 3


async def test_a_rule_made_from_an_action_lets_the_next_one_pass(running: RunningSystem) -> None:
    held = await asked(running, "daily summary", recipient="68")
    made = await tool(running, "create_rule_from_action", action_id=held["action"], max_uses=1)
    assert made["rule"]["max_uses"] == 1
    # What waits already goes on waiting: the rule is for the next one.
    assert (await row_of(running, held["delivery"]))["status"] == "pending_approval"
    answer = await deliver(running, wish("another summary", recipient="68"))
    assert answer["delivery"]["status"] == "delivered"
    await asked(running, "a third summary", recipient="68")
    assert await running.answers(68) == ["[health] another summary"]
