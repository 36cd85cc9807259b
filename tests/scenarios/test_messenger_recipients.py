"""Who may be written to: the lists of the roster, what providers said, and what people decide, before any call."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from butlers.storage.embedded import EmbeddedPostgres
from tests.scenarios.messenger_door import call, changed_roster, deliver, lineage, mails, refusal, rows, sends, wish
from tests.scenarios.shared_system import running, system
from tests.system import RunningSystem, running_system

pytestmark = pytest.mark.asyncio(loop_scope="module")
__all__ = ["running", "system"]  # fixtures


async def tool(running: RunningSystem, name: str, caller: str = "operator", **arguments: Any) -> dict[str, Any]:
    return await call(running, "messenger", name, arguments, caller=caller)


def lists(**of: list[str]) -> tuple[str, str]:
    """A change that writes the lists into the roster."""
    lines = [f"{name} = {patterns!r}".replace("'", '"') for name, patterns in of.items()]
    section = "\n".join(["[delivery.recipients]", *lines])
    return r"^\[delivery\.breaker\]", f"{section}\n\n[delivery.breaker]"


async def blocked(running: RunningSystem, chat: int) -> str:
    """Somebody blocks the bot, and the next message finds out."""
    await running.control("POST", f"/users/{chat}/block")
    answer = await deliver(running, wish("unwanted", recipient=str(chat)))
    assert answer["delivery"]["status"] == "failed"
    identity: str = answer["delivery"]["delivery_id"]
    return identity


@pytest.mark.scenario("M1-050")
async def test_the_deny_list_is_asked_before_anything_else(tmp_path: Path, postgres_server: EmbeddedPostgres) -> None:
    deny = ["telegram:66*", "email:*@rival.example"]
    roster = changed_roster(tmp_path, "messenger", lists(deny=deny))
    async with running_system(tmp_path, postgres_server, roster_dir=roster) as running:
        for fields in (
            {"recipient": "661"},
            {"recipient": " 66 "},
            {"recipient": "Boss@Rival.Example", "channel": "email", "subject": "s"},
            {"intent": "reply", "request_context": lineage(running, source_thread_identity="662")},
        ):
            error = await refusal(running, wish("hello", **fields))
            assert "deny list" in error["message"]
        refused = await tool(running, "telegram_send_message", message="by the other door", recipient="661")
        assert refused["error"]["class"] == "validation_error"
        assert (await sends(running), await mails(running), await rows(running)) == (0, [], [])
        preview = await tool(running, "messenger_dry_run", notify_request=wish("hello", recipient="661"))
        assert (preview["valid"], preview["outcome"]) == (False, "invalid")
        # Everybody else is reached.
        assert (await deliver(running, wish("hello", recipient="67")))["status"] == "ok"
        assert await running.answers(67) == ["[health] hello"]


@pytest.mark.scenario("M1-050")
async def test_an_allow_list_admits_whom_it_names_and_deny_wins(
    tmp_path: Path, postgres_server: EmbeddedPostgres
) -> None:
    change = lists(allow=["telegram:1*", "email:*@friends.example"], deny=["telegram:13"])
    roster = changed_roster(tmp_path, "messenger", change)
    async with running_system(tmp_path, postgres_server, roster_dir=roster) as running:
        for fields, words in (
            ({"recipient": "21"}, "not on the allow list"),
            ({"recipient": "13"}, "deny list"),
            ({"recipient": "friend@elsewhere.example", "channel": "email", "subject": "s"}, "not on the allow list"),
        ):
            assert words in (await refusal(running, wish("hello", **fields)))["message"]
        assert (await sends(running), await mails(running)) == (0, [])
        for fields in ({"recipient": "12"}, {"recipient": "ann@friends.example", "channel": "email", "subject": "s"}):
            assert (await deliver(running, wish("hello", **fields)))["status"] == "ok"
        assert (await running.answers(12), len(await mails(running))) == (["[health] hello"], 1)


@pytest.mark.scenario("M1-050")
async def test_whoever_blocked_us_is_not_asked_again(running: RunningSystem) -> None:
    first = await blocked(running, 71)
    [row] = (await tool(running, "messenger_recipient_list"))["recipients"]
    assert (row["channel"], row["target"], row["rule"], row["decided_by"]) == (
        "telegram",
        "71",
        "suppressed",
        "provider",
    )
    asked = await sends(running)
    error = await refusal(running, wish("hello again", recipient="71"))
    assert "suppressed" in error["message"]
    assert await sends(running) == asked  # nothing reached the provider
    # A repeat of what failed gets its own answer, not the new rule's.
    [failed] = await rows(running)
    assert (str(failed["id"]), failed["status"]) == (first, "failed")
    # Others are not concerned, and the address means nothing on another channel.
    assert (await deliver(running, wish("hello", recipient="72")))["status"] == "ok"


@pytest.mark.scenario("M1-050")
async def test_a_person_takes_the_suppression_back(running: RunningSystem) -> None:
    await blocked(running, 73)
    await running.control("POST", "/users/73/unblock")
    await refusal(running, wish("are you back?", recipient="73"))
    target = {"channel": "telegram", "target": "73"}
    for caller in ("health", "messenger"):
        refused = await tool(running, "messenger_recipient_release", caller=caller, **target)
        assert "may not call" in refused["error"]["message"]
    released = await tool(running, "messenger_recipient_release", **target)
    assert (released["released_by"], released["released"]["rule"]) == ("operator", "suppressed")
    assert (await deliver(running, wish("are you back?", recipient="73")))["status"] == "ok"
    assert await running.answers(73) == ["[health] are you back?"]
    # And puts one in place, with a reason that whoever is refused can read.
    await tool(running, "messenger_recipient_suppress", reason="asked us to stop", **target)
    assert "asked us to stop" in (await refusal(running, wish("still there?", recipient="73")))["message"]
    assert await running.answers(73) == ["[health] are you back?"]


@pytest.mark.scenario("M1-050")
async def test_whoever_writes_again_is_answered(running: RunningSystem) -> None:
    await blocked(running, 74)
    await running.control("POST", "/users/74/unblock")
    now = running.clock.now()
    conversation = {"source_sender_identity": "74", "source_thread_identity": "74"}
    old = lineage(running, received_at=(now - timedelta(hours=1)).isoformat(), **conversation)
    await refusal(running, wish("to what you said before", intent="reply", request_context=old))
    new = lineage(running, received_at=(now + timedelta(seconds=1)).isoformat(), **conversation)
    answer = await deliver(running, wish("to what you say now", intent="reply", request_context=new))
    assert answer["delivery"]["status"] == "delivered"
    assert await running.answers(74) == ["[health] to what you say now"]
    # Only an answer: unasked messages still need a person's word.
    await refusal(running, wish("by the way", recipient="74"))


@pytest.mark.scenario("M1-050")
async def test_a_mailbox_that_does_not_exist_is_remembered(running: RunningSystem) -> None:
    gone = "gone@elsewhere.example"
    response = await running.http.post(
        f"{running.mail.control_url}/faults",
        json={"server": "smtp", "phase": "rcpt", "kind": "reply", "code": 550, "text": "5.1.1 no such user"},
    )
    assert response.status_code == 201, response.text
    answer = await deliver(running, wish("hello", channel="email", recipient=gone, subject="s"))
    assert answer["delivery"]["status"] == "failed"
    error = await refusal(running, wish("hello again", channel="email", recipient=gone, subject="s"))
    assert "suppressed" in error["message"]
    assert await mails(running) == []
