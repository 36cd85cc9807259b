"""A butler whose own `notify` waits for a person, from its door to the chat; Messenger itself is not gated here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from butlers.storage.embedded import EmbeddedPostgres
from tests.scenarios.messenger_door import call, changed_roster, forget, official_call, quick, rows, sends
from tests.scenarios.test_messenger_cli import api, cli, document
from tests.system import RunningSystem, running_system

pytestmark = pytest.mark.asyncio(loop_scope="module")

GATED = (r"^\[butler\.security\]", '[modules.approvals]\ngated_tools = ["notify"]\n\n[butler.security]')
OF_GENERAL: dict[str, Any] = {"params": {"butler": "general"}}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def system(
    tmp_path_factory: pytest.TempPathFactory, postgres_server: EmbeddedPostgres
) -> AsyncIterator[RunningSystem]:
    tmp_path = tmp_path_factory.mktemp("specialist")
    changed_roster(tmp_path, "general", GATED)
    async with running_system(tmp_path, postgres_server, roster_dir=quick(tmp_path)) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def running(system: RunningSystem) -> RunningSystem:
    await forget(system)
    for table in ("pending_actions", "approval_rules"):
        await system.database.execute(f"delete from general.{table}")
    return system


async def general(running: RunningSystem, name: str, caller: str = "general", **arguments: Any) -> dict[str, Any]:
    return await call(running, "general", name, arguments, caller=caller)


async def waits(running: RunningSystem, caller: str = "general", **arguments: Any) -> str:
    """The action that a call of `notify` left, with no delivery on record."""
    before = (await rows(running), await sends(running))
    answer = await general(running, "notify", caller, **arguments)
    assert (answer["status"], set(answer)) == ("pending_approval", {"status", "action_id", "expires_at"}), answer
    assert (await rows(running), await sends(running)) == before
    action_id: str = answer["action_id"]
    return action_id


async def action_row(running: RunningSystem, action_id: str) -> dict[str, Any]:
    row = await running.database.fetchrow("select * from general.pending_actions where id = $1", action_id)
    assert row is not None
    return dict(row)


async def listed(running: RunningSystem, butler: str = "general") -> list[str]:
    """What waits, as a person sees it over HTTP and at the command line."""
    response = await api(running, "GET", "/approvals", params={"butler": butler})
    assert response.status_code == 200, response.text
    found = [action["id"] for action in response.json()["actions"]]
    shown = await document(running, "approvals", "list", "--butler", butler)
    assert [action["id"] for action in shown["actions"]] == found
    return found


async def decide(running: RunningSystem, verb: str, action_id: str, caller: str = "operator") -> Any:
    return await api(running, "POST", f"/approvals/{action_id}/{verb}", caller=caller, json={}, **OF_GENERAL)


# --- waiting and deciding --------------------------------------------------------------------------------------------


@pytest.mark.scenario("M0-005")
async def test_a_specialists_notify_waits_is_listed_and_goes_out_once(running: RunningSystem) -> None:
    arguments = {"message": "may I?", "recipient": "2501"}
    answer = await official_call(running, "general", "notify", arguments, caller="general")
    assert answer["status"] == "pending_approval"
    action = await action_row(running, answer["action_id"])
    assert (action["tool_name"], action["status"], action["requested_by"]) == ("notify", "pending", "general")
    assert (action["tool_args"]["message"], action["tool_args"]["recipient"]) == ("may I?", "2501")
    assert await listed(running) == [answer["action_id"]]
    assert await listed(running, "messenger") == []  # each butler has its own, and not its tables only
    assert (await rows(running), await sends(running)) == ([], 0)

    approved = await decide(running, "approve", answer["action_id"])
    assert approved.status_code == 200, approved.text
    shown = approved.json()["action"]
    assert (shown["status"], shown["decided_by"]) == ("executed", "operator")
    [row] = await rows(running)
    told = shown["result"]["result"]["delivery"]
    assert (told["delivery_id"], told["status"]) == (str(row["id"]), "delivered")
    assert (row["origin_butler"], row["target_identity"], row["attempts"]) == ("general", "2501", 1)
    assert row["envelope"]["idempotency_key"] == answer["action_id"]
    # Decided once: neither a second word nor whoever takes over what was left sends it again.
    for verb in ("approve", "reject"):
        assert (await decide(running, verb, answer["action_id"])).status_code == 422
    await running.run_service("general", "approved actions")
    assert (await listed(running), len(await rows(running))) == ([], 1)
    assert (await running.answers(2501), await sends(running)) == (["[general] may I?"], 1)


@pytest.mark.scenario("M0-005")
async def test_a_person_decides_at_the_command_line(running: RunningSystem) -> None:
    wanted = await waits(running, message="yes", recipient="2502")
    unwanted = await waits(running, message="no", recipient="2502")
    assert await listed(running) == [unwanted, wanted]
    await cli(running, "approvals", "approve", wanted, code=2)  # Messenger knows no such action
    assert (await cli(running, "approvals", "approve", wanted, "--butler", "general")).stdout.startswith("executed: ")
    told = await cli(running, "approvals", "reject", unwanted, "--reason", "too much", "--butler", "general")
    assert told.stdout.startswith("rejected: ")
    rejected = await action_row(running, unwanted)
    assert (rejected["status"], rejected["decision_reason"], rejected["result"]) == ("rejected", "too much", None)
    [row] = await rows(running)
    assert (row["status"], row["target_identity"]) == ("delivered", "2502")
    assert (await running.answers(2502), await sends(running)) == (["[general] yes"], 1)


@pytest.mark.scenario("M0-005")
async def test_what_is_rejected_leaves_no_delivery(running: RunningSystem) -> None:
    action_id = await waits(running, message="no", recipient="2503", idempotency_key="no")
    assert (await decide(running, "reject", action_id)).status_code == 200
    again = await general(running, "notify", message="no", recipient="2503", idempotency_key="no")
    assert (again["status"], again["action_id"]) == ("rejected", action_id)
    assert (await decide(running, "approve", action_id)).status_code == 422
    await running.run_service("general", "approved actions")
    assert (await rows(running), await running.answers(2503), await sends(running)) == ([], [], 0)


@pytest.mark.scenario("M0-005")
async def test_the_butler_that_asks_does_not_decide(running: RunningSystem) -> None:
    action_id = await waits(running, message="please", recipient="2504")
    for caller in ("general", "messenger", "health"):
        assert (await decide(running, "approve", action_id, caller)).status_code == 403
        refused = await general(running, "approve_action", caller, action_id=action_id)
        assert "may not call" in refused["error"]["message"]
    path = running.url(path=f"/api/approvals/{action_id}/approve")
    assert (await running.http.post(path, json={}, **OF_GENERAL)).status_code == 403
    # The gate is for everybody: what an operator asks for at this door waits, too.
    await waits(running, "operator", message="please", recipient="2504")
    assert (await action_row(running, action_id))["status"] == "pending"
    assert (await rows(running), await running.answers(2504)) == ([], [])


async def test_a_butler_without_the_module_has_nothing_to_list(running: RunningSystem) -> None:
    response = await api(running, "GET", "/approvals", params={"butler": "health"})
    assert (response.status_code, "approvals are off for" in response.json()["error"]["message"]) == (404, True)
    answer = await call(running, "health", "notify", {"message": "at once", "recipient": "2505"}, caller="health")
    assert answer["delivery"]["status"] == "delivered"
    assert await running.answers(2505) == ["[health] at once"]


# --- repeats ---------------------------------------------------------------------------------------------------------


@pytest.mark.scenario("M0-005")
async def test_a_repeat_of_a_key_is_the_same_action_and_the_same_delivery(running: RunningSystem) -> None:
    arguments = {"message": "once", "recipient": "2506", "idempotency_key": "once"}
    answers = await asyncio.gather(*(general(running, "notify", **arguments) for _ in range(4)))
    [action_id] = {answer["action_id"] for answer in answers}
    assert await listed(running) == [action_id]
    yeses = await asyncio.gather(*(decide(running, "approve", action_id) for _ in range(3)))
    assert sorted(yes.status_code for yes in yeses) == [200, 422, 422]
    [row] = await rows(running)
    after = await general(running, "notify", **arguments)
    assert (after["status"], after["action_id"]) == ("executed", action_id)
    assert after["result"]["delivery"]["delivery_id"] == str(row["id"])
    assert (await running.answers(2506), await sends(running)) == (["[general] once"], 1)


@pytest.mark.scenario("M0-005")
async def test_a_rule_lets_it_pass_and_a_repeat_of_its_key_goes_out_once(running: RunningSystem) -> None:
    to_him = {"recipient": {"type": "exact", "value": "2507"}}
    rule = {"tool_name": "notify", "arg_constraints": to_him}
    made = await api(running, "POST", "/approvals/rules", json=rule, **OF_GENERAL)
    assert made.status_code == 201, made.text
    arguments = {"message": "once", "recipient": "2507", "idempotency_key": "once"}
    answers = [await general(running, "notify", **arguments) for _ in range(3)]
    assert [answer["delivery"]["deduplicated"] for answer in answers] == [False, True, True]
    await waits(running, message="once", recipient="2508")  # the rule is about him and nobody else
    ended = await api(running, "DELETE", f"/approvals/rules/{made.json()['rule']['id']}", **OF_GENERAL)
    assert ended.status_code == 200, ended.text
    await waits(running, message="twice", recipient="2507")
    [row] = await rows(running)
    assert (row["status"], row["origin_butler"]) == ("delivered", "general")
    assert (await running.answers(2507), await running.answers(2508)) == (["[general] once"], [])
