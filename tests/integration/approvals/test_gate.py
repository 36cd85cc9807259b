"""Tools behind the gate, called through a tool box as every door does."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from butlers.butler.approvals.approvals import Approvals
from butlers.butler.approvals.runner import ActionRunner, RunnerPolicy
from butlers.butler.approvals.tools import ApprovalTools, gate_tools
from butlers.butler.identity import Caller
from butlers.butler.toolbox import EnvelopeTool, Tool, ToolBox
from butlers.clock import ManualClock
from butlers.contracts.envelope import Identity, Value
from butlers.contracts.route import RouteEnvelope
from butlers.errors import ConfigurationError, TargetUnavailable, ValidationError, from_wire
from butlers.operations.operation import SENDS, Result, Role
from butlers.storage.claims import LeasePolicy
from tests.integration.approvals.conftest import Desk

GENERAL = Caller(name="general", role=Role.BUTLER)
OPERATOR = Caller(name="operator", role=Role.OPERATOR)
SWITCHBOARD = Caller(name="switchboard", role=Role.BUTLER)
LEASE = LeasePolicy(ttl=10, renew_every=3)


class SendArguments(Value):
    to: Identity
    text: Identity = "hello"
    idempotency_key: Identity | None = None


class PayArguments(Value):
    amount: int


class Post:
    """A post office that knows keys, as Messenger does: the same key is the same letter."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, str | None]] = []
        self.letters: dict[str | None, str] = {}
        self.paid: list[int] = []
        self.failures: list[Exception] = []
        self.opened = asyncio.Event()
        self.opened.set()

    async def send(self, caller: Caller, arguments: SendArguments) -> dict[str, Any]:
        self.calls.append((caller.name, arguments.to, arguments.idempotency_key))
        if self.failures:
            raise self.failures.pop(0)
        self.letters.setdefault(arguments.idempotency_key, arguments.to)
        await self.opened.wait()
        return {"status": "ok", "letters": len(self.letters)}

    async def pay(self, _caller: Caller, arguments: PayArguments) -> dict[str, Any]:
        if self.failures:
            raise self.failures.pop(0)
        self.paid.append(arguments.amount)
        return {"paid": arguments.amount}

    def tools(self) -> list[Tool]:
        return [
            Tool(
                name="send",
                description="Send.",
                arguments=SendArguments,
                returns=Result,
                hints=SENDS,
                handler=self.send,
                owner="general",
            ),
            Tool(name="pay", description="Pay.", arguments=PayArguments, returns=Result, hints=SENDS, handler=self.pay),
            Tool(
                name="look", description="Look.", arguments=PayArguments, returns=Result, hints=SENDS, handler=self.pay
            ),
        ]


class Butler:
    """One process of a butler with gated tools."""

    def __init__(self, approvals: Approvals, post: Post, *, owner: str = "one", wait_s: float = 5.0) -> None:
        self.runner = ActionRunner(approvals=approvals, owner=owner, policy=RunnerPolicy(lease=LEASE))
        self.box = ToolBox(gate_tools(post.tools(), approvals=approvals, runner=self.runner))
        self.box.add(*ApprovalTools(approvals=approvals, runner=self.runner, wait_s=wait_s).tools())

    async def call(self, name: str, caller: Caller = GENERAL, **arguments: Any) -> dict[str, Any]:
        return await self.box.call(name, caller, arguments)

    async def approve(self, action_id: str) -> dict[str, Any]:
        action: dict[str, Any] = (await self.call("approve_action", OPERATOR, action_id=action_id))["action"]
        return action


@pytest.fixture
def post() -> Post:
    return Post()


@pytest.fixture
def butler(desk: Desk, post: Post) -> Butler:
    return Butler(desk.approvals, post)


async def test_a_gated_call_waits_and_the_approval_executes_it_once(butler: Butler, post: Post):
    told = await butler.call("send", to="ann")
    assert told["status"] == "pending_approval"
    assert told["expires_at"].startswith("2026-01-03T00:00:00")
    assert post.calls == []
    action = await butler.approve(told["action_id"])
    assert (action["status"], action["result"]) == ("executed", {"result": {"status": "ok", "letters": 1}})
    assert (action["decided_by"], action["attempts"]) == ("operator", 1)
    assert [event["event"] for event in action["events"]] == ["requested", "approved", "executed"]
    assert post.calls == [("general", "ann", told["action_id"])]
    assert await butler.runner.recover() == 0


