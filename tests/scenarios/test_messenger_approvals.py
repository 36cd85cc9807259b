"""What waits for a person: gated deliveries, and the decision by tool, over HTTP and at the command line."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from butlers.storage.embedded import EmbeddedPostgres
from tests.scenarios.gated_system import GATED, action_row, asked, decisions, ended, row_of, running, system, tool
from tests.scenarios.messenger_door import (
    changed_roster,
    deliver,
    hurry,
    lineage,
    mails,
    quick,
    request_said,
    rows,
    sends,
    wish,
)
from tests.scenarios.test_messenger_cli import api, cli
from tests.system import RunningSystem, running_system

pytestmark = pytest.mark.asyncio(loop_scope="module")
__all__ = ["running", "system"]  # fixtures

FRIEND = "friend@elsewhere.example"


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
    request_id, _ = await request_said(running, "may you answer?")
    reply = await tool(running, "telegram_reply_to_message", message="at once", request_id=request_id)
    assert reply["delivery"]["status"] == "delivered"
    # What answers nothing is not an answer: nobody gets round the gate with an invented request.
    forged = await tool(running, "telegram_reply_to_message", message="x", request_id=lineage(running)["request_id"])
    assert forged["error"]["class"] == "validation_error"
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
    assert "expired" in refused["error"]["message"]

    async def over() -> bool:  # it does not wait for anybody any more
        return bool((await action_row(running, held["action"]))["status"] == "expired")

    await running.until(over)
    assert (await running.answers(69), await sends(running)) == ([], 0)


async def test_a_wish_of_long_ago_is_asked_for_again(running: RunningSystem) -> None:
    first = await asked(running, "the yearly one", recipient="70", idempotency_key="yearly")
    await tool(running, "approve_action", action_id=first["action"])
    await ended(running, first["delivery"], "delivered")
    # Longer ago than keys are kept.
    await running.database.execute("update messenger.delivery_requests set terminal_at = now() - interval '31 days'")
    await running.run_service("messenger", "tidying")
    second = await asked(running, "the yearly one", recipient="70", idempotency_key="yearly")
    assert second["action"] != first["action"]
    await tool(running, "approve_action", action_id=second["action"])
    await ended(running, second["delivery"], "delivered")
    assert await running.answers(70) == ["[health] the yearly one"] * 2
