"""Who may decide, what a repeat costs a rule, and an approval that came after the recipient said no."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from butlers.operations.operation import Role
from tests.scenarios.gated_system import action_row, asked, decisions, ended, row_of, running, system, tool
from tests.scenarios.messenger_door import call, deliver, execute, route, rows, sends, wish
from tests.scenarios.test_messenger_cli import api, cli, lines
from tests.system import RunningSystem

pytestmark = pytest.mark.asyncio(loop_scope="module")
__all__ = ["running", "system"]  # fixtures


async def unmoved(running: RunningSystem, held: dict[str, str], chat: int) -> None:
    """Nobody decided anything: the action, its record and the delivery are as they were, and nothing was sent."""
    action = await action_row(running, held["action"])
    assert (action["status"], action["decided_by"], action["decided_at"]) == ("pending", None, None)
    query = "select event from messenger.approval_events where action_id = $1 order by id"
    assert [row["event"] for row in await running.database.fetch(query, held["action"])] == ["requested"]
    row = await row_of(running, held["delivery"])
    assert (row["status"], row["admitted"], row["attempts"]) == ("pending_approval", False, 0)
    assert (await running.answers(chat), await sends(running)) == ([], 0)


async def tried(running: RunningSystem, path: str, token: str | None) -> Any:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return await running.http.post(running.url(path=f"/api/approvals{path}"), json={}, headers=headers)


# --- who may decide --------------------------------------------------------------------------------------------------


@pytest.mark.scenario("M0-005")
async def test_whoever_is_on_this_machine_without_a_token_may_look_and_not_decide(running: RunningSystem) -> None:
    held = await asked(running, "please", recipient="2401")
    seen = await running.http.get(running.url(path=f"/api/approvals/{held['action']}"))
    assert (seen.status_code, seen.json()["action"]["status"]) == (200, "pending")
    for verb in ("approve", "reject"):
        refused = await tried(running, f"/{held['action']}/{verb}", None)
        assert (refused.status_code, refused.json()["error"]["class"]) == (403, "validation_error"), refused.text
        assert "only a person with an operator's token" in refused.json()["error"]["message"]
    rule = await running.http.post(running.url(path="/api/approvals/rules"), json={"tool_name": "notify"})
    assert rule.status_code == 403
    assert await running.database.fetchval("select count(*) from messenger.approval_rules") == 0
    at_its_door = await call(running, "messenger", "approve_action", {"action_id": held["action"]}, caller=None)
    assert at_its_door["error"]["class"] == "validation_error"
    await unmoved(running, held, 2401)


@pytest.mark.scenario("M0-005")
async def test_only_the_operators_token_decides_and_then_it_is_delivered(running: RunningSystem) -> None:
    held = await asked(running, "please", recipient="2402")
    connector = running.issue_token("connector.deciding", Role.CONNECTOR)
    butlers = [running.token(name) for name in ("health", "messenger", "switchboard")]
    for token, status in [*((butler, 403) for butler in butlers), (connector, 403), ("made-up", 401)]:
        for verb in ("approve", "reject"):
            refused = await tried(running, f"/{held['action']}/{verb}", token)
            assert refused.status_code == status, refused.text
    await unmoved(running, held, 2402)
    accepted = await tried(running, f"/{held['action']}/approve", running.token("operator"))
    assert accepted.status_code == 200, accepted.text
    action = accepted.json()["action"]
    assert (action["status"], action["decided_by"]) == ("executed", "operator")
    row = await ended(running, held["delivery"], "delivered")
    assert (row["attempts"], await running.answers(2402), await sends(running)) == (1, ["[health] please"], 1)


@pytest.mark.scenario("M0-005")
async def test_of_many_yeses_and_noes_at_once_one_counts(running: RunningSystem) -> None:
    held = await asked(running, "please", recipient="2403")
    verbs = ["approve", "reject"] * 4
    answers = await asyncio.gather(
        *(api(running, "POST", f"/approvals/{held['action']}/{verb}", json={}) for verb in verbs)
    )
    assert sorted(answer.status_code for answer in answers) == [200] + [422] * 7
    [verb] = [verb for verb, answer in zip(verbs, answers, strict=True) if answer.status_code == 200]
    await ended(running, held["delivery"], "delivered" if verb == "approve" else "failed")
    assert await running.answers(2403) == (["[health] please"] if verb == "approve" else [])


# --- what a repeat costs a rule --------------------------------------------------------------------------------------


async def rule_of(running: RunningSystem, recipient: str, max_uses: int) -> str:
    to_him = {"recipient": {"type": "exact", "value": recipient}}
    made = await tool(running, "create_approval_rule", tool_name="notify", arg_constraints=to_him, max_uses=max_uses)
    rule_id: str = made["rule"]["id"]
    return rule_id


async def used(running: RunningSystem, rule_id: str) -> int:
    count: int = await running.database.fetchval(
        "select use_count from messenger.approval_rules where id = $1", rule_id
    )
    return count


@pytest.mark.scenario("M0-005")
async def test_repeats_one_after_another_do_not_use_up_a_rule(running: RunningSystem) -> None:
    rule = await rule_of(running, "2404", 2)
    notify = wish("once", recipient="2404", idempotency_key="once")
    answers = [(await deliver(running, notify))["delivery"] for _ in range(4)]
    assert [answer["deduplicated"] for answer in answers] == [False, True, True, True]
    assert {answer["status"] for answer in answers} == {"delivered"}
    assert await used(running, rule) == 1
    # The second use is still there for another wish, and then it is over.
    assert (await deliver(running, wish("twice", recipient="2404")))["delivery"]["status"] == "delivered"
    await asked(running, "thrice", recipient="2404")
    assert await running.answers(2404) == ["[health] once", "[health] twice"]


@pytest.mark.scenario("M0-005")
@pytest.mark.parametrize("max_uses", [1, 2, 8])
async def test_repeats_at_once_take_one_use_and_nobody_is_asked(running: RunningSystem, max_uses: int) -> None:
    for number in range(5):
        chat = str(24_100 + 10 * max_uses + number)
        rule = await rule_of(running, chat, max_uses)
        notify = wish("once", recipient=chat, idempotency_key=f"once-{chat}")
        answers = await asyncio.gather(*(deliver(running, notify) for _ in range(8)))
        assert {answer["delivery"]["status"] for answer in answers} == {"delivered"}
        assert len({answer["delivery"]["delivery_id"] for answer in answers}) == 1
        assert await used(running, rule) == 1
        assert await running.answers(int(chat)) == ["[health] once"]
    assert await running.database.fetchval("select count(*) from messenger.pending_actions") == 0
    assert (len(await rows(running)), await sends(running)) == (5, 5)


async def test_what_is_refused_although_a_rule_let_it_pass_costs_nothing(running: RunningSystem) -> None:
    rule = await rule_of(running, "2405", 1)
    change = "update messenger.channel_states set state = $1, probe_at = now() + interval '1 hour'"
    await running.database.execute(change, "open")
    for _ in range(3):
        response = await execute(running, route(running, wish("now", recipient="2405")))
        assert (response["status"], response["error"]["class"]) == ("error", "target_unavailable"), response
    query = "select event from messenger.approval_events where rule_id = $1 order by id"
    events = [row["event"] for row in await running.database.fetch(query, rule)]
    assert events[-6:] == ["rule_used", "rule_use_returned"] * 3
    assert (await used(running, rule), await rows(running), await sends(running)) == (0, [], 0)
    await running.database.execute(change, "closed")
    assert (await deliver(running, wish("now", recipient="2405")))["delivery"]["status"] == "delivered"
    assert (await used(running, rule), await running.answers(2405)) == (1, ["[health] now"])


# --- suppressed meanwhile --------------------------------------------------------------------------------------------


@pytest.mark.scenario("M0-005", "M1-050")
@pytest.mark.parametrize("door", ["tool", "http", "cli"])
async def test_an_approval_does_not_reach_a_recipient_suppressed_meanwhile(running: RunningSystem, door: str) -> None:
    held = await asked(running, "please", recipient="2406", idempotency_key="please")
    target = {"channel": "telegram", "target": "2406"}
    await tool(running, "messenger_recipient_suppress", reason="asked us to stop", **target)
    if door == "tool":
        await tool(running, "approve_action", action_id=held["action"])
    elif door == "http":
        assert (await api(running, "POST", f"/approvals/{held['action']}/approve", json={})).status_code == 200
    else:
        await cli(running, "approvals", "approve", held["action"])
    row = await ended(running, held["delivery"], "failed")
    assert (row["terminal_error_class"], row["terminal_retryable"]) == ("validation_error", False)
    assert (row["attempts"], "asked us to stop" in row["terminal_error_message"]) == (0, True)
    assert decisions(row)[-2:] == [("release", "released"), ("recipient", "refused")]
    # Both words are on record: the person's, and why it was not followed.
    told = "\n".join(await lines(running, "why", held["delivery"]))
    assert "approved by operator" in told
    assert "Whether the recipient may be written to: refused" in told
    assert "asked us to stop" in told
    again = await deliver(running, wish("please", recipient="2406", idempotency_key="please"))
    assert (again["status"], again["delivery"]["delivery_id"]) == ("error", held["delivery"])
    # Taking the suppression back does not bring it to life again.
    await tool(running, "messenger_recipient_release", **target)
    await running.run_service("messenger", "release")
    assert (await row_of(running, held["delivery"]))["status"] == "failed"
    assert (await running.answers(2406), await sends(running)) == ([], 0)