async def test_tools_that_are_not_gated_and_calls_that_are_wrong_do_not_wait(butler: Butler, post: Post, desk: Desk):
    assert await butler.call("look", amount=1) == {"paid": 1}
    with pytest.raises(ValidationError):
        await butler.call("send", to=7)
    with pytest.raises(ValidationError, match="may not call"):
        await butler.call("send", SWITCHBOARD, to="ann")
    assert await desk.events() == []


async def test_a_rejected_call_never_happens(butler: Butler, post: Post):
    told = await butler.call("send", to="ann")
    rejected = (await butler.call("reject_action", OPERATOR, action_id=told["action_id"], reason="no"))["action"]
    assert (rejected["status"], rejected["decision_reason"]) == ("rejected", "no")
    assert await butler.runner.recover() == 0
    assert post.calls == []


async def test_a_rule_lets_a_call_pass_at_once(butler: Butler, post: Post):
    told = await butler.call("send", to="ann")
    await butler.call("create_rule_from_action", OPERATOR, action_id=told["action_id"], max_uses=1)
    assert (await butler.call("send", to="bob"))["status"] == "pending_approval"
    assert (await butler.call("send", to="ann", text="other words"))["status"] == "ok"
    assert (await butler.call("send", to="ann"))["status"] == "pending_approval"


async def test_a_refused_call_gives_its_use_back_and_a_doubtful_one_does_not(butler: Butler, post: Post):
    rule = (await butler.call("create_approval_rule", OPERATOR, tool_name="pay"))["rule"]

    async def uses() -> int:
        count: int = (await butler.call("show_approval_rule", rule_id=rule["id"]))["rule"]["use_count"]
        return count

    post.failures = [ValidationError("no such account"), TargetUnavailable("the bank is away")]
    with pytest.raises(ValidationError):
        await butler.call("pay", amount=5)
    assert await uses() == 0
    with pytest.raises(TargetUnavailable):
        await butler.call("pay", amount=5)
    assert await uses() == 1


async def test_the_callers_key_makes_a_repeat_the_same_action(butler: Butler, post: Post):
    first = await butler.call("send", to="ann", idempotency_key="k")
    assert await butler.call("send", to="ann", idempotency_key="k") == first
    await butler.approve(first["action_id"])
    after = await butler.call("send", to="ann", idempotency_key="k")
    assert (after["status"], after["result"]) == ("executed", {"status": "ok", "letters": 1})
    assert post.calls == [("general", "ann", "k")]


async def test_a_worker_that_dies_is_replaced_and_nothing_is_sent_twice(butler: Butler, desk: Desk, post: Post):
    told = await butler.call("send", to="ann")
    post.opened.clear()
    approval = asyncio.create_task(butler.approve(told["action_id"]))
    while not post.letters:
        await asyncio.sleep(0)
    await butler.runner.drain(0)  # the process ends in the middle of the call
    approval.cancel()
    post.opened.set()
    other = Butler(desk.another(), post, owner="two")
    assert await other.runner.recover() == 0  # the lease of the dead still runs
    desk.clock.advance(LEASE.ttl)
    assert await other.runner.recover() == 1
    await other.runner.drain(5)
    shown = (await other.call("show_pending_action", action_id=told["action_id"]))["action"]
    assert (shown["status"], shown["attempts"]) == ("executed", 2)
    assert post.calls == [("general", "ann", told["action_id"])] * 2
    assert list(post.letters.values()) == ["ann"]


async def test_a_worker_that_was_replaced_writes_nothing(butler: Butler, desk: Desk, post: Post):
    told = await butler.call("send", to="ann")
    post.opened.clear()
    approval = asyncio.create_task(butler.approve(told["action_id"]))
    while not post.letters:
        await asyncio.sleep(0)
    await desk.database.execute("update general.pending_actions set claim_token = gen_random_uuid()")
    post.opened.set()
    await butler.runner.drain(5)
    approval.cancel()
    shown = (await butler.call("show_pending_action", action_id=told["action_id"]))["action"]
    assert (shown["status"], shown["result"]) == ("approved", None)
    assert await desk.events() == ["requested", "approved"]


