"""A decision is taken once and commits together with what it releases."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from butlers.butler.approvals import Hooks, PendingAction
from butlers.clock import ManualClock
from butlers.errors import ValidationError
from butlers.storage.database import Executor
from tests.integration.approvals.conftest import SCHEMA, Desk

RELEASED = "create table released (action_id uuid, status text)"


def releasing(*, fails: bool = False, result: dict[str, Any] | None = None) -> Hooks:
    """Hooks that write a row, as Messenger's release a delivery."""

    async def move(connection: Executor, action: PendingAction) -> None:
        await connection.execute("insert into released values ($1, $2)", action.id, action.status)
        if fails:
            raise RuntimeError("the release failed")

    async def approved(connection: Executor, action: PendingAction) -> dict[str, Any] | None:
        await move(connection, action)
        return result

    return Hooks(on_approved=approved, on_closed=move)


async def waiting_id(desk: Desk, **options: Any) -> UUID:
    answer = await desk.waiting(**options)
    assert answer.action_id is not None
    return answer.action_id


async def released(desk: Desk) -> list[tuple[UUID, str]]:
    return [tuple(row) for row in await desk.database.fetch("select action_id, status from released")]


async def status_of(desk: Desk, action_id: UUID) -> str:
    status: str = (await desk.approvals.actions.show(action_id))["status"]
    return status


async def test_a_decision_is_stored_with_its_reason_and_releases(desk: Desk):
    await desk.database.execute(RELEASED)
    desk.approvals.register(None, releasing())
    yes, no = await waiting_id(desk), await waiting_id(desk)
    approved = await desk.approvals.decide(yes, approve=True, decided_by="ann", reason="fine")
    assert (approved["status"], approved["decided_by"], approved["decision_reason"]) == ("approved", "ann", "fine")
    assert [event["event"] for event in approved["events"]] == ["requested", "approved"]
    assert approved["events"][1]["details"] == {"reason": "fine"}
    await desk.approvals.decide(no, approve=False, decided_by="ann")
    assert await released(desk) == [(yes, "approved"), (no, "rejected")]


async def test_a_release_that_is_the_deed_itself_ends_the_action(desk: Desk):
    await desk.database.execute(RELEASED)
    desk.approvals.register("send", releasing(result={"delivery": "released"}))
    done = await desk.approvals.decide(await waiting_id(desk), approve=True, decided_by="ann")
    assert (done["status"], done["result"]) == ("executed", {"result": {"delivery": "released"}})
    assert [event["event"] for event in done["events"]] == ["requested", "approved", "executed"]


async def test_hooks_of_a_tool_come_before_those_of_all(desk: Desk):
    await desk.database.execute(RELEASED)
    desk.approvals.register("pay", Hooks())
    desk.approvals.register(None, releasing())
    await desk.approvals.decide(await waiting_id(desk, tool_name="pay"), approve=True, decided_by="ann")
    assert await released(desk) == []
    with pytest.raises(ValueError, match="registered already"):
        desk.approvals.register("pay", Hooks())


@pytest.mark.parametrize("approve", [True, False])
async def test_a_release_that_fails_leaves_the_action_pending(desk: Desk, approve: bool):
    await desk.database.execute(RELEASED)
    desk.approvals.register(None, releasing(fails=True))
    action_id = await waiting_id(desk)
    with pytest.raises(RuntimeError, match="the release failed"):
        await desk.approvals.decide(action_id, approve=approve, decided_by="ann")
    assert await status_of(desk, action_id) == "pending"
    assert await released(desk) == []
    assert await desk.events() == ["requested"]


async def test_of_many_deciders_one_decides(desk: Desk):
    await desk.database.execute(RELEASED)
    desk.approvals.register(None, releasing())
    action_id = await waiting_id(desk)
    await desk.crowd()
    outcomes = await asyncio.gather(
        *(desk.approvals.decide(action_id, approve=n % 2 == 0, decided_by=f"person {n}") for n in range(20)),
        return_exceptions=True,
    )
    decided = [outcome for outcome in outcomes if isinstance(outcome, dict)]
    refused = [outcome for outcome in outcomes if isinstance(outcome, ValidationError)]
    assert (len(decided), len(refused)) == (1, 19)
    assert refused[0].message == (
        f"action_id: the action is not pending: it is {decided[0]['status']} by {decided[0]['decided_by']}"
    )
    assert await released(desk) == [(action_id, decided[0]["status"])]


