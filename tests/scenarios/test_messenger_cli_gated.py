"""The ids of actions at the command line, and decisions over HTTP without a body."""

from __future__ import annotations

import pytest

from tests.scenarios.gated_system import action_row, asked, ended, running, system, tool
from tests.scenarios.test_messenger_cli import api, cli, document, lines
from tests.system import RunningSystem

pytestmark = pytest.mark.asyncio(loop_scope="module")
__all__ = ["running", "system"]  # fixtures


async def test_why_takes_the_id_of_an_action(running: RunningSystem) -> None:
    held = await asked(running, "may I?", recipient="91")
    told = await lines(running, "why", held["action"])
    assert told[:2] == [f"action {held['action']} is about", f"delivery {held['delivery']}: pending_approval"]
    assert f"butlers approvals show {held['action']}" in told[-1]
    assert (await document(running, "why", held["action"]))["asked_about"]["kind"] == "action"


async def test_why_shows_an_action_that_is_no_delivery(running: RunningSystem) -> None:
    held = await asked(running, "may I?", recipient="92")
    # Its delivery is gone, the action is still on record.
    await running.database.execute("delete from messenger.delivery_requests where id = $1::uuid", held["delivery"])
    told = await lines(running, "why", held["action"])
    assert told[0] == f"action {held['action']}: pending"
    assert any(line.strip().startswith("tool     notify") for line in told)


async def test_an_approval_over_http_needs_neither_body_nor_content_type(running: RunningSystem) -> None:
    held, other = await asked(running, "may I?", recipient="93"), await asked(running, "or this?", recipient="94")
    approved = await api(running, "POST", f"/approvals/{held['action']}/approve")
    assert (approved.status_code, approved.json()["action"]["status"]) == (200, "executed")
    await ended(running, held["delivery"], "delivered")
    assert await running.answers(93) == ["[health] may I?"]
    rejected = await api(running, "POST", f"/approvals/{other['action']}/reject", content=b"")
    assert (rejected.status_code, rejected.json()["action"]["status"]) == (200, "rejected")
    assert await running.answers(94) == []


async def test_an_approval_says_what_became_of_the_delivery(running: RunningSystem) -> None:
    held = await asked(running, "may I?", recipient="97")
    shown = await lines(running, "approvals", "show", held["action"])
    assert shown[-2:] == [
        f"  let it happen: butlers approvals approve {held['action']}",
        f"  refuse it:     butlers approvals reject {held['action']}",
    ]
    said = await lines(running, "approvals", "approve", held["action"])
    assert said[0].startswith("executed: ")
    assert said[1].startswith(f"delivery {held['delivery']}: ")
    assert said[2] == f"follow it with: butlers why {held['delivery']}"
    await ended(running, held["delivery"], "delivered")
    again = (await cli(running, "approvals", "approve", held["action"], code=2)).stderr
    assert again == "butlers: nothing was changed: the action is executed by operator already\n"
    assert "let it happen" not in "\n".join(await lines(running, "approvals", "show", held["action"]))
    assert await running.answers(97) == ["[health] may I?"]


async def test_approvals_go_on_with_their_filters(running: RunningSystem) -> None:
    for chat in ("95", "96"):
        await tool(running, "telegram_send_message", message="x", recipient=chat)
    asks = ("approvals", "list", "--status", "any", "--tool", "telegram_send_message", "--limit", "1")
    [first, hint] = await lines(running, *asks)
    assert hint.startswith("more: butlers approvals list --status any --tool telegram_send_message --limit 1 --cursor ")
    [second] = await lines(running, *hint.removeprefix("more: butlers ").split())
    assert (await action_row(running, second.split()[0]))["tool_args"]["recipient"] == "95"
    assert "96" in first
    error = (await cli(running, "approvals", "show", first.split()[0], "--butler", "finance", "--json", code=2)).stdout
    assert "approvals are off for" in error