async def test_a_decision_whose_process_died_at_once_is_executed_by_recovery(desk: Desk, butler: Butler, post: Post):
    told = await butler.call("pay", amount=5)
    await desk.approvals.decide(UUID(told["action_id"]), approve=True, decided_by="ann")
    await desk.crowd()
    both = [butler, Butler(desk.another(), post, owner="two")]
    assert sum(await asyncio.gather(*(one.runner.recover() for one in both))) == 1
    await asyncio.gather(*(one.runner.drain(5) for one in both))
    assert post.paid == [5]


async def test_two_processes_execute_many_actions_once_each(desk: Desk, butler: Butler, post: Post):
    other = Butler(desk.another(), post, owner="two")
    for amount in range(20):
        told = await butler.call("pay", amount=amount)
        await desk.approvals.decide(UUID(told["action_id"]), approve=True, decided_by="ann")
    await desk.crowd()
    await asyncio.gather(*(one.runner.recover() for one in (butler, other, butler, other)))
    await asyncio.gather(butler.runner.drain(5), other.runner.drain(5))
    assert sorted(post.paid) == list(range(20))


async def test_an_approval_answers_without_the_result_when_that_takes_long(desk: Desk, post: Post):
    impatient = Butler(desk.approvals, post, wait_s=0.05)
    post.opened.clear()
    told = await impatient.call("send", to="ann")
    action = await impatient.approve(told["action_id"])
    assert (action["status"], action["result"]) == ("approved", None)
    post.opened.set()
    await impatient.runner.drain(5)
    shown = (await impatient.call("list_executed_actions"))["actions"]
    assert [one["id"] for one in shown] == [told["action_id"]]


async def test_a_target_that_was_away_is_tried_again_with_the_same_key(desk: Desk, butler: Butler, post: Post):
    post.failures = [TargetUnavailable("away", retry_after=30)]
    told = await butler.call("send", to="ann")
    action = await butler.approve(told["action_id"])
    assert (action["status"], action["result"]["error"]["class"]) == ("approved", "target_unavailable")
    desk.clock.advance(29)
    assert await butler.runner.recover() == 0
    desk.clock.advance(1)
    assert await butler.runner.recover() == 1
    await butler.runner.drain(5)
    shown = (await butler.call("show_pending_action", action_id=told["action_id"]))["action"]
    assert (shown["status"], "result" in shown["result"]) == ("executed", True)
    assert len(set(post.calls)) == 1


@pytest.mark.parametrize(
    ("failure", "error_class"),
    [
        (from_wire("target_unavailable", "away"), "target_unavailable"),  # pay knows no keys: never twice
        (ValidationError("no such account"), "validation_error"),
        (RuntimeError("broken"), "internal_error"),
    ],
)
async def test_a_failure_that_stands_ends_the_action(butler: Butler, post: Post, failure: Exception, error_class: str):
    post.failures = [failure]
    told = await butler.call("pay", amount=5)
    action = await butler.approve(told["action_id"])
    assert (action["status"], action["result"]["error"]["class"]) == ("executed", error_class)
    assert action["events"][-1]["event"] == "execution_failed"
    assert post.paid == []


async def test_an_action_that_kills_its_workers_is_given_up(desk: Desk, butler: Butler, post: Post):
    told = await butler.call("pay", amount=5)
    await desk.approvals.decide(UUID(told["action_id"]), approve=True, decided_by="ann")
    await desk.database.execute("update general.pending_actions set attempts = 5")
    await butler.runner.recover()
    await butler.runner.drain(5)
    shown = (await butler.call("show_pending_action", action_id=told["action_id"]))["action"]
    assert "5 attempts that never finished" in shown["result"]["error"]["message"]
    assert post.paid == []


class WatchedClock(ManualClock):
    """Says when somebody has begun to wait."""

    def __init__(self) -> None:
        super().__init__()
        self.asleep = asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        self.asleep.set()
        await super().sleep(seconds)


