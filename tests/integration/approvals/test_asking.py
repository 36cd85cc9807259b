"""May it happen? Rules, their uses, and what waits."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import asyncpg
import pytest

from butlers.butler.approvals import Allowed, GatedCall, MustWait
from butlers.errors import ValidationError
from tests.integration.approvals.conftest import SCHEMA, Desk


async def test_without_a_rule_it_waits_and_a_repeat_is_the_same_action(desk: Desk):
    first = await desk.waiting(key="k", to="ann")
    again = await desk.waiting(key="k", to="ann")
    assert (first.created, again.created, again.action_id) == (True, False, first.action_id)
    assert first.expires_at == desk.clock.now() + timedelta(hours=48)
    assert await desk.events() == ["requested"]


async def test_twenty_repeats_at_once_are_one_action(desk: Desk):
    await desk.crowd()
    answers = await asyncio.gather(*(desk.waiting(key="k") for _ in range(20)))
    assert len({answer.action_id for answer in answers}) == 1
    assert sum(answer.created for answer in answers) == 1


async def test_a_rule_lets_it_pass_and_is_counted(desk: Desk):
    rule = await desk.rule(constraints={"to": {"type": "exact", "value": "ann"}})
    assert await desk.ask(to="ann") == Allowed(rule_id=rule["id"])
    assert isinstance(await desk.ask(to="bob"), MustWait)
    assert (await desk.approvals.rules.show(rule["id"]))["use_count"] == 1
    assert await desk.events() == ["rule_created", "rule_used", "requested"]


async def test_a_rule_is_never_used_more_often_than_it_may_be(desk: Desk):
    rule = await desk.rule(max_uses=5)
    await desk.crowd()
    answers = await asyncio.gather(*(desk.ask(to=str(n)) for n in range(20)))
    assert sum(isinstance(answer, Allowed) for answer in answers) == 5
    assert (await desk.approvals.rules.show(rule["id"]))["use_count"] == 5
    assert (await desk.events()).count("rule_used") == 5


async def test_when_the_best_rule_is_used_up_meanwhile_the_next_best_allows(desk: Desk):
    await desk.rule(max_uses=5, constraints={"to": {"type": "exact", "value": "ann"}})
    other = await desk.rule(max_uses=10, constraints={"to": {"type": "pattern", "value": "a*"}})
    await desk.crowd()
    answers = await asyncio.gather(*(desk.ask(to="ann") for _ in range(20)))
    assert sum(isinstance(answer, Allowed) for answer in answers) == 15
    assert sum(answer == Allowed(rule_id=other["id"]) for answer in answers) == 10


async def test_what_waits_goes_on_waiting_when_a_rule_comes(desk: Desk):
    first = await desk.waiting(key="k")
    await desk.rule()
    again = await desk.ask(key="k")
    assert isinstance(again, MustWait)
    assert again.action_id == first.action_id


async def test_a_use_comes_and_goes_with_the_callers_transaction(desk: Desk):
    rule = await desk.rule(max_uses=1)
    with pytest.raises(RuntimeError, match="changed my mind"):
        async with desk.database.transaction() as connection:
            allowed = await desk.approvals.request(
                connection,
                GatedCall(
                    tool_name="send",
                    tool_args={},
                    summary="",
                    requested_by="general",
                    key="k",
                ),
                now=desk.clock.now(),
            )
            assert isinstance(allowed, Allowed)
            raise RuntimeError("changed my mind")
    assert await desk.ask() == Allowed(rule_id=rule["id"])


async def test_a_use_can_be_given_back(desk: Desk):
    rule = await desk.rule(max_uses=1)
    await desk.ask()
    async with desk.database.transaction() as connection:
        await desk.approvals.give_back(connection, rule["id"])
    assert await desk.ask() == Allowed(rule_id=rule["id"])
    assert await desk.events() == ["rule_created", "rule_used", "rule_use_returned", "rule_used"]


async def test_a_preview_says_the_same_and_leaves_nothing(desk: Desk):
    nobody = await desk.approvals.preview("send", {"to": "ann"})
    assert nobody == MustWait(action_id=None, expires_at=desk.clock.now() + timedelta(hours=48), created=False)
    rule = await desk.rule(max_uses=1)
    for _ in range(3):
        assert await desk.approvals.preview("send", {"to": "ann"}) == Allowed(rule_id=rule["id"])
    assert await desk.events() == ["rule_created"]
    assert await desk.ask(to="ann") == Allowed(rule_id=rule["id"])
    assert isinstance(await desk.approvals.preview("send", {"to": "ann"}), MustWait)


async def test_expired_and_revoked_rules_allow_nothing(desk: Desk):
    short = await desk.rule(expires_at=desk.clock.now() + timedelta(minutes=1))
    assert await desk.ask() == Allowed(rule_id=short["id"])
    desk.clock.advance(60)
    assert isinstance(await desk.ask(), MustWait)
    rule = await desk.rule()
    for _ in range(2):
        assert (await desk.approvals.rules.revoke(rule["id"], revoked_by="bob"))["active"] is False
    assert isinstance(await desk.ask(), MustWait)
    assert (await desk.events()).count("rule_revoked") == 1


async def test_no_rule_allows_what_is_parked(desk: Desk):
    await desk.rule()
    async with desk.database.transaction() as connection:
        parked = await desk.approvals.park(
            connection,
            GatedCall(
                tool_name="send",
                tool_args={"contact": "ann"},
                summary="no address",
                requested_by="general",
                key="k",
            ),
            now=desk.clock.now(),
        )
    assert parked.created
    assert parked.action_id is not None
    with pytest.raises(ValidationError, match="needs a person"):
        await desk.approvals.rules.create_from_action(parked.action_id, created_by="ann")


async def test_a_rule_made_from_an_action_allows_the_next_like_it(desk: Desk):
    waiting = await desk.waiting(to="ann", message="one")
    assert waiting.action_id is not None
    rule = await desk.approvals.rules.create_from_action(waiting.action_id, created_by="ann", max_uses=3)
    assert await desk.ask(to="ann", message="two") == Allowed(rule_id=rule["id"])
    assert isinstance(await desk.ask(to="bob", message="one"), MustWait)
    shown = await desk.approvals.actions.show(waiting.action_id)
    assert (shown["status"], shown["rule_id"]) == ("pending", rule["id"])


async def test_rules_for_what_is_not_gated_or_already_over_are_refused(desk: Desk):
    with pytest.raises(ValidationError, match="is not gated here"):
        await desk.rule("sing")
    with pytest.raises(ValidationError, match="lies in the past"):
        await desk.rule(expires_at=desk.clock.now())
    assert await desk.events() == []


async def test_pages_are_newest_first_and_complete(desk: Desk):
    made = [(await desk.waiting()).action_id for _ in range(7)]
    seen, cursor = [], None
    while True:
        page = await desk.approvals.actions.list(limit=3, cursor=cursor)
        seen += [action["id"] for action in page["actions"]]
        if (cursor := page["next_cursor"]) is None:
            break
    assert seen == made[::-1]
    rules = [(await desk.rule())["id"] for _ in range(4)]
    first = await desk.approvals.rules.list(limit=2)
    second = await desk.approvals.rules.list(limit=2, cursor=first["next_cursor"])
    assert [rule["id"] for rule in first["rules"] + second["rules"]] == rules[::-1]
    assert second["next_cursor"] is None


async def test_counts_say_what_waits(desk: Desk):
    assert (await desk.approvals.actions.counts())["pending"] == 0
    first = await desk.waiting()
    desk.clock.advance(10)
    await desk.waiting(tool_name="pay")
    assert first.action_id is not None
    await desk.approvals.decide((await desk.waiting()).action_id, approve=False, decided_by="ann")  # type: ignore[arg-type]
    assert await desk.approvals.actions.counts() == {
        "pending": 2,
        "by_tool": {"send": 1, "pay": 1},
        "by_status": {"pending": 2, "rejected": 1},
        "oldest_requested_at": desk.clock.now() - timedelta(seconds=10),
        "next_expires_at": first.expires_at,
    }


@pytest.mark.parametrize(
    "statement",
    ["update {}.approval_events set actor = 'me'", "delete from {}.approval_events", "truncate {}.approval_events"],
)
async def test_the_record_only_grows(desk: Desk, statement: str):
    await desk.waiting()
    with pytest.raises(asyncpg.RestrictViolationError, match="only grows"):
        await desk.database.execute(statement.format(SCHEMA))
    assert await desk.events() == ["requested"]
