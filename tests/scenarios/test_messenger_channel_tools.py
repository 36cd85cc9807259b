"""The channel tools: whatever reaches a person has one owner, and every call goes the way of all deliveries."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from butlers.ids import Uuid7Factory
from butlers.operations.operation import Role
from butlers.storage.embedded import EmbeddedPostgres
from tests.scenarios.messenger_door import attempts, call, mails, request_mailed, request_said, rows, sends, stored
from tests.scenarios.shared_system import running, system
from tests.system import OWNER_CHAT_ID, RunningSystem, running_system

pytestmark = pytest.mark.asyncio(loop_scope="module")
__all__ = ["running", "system"]  # fixtures

FRIEND = "friend@elsewhere.example"
TOOLS = {"telegram_send_message", "telegram_reply_to_message", "email_send_message", "email_reply_to_thread"}
_REACHES_PEOPLE = re.compile(r"(user_|bot_)?(telegram|email|sms|chat)_(send|reply|react)\w*")


async def tool(running: RunningSystem, name: str, caller: str = "operator", **arguments: Any) -> dict[str, Any]:
    return await call(running, "messenger", name, arguments, caller=caller)


def invented(running: RunningSystem) -> str:
    """The id of a request that nobody made."""
    return str(Uuid7Factory(running.clock)())


async def names_at(running: RunningSystem, butler: str, path: str) -> set[str]:
    async with running.mcp(butler, path=path) as client:
        return {tool.name for tool in (await client.list_tools()).tools}


@pytest.mark.scenario("M0-003", "M1-003")
async def test_channel_tools_are_on_messenger_and_nowhere_else(running: RunningSystem) -> None:
    for path in ("/mcp", "/mcp/llm"):
        for butler in running.roster:
            reaching = {name for name in await names_at(running, butler, path) if _REACHES_PEOPLE.fullmatch(name)}
            assert reaching == (TOOLS if butler == "messenger" else set()), (butler, path)
    registered = (await call(running, "switchboard", "list_butlers", {}))["butlers"]
    owners = {b["name"] for b in registered if TOOLS & set(b["capabilities"])}
    assert owners == {"messenger"}


@pytest.mark.scenario("M0-003", "M1-003")
async def test_telegram_send_message(running: RunningSystem) -> None:
    answer = await tool(running, "telegram_send_message", message="dinner is ready", recipient="61")
    assert (answer["schema_version"], answer["status"]) == ("notify_response.v1", "ok")
    [row] = await rows(running)
    assert (answer["delivery"]["delivery_id"], answer["delivery"]["status"]) == (str(row["id"]), "delivered")
    assert (row["origin_butler"], row["channel"], row["intent"]) == ("messenger", "telegram", "send")
    assert (row["identity_scope"], row["target_identity"]) == ("bot", "61")
    assert row["envelope"]["schema_version"] == "notify.v1"
    assert [attempt["outcome"] for attempt in await attempts(running, row["id"])] == ["sent"]
    assert await running.answers(61) == ["[messenger] dinner is ready"]
    # Nobody named: the owner.
    await tool(running, "telegram_send_message", message="good night")
    assert await running.answers() == ["[messenger] good night"]


@pytest.mark.scenario("M0-003", "M1-003")
async def test_telegram_reply_to_message(running: RunningSystem) -> None:
    request_id, asked = await request_said(running, "when is dinner?")
    await running.finished(request_id)  # what the butlers make of it is not the matter here
    before = len(await running.answers())
    answer = await tool(running, "telegram_reply_to_message", message="at eight", request_id=request_id)
    assert answer["request_context"]["request_id"] == request_id
    row = (await rows(running))[-1]
    assert (str(row["request_id"]), row["intent"], row["target_identity"]) == (
        request_id,
        "reply",
        str(OWNER_CHAT_ID),
    )
    assert (await running.answers())[before:] == ["[messenger] at eight"]
    line = (await running.transcript())[-1]
    assert line["reply_to"] == asked["message_id"]


@pytest.mark.scenario("M0-003", "M1-003")
async def test_email_send_message(running: RunningSystem) -> None:
    answer = await tool(running, "email_send_message", message="Bring wine.", subject="Tonight", recipient=FRIEND)
    assert answer["delivery"]["status"] == "delivered"
    [mail] = await mails(running)
    [row] = await rows(running)
    assert (row["channel"], row["intent"], row["target_identity"]) == ("email", "send", FRIEND)
    assert (mail["subject"], mail["recipients"][0]["address"]) == ("[messenger] Tonight", FRIEND)
    assert answer["delivery"]["provider_delivery_id"] == mail["message_id"]


@pytest.mark.scenario("M0-003", "M1-003")
async def test_email_reply_to_thread(running: RunningSystem) -> None:
    headers = {
        "Message-ID": "<second@elsewhere.example>",
        "References": "<first@elsewhere.example>",
        "Subject": "Dinner?",
        "From": FRIEND,
    }
    request_id = await request_mailed(running, "When is dinner?", sender=FRIEND, headers=headers)
    await running.finished(request_id)
    answer = await tool(running, "email_reply_to_thread", message="At eight.", request_id=request_id)
    assert answer["delivery"]["status"] == "delivered"
    [mail] = [mail for mail in await mails(running) if "[messenger]" in mail["subject"]]
    [row] = [row for row in await rows(running) if row["origin_butler"] == "messenger"]
    assert (row["intent"], row["target_identity"], str(row["request_id"])) == ("reply", FRIEND, request_id)
    assert (mail["subject"], mail["in_reply_to"]) == ("Re: [messenger] Dinner?", "<second@elsewhere.example>")
    assert mail["references"].split() == ["<first@elsewhere.example>", "<second@elsewhere.example>"]


@pytest.mark.scenario("M0-003", "M1-003")
async def test_no_other_butler_may_call_them(running: RunningSystem) -> None:
    before = await stored(running)
    whole = {
        "telegram_send_message": {"message": "x", "recipient": "62"},
        "telegram_reply_to_message": {"message": "x", "request_id": invented(running)},
        "email_send_message": {"message": "x", "recipient": FRIEND},
        "email_reply_to_thread": {"message": "x", "request_id": invented(running)},
    }
    assert whole.keys() == TOOLS
    running.issue_token("phone", Role.CLIENT)
    for name, arguments in whole.items():
        for caller in ("health", "general", "switchboard", "phone"):
            refused = await tool(running, name, caller=caller, **arguments)
            assert (refused["error"]["class"], refused["error"]["retryable"]) == ("validation_error", False)
            assert f"{caller}" in refused["error"]["message"]
        assert "error" in await call(running, "messenger", name, arguments, caller=None)
        # Not by another door either: no other butler has a tool of that name.
        elsewhere = await call(running, "health", name, arguments, caller="health")
        assert "no such tool" in elsewhere["error"]["message"]
    assert (await stored(running), await sends(running), await mails(running)) == (before, 0, [])
    # Messenger's own sessions may.
    answer = await tool(running, "telegram_send_message", caller="messenger", message="mine", recipient="62")
    assert answer["delivery"]["status"] == "delivered"
    assert await running.answers(62) == ["[messenger] mine"]


async def test_a_repeat_under_one_key_is_the_same_delivery(running: RunningSystem) -> None:
    given = {"message": "once", "recipient": "63", "idempotency_key": "dinner-2026-01-01"}
    first = await tool(running, "telegram_send_message", **given)
    again = await tool(running, "telegram_send_message", **given)
    assert again["delivery"]["delivery_id"] == first["delivery"]["delivery_id"]
    assert (first["delivery"]["deduplicated"], again["delivery"]["deduplicated"]) == (False, True)
    assert await running.answers(63) == ["[messenger] once"]
    # The key is Messenger's own: a butler's equal key is another one.
    mail = await tool(running, "email_send_message", message="m", recipient=FRIEND, subject="s", idempotency_key="k")
    twice = await tool(running, "email_send_message", message="m", recipient=FRIEND, subject="s", idempotency_key="k")
    assert (mail["delivery"]["delivery_id"], len(await mails(running))) == (twice["delivery"]["delivery_id"], 1)


async def test_bad_arguments_name_the_field_and_send_nothing(running: RunningSystem) -> None:
    before = await stored(running)
    for name, arguments, field in (
        ("telegram_send_message", {}, "message"),
        ("telegram_send_message", {"message": "x", "recipient": 7}, "recipient"),
        ("telegram_send_message", {"message": "x", "identity_scope": "owner"}, "identity_scope"),
        ("telegram_reply_to_message", {"message": "x", "request_id": invented(running)}, "request"),
        ("telegram_reply_to_message", {"message": "x", "source_thread_identity": "5"}, "source_thread_identity"),
        ("email_reply_to_thread", {"message": "x"}, "request_id"),
        ("email_send_message", {"message": "x", "recipient": FRIEND, "cc": FRIEND}, "cc"),
    ):
        refused = await tool(running, name, **arguments)
        assert refused["error"]["class"] == "validation_error", refused
        assert field in str(refused["error"]), refused
    assert (await stored(running), await sends(running), await mails(running)) == (before, 0, [])


async def test_they_draw_from_the_same_budgets(tmp_path: Path, postgres_server: EmbeddedPostgres) -> None:
    async with running_system(tmp_path, postgres_server, shipped_limits=True) as running:
        for number in range(10):
            await tool(running, "telegram_send_message", message=f"message {number}", recipient="64")
        refused = await tool(running, "telegram_send_message", message="one too many", recipient="64")
        assert (refused["error"]["class"], refused["error"]["retryable"]) == ("overload_rejected", True)
        assert refused["error"]["retry_after_seconds"] > 0
        assert (len(await rows(running)), len(await running.answers(64))) == (10, 10)