async def test_a_long_call_keeps_its_lease(desk: Desk, post: Post):
    clock = WatchedClock()
    butler = Butler(desk.another(clock), post)
    post.opened.clear()
    told = await butler.call("send", to="ann")
    approval = asyncio.create_task(butler.approve(told["action_id"]))
    async with asyncio.timeout(5):
        for _ in range(5):
            await clock.asleep.wait()
            clock.asleep.clear()
            clock.advance(LEASE.renew_every)
        await clock.asleep.wait()
    expires = await desk.database.fetchval("select lease_expires_at from general.pending_actions")
    assert expires == clock.now() + timedelta(seconds=LEASE.ttl)
    post.opened.set()
    assert (await approval)["attempts"] == 1


# --- who may ---------------------------------------------------------------------------------------------------------

DECIDING = {
    "approve_action": {"action_id": str(UUID(int=1))},
    "reject_action": {"action_id": str(UUID(int=1))},
    "expire_stale_actions": {},
    "create_approval_rule": {"tool_name": "send"},
    "create_rule_from_action": {"action_id": str(UUID(int=1))},
    "revoke_approval_rule": {"rule_id": str(UUID(int=1))},
}
READING = {
    "list_pending_actions",
    "show_pending_action",
    "pending_action_count",
    "list_executed_actions",
    "list_approval_rules",
    "show_approval_rule",
}


@pytest.mark.parametrize("name", sorted(DECIDING))
async def test_a_butler_never_decides_about_its_own_actions(butler: Butler, desk: Desk, name: str):
    for caller in (GENERAL, Caller(name="finance", role=Role.BUTLER), Caller(name="x", role=Role.CLIENT), None):
        with pytest.raises(ValidationError, match="may not call"):
            await butler.box.call(name, caller, DECIDING[name])
    assert await desk.events() == []


def test_every_tool_is_there(butler: Butler):
    assert set(butler.box.names()) == {"send", "pay", "look", *DECIDING, *READING}


async def test_switchboard_decides_for_a_person_and_nobody_else_may(butler: Butler):
    told = await butler.call("pay", amount=1)
    with pytest.raises(ValidationError, match="only switchboard may decide in another's name"):
        await butler.call("approve_action", OPERATOR, action_id=told["action_id"], decided_by="ann")
    action = await butler.call("approve_action", SWITCHBOARD, action_id=told["action_id"], decided_by="ann")
    assert action["action"]["decided_by"] == "ann"
    rule = await butler.call("create_approval_rule", SWITCHBOARD, tool_name="pay", decided_by="ann")
    assert rule["rule"]["created_by"] == "ann"
    ended = await butler.call("revoke_approval_rule", SWITCHBOARD, rule_id=rule["rule"]["id"], decided_by="bob")
    assert ended["rule"]["revoked_by"] == "bob"


async def test_listing_by_state_and_tool(butler: Butler):
    sent, paid = await butler.call("send", to="ann"), await butler.call("pay", amount=1)
    await butler.approve(paid["action_id"])

    async def ids(**filters: Any) -> list[str]:
        return [action["id"] for action in (await butler.call("list_pending_actions", **filters))["actions"]]

    assert await ids() == [sent["action_id"]]
    assert await ids(status="any") == [paid["action_id"], sent["action_id"]]
    assert await ids(status="executed") == [paid["action_id"]]
    assert await ids(status="any", tool_name="pay") == [paid["action_id"]]
    assert (await butler.call("pending_action_count"))["pending"] == 1


async def test_expiry_by_tool(butler: Butler, desk: Desk):
    await butler.call("send", to="ann")
    desk.clock.advance(48 * 3600)
    assert await butler.call("expire_stale_actions", OPERATOR) == {"expired": 1}


def test_a_tool_that_takes_an_envelope_cannot_be_gated(desk: Desk):
    async def handler(_caller: Caller | None, _raw: dict[str, Any]) -> dict[str, Any]:
        return {}

    tool = EnvelopeTool(name="send", description="", arguments=RouteEnvelope, returns=Result, hints=SENDS, call=handler)
    runner = ActionRunner(approvals=desk.approvals, owner="one")
    with pytest.raises(ConfigurationError, match="cannot be gated"):
        gate_tools([tool], approvals=desk.approvals, runner=runner)
