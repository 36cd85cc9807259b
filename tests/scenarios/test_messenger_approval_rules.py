"""Rules that let some of what is gated pass without asking: what they match, which goes first, and how often."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from butlers.storage.embedded import EmbeddedPostgres
from tests.scenarios.gated_system import asked, row_of, running, system, tool
from tests.scenarios.messenger_door import call, changed_roster, deliver, wish
from tests.system import RunningSystem, running_system

pytestmark = pytest.mark.asyncio(loop_scope="module")
__all__ = ["running", "system"]  # fixtures


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


OWNERS_TOKEN = "888000002:simulated-owner-not-a-secret"
SCOPES = (
    (r"^\[modules\.telegram\.user\]\nenabled = false", "[modules.telegram.user]\nenabled = true"),
    (r"^\[modules\.calendar\]", '[modules.approvals]\ngated_tools = ["telegram_send_message"]\n\n[modules.calendar]'),
)


async def test_no_rule_lets_anybody_speak_as_the_owner_unless_it_says_so(
    tmp_path: Path, postgres_server: EmbeddedPostgres
) -> None:
    async def send(message: str, **more: Any) -> dict[str, Any]:
        arguments = {"message": message, "recipient": "92"} | more
        sent = await call(scoped, "messenger", "telegram_send_message", arguments, caller="messenger")
        return dict(sent["delivery"])

    async def shown(delivery: dict[str, Any]) -> dict[str, Any]:
        return dict((await tool(scoped, "show_pending_action", action_id=delivery["action_id"]))["action"])

    roster, given = changed_roster(tmp_path, "messenger", *SCOPES), {"USER_TELEGRAM_TOKEN": OWNERS_TOKEN}
    async with running_system(tmp_path, postgres_server, roster_dir=roster, environment=given) as scoped:
        scoped.telegram.world.add_bot(OWNERS_TOKEN, "owner")
        # Whoever decides sees which account would speak.
        as_bot = await shown(held := await send("as the bot"))
        as_user = await shown(owners := await send("as you", identity_scope="user"))
        assert (as_bot["tool_args"]["identity_scope"], as_user["tool_args"]["identity_scope"]) == ("bot", "user")
        assert as_bot["summary"].endswith("from the bot's account")
        assert as_user["summary"].endswith("from your own account, in your name")

        rules = [
            (await tool(scoped, "create_rule_from_action", action_id=held["action_id"]))["rule"],
            (await tool(scoped, "create_approval_rule", tool_name="telegram_send_message"))["rule"],
            (
                await tool(
                    scoped,
                    "create_approval_rule",
                    tool_name="telegram_send_message",
                    arg_constraints={"recipient": {"type": "exact", "value": "92"}},
                )
            )["rule"],
        ]
        assert rules[0]["arg_constraints"]["identity_scope"] == {"type": "exact", "value": "bot"}
        assert (await send("the bot again"))["status"] == "delivered"
        assert (await send("you again", identity_scope="user"))["status"] == "pending_approval"
        transcript = await scoped.control("GET", "/chats/92/transcript?bot=888000002")
        assert transcript["messages"] == []

        # A rule made from what the owner's account would say allows that, and only that.
        for rule in rules:
            await tool(scoped, "revoke_approval_rule", rule_id=rule["id"])
        await tool(scoped, "create_rule_from_action", action_id=owners["action_id"])
        assert (await send("and again", identity_scope="user"))["status"] == "delivered"
        assert (await send("and the bot"))["status"] == "pending_approval"