async def test_deciders_and_expiry_race_for_one_end(desk: Desk):
    await desk.database.execute(RELEASED)
    desk.approvals.register(None, releasing())
    actions = [await waiting_id(desk) for _ in range(10)]
    desk.clock.advance(48 * 3600 - 1)
    decisions = [desk.approvals.decide(action, approve=True, decided_by="ann") for action in actions]
    # A process whose clock is a second ahead: for it the actions have expired, for the deciders they have not.
    late = desk.another(ManualClock(desk.clock.now() + timedelta(seconds=1)))
    late.register(None, releasing())
    await desk.crowd()
    outcomes = await asyncio.gather(late.expire(), *decisions, return_exceptions=True)
    approved = sum(isinstance(outcome, dict) for outcome in outcomes)
    ends = await released(desk)
    assert outcomes[0] == 10 - approved
    assert {action for action, _ in ends} == set(actions)
    assert len(ends) == 10


async def test_what_nobody_decides_expires_and_is_closed(desk: Desk):
    await desk.database.execute(RELEASED)
    desk.approvals.register(None, releasing())
    action_id = await waiting_id(desk)
    desk.clock.advance(48 * 3600 - 1)
    assert await desk.approvals.expire() == 0
    desk.clock.advance(1)
    with pytest.raises(ValidationError, match="it expired at"):
        await desk.approvals.decide(action_id, approve=True, decided_by="ann")
    assert await desk.approvals.expire() == 1
    assert await desk.approvals.expire() == 0
    assert await released(desk) == [(action_id, "expired")]
    assert await desk.events() == ["requested", "expired"]
    with pytest.raises(ValidationError, match="it is expired"):
        await desk.approvals.decide(action_id, approve=True, decided_by="ann")


async def test_one_that_cannot_be_closed_holds_up_no_other(desk: Desk):
    await desk.database.execute(RELEASED)
    desk.approvals.register("pay", releasing(fails=True))
    desk.approvals.register(None, releasing())
    stuck = await waiting_id(desk, tool_name="pay")
    others = [await waiting_id(desk) for _ in range(3)]
    desk.clock.advance(48 * 3600)
    assert await desk.approvals.expire() == 3
    assert await status_of(desk, stuck) == "pending"
    assert {action for action, _ in await released(desk)} == set(others)


async def test_an_unknown_action_is_named(desk: Desk):
    with pytest.raises(ValidationError, match="no such action"):
        await desk.approvals.decide(uuid4(), approve=True, decided_by="ann")
    with pytest.raises(ValidationError, match="no such action"):
        await desk.approvals.actions.show(uuid4())


async def test_what_came_of_it_can_be_told_later_once(desk: Desk):
    action_id = await waiting_id(desk)
    async with desk.database.transaction() as connection:
        assert not await desk.approvals.executed(connection, action_id, {"sent": True})
    await desk.approvals.decide(action_id, approve=True, decided_by="ann")
    async with desk.database.transaction() as connection:
        assert await desk.approvals.executed(connection, action_id, {"sent": True})
        assert not await desk.approvals.executed(connection, action_id, {"sent": False})
    row = await desk.database.fetchrow(f"select status, result from {SCHEMA}.pending_actions")
    assert row is not None
    assert dict(row) == {"status": "executed", "result": {"result": {"sent": True}}}


async def test_what_was_waited_for_may_come_by_itself(desk: Desk):
    await desk.database.execute(RELEASED)
    desk.approvals.register(None, releasing())
    action_id = await waiting_id(desk)
    async with desk.database.transaction() as connection:
        assert await desk.approvals.fulfil(connection, action_id, by="messenger", result={"address": "found"})
        assert not await desk.approvals.fulfil(connection, action_id, by="messenger", result={})
    shown = await desk.approvals.actions.show(action_id)
    assert (shown["status"], shown["decided_by"], shown["decision_reason"]) == ("executed", "messenger", "fulfilled")
    desk.clock.advance(48 * 3600)
    assert await desk.approvals.expire() == 0
    assert await released(desk) == []
    assert await desk.events() == ["requested", "executed"]
