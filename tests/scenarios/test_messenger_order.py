"""What was said first arrives first, in each conversation, whatever happens on the way (seed 001 section 10)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.scenarios.messenger_door import deliver, fault, lineage, mail_fault, mails, rows, wish
from tests.scenarios.messenger_time import (
    advance,
    all_have,
    as_time_passes,
    ended_attempts,
    later,
    running,
    system,
    tool,
    with_status,
)
from tests.system import RunningSystem

pytestmark = pytest.mark.asyncio(loop_scope="module")
__all__ = ["running", "system"]  # fixtures

CHAT, ELSEWHERE = 61, 62
FRIEND = "friend@elsewhere.example"
ONE, TWO, THREE = "[health] one", "[health] two", "[health] three"


async def said(running: RunningSystem, *messages: str, chat: int = CHAT, **fields: Any) -> None:
    for message in messages:
        await later(running, wish(message, recipient=str(chat), **fields))


async def everything_arrives(running: RunningSystem) -> None:
    await as_time_passes(running, lambda: all_have(running, "delivered"))


@pytest.mark.scenario("M1-039")
async def test_a_chat_keeps_its_order_through_retries(running: RunningSystem) -> None:
    await fault(running, "error_5xx", times=2, chat_id=CHAT)
    await said(running, "one")
    await running.until(lambda: with_status(running, "awaiting_retry"))
    # More urgent, and an answer: neither overtakes within its conversation.
    thread = {"source_sender_identity": str(CHAT), "source_thread_identity": str(CHAT)}
    await said(running, "two", priority="urgent")
    await said(running, "three", intent="reply", request_context=lineage(running, **thread))
    # Another conversation does not wait.
    assert (await deliver(running, wish("meanwhile", recipient=str(ELSEWHERE))))["delivery"]["status"] == "delivered"
    assert await running.answers(CHAT) == []
    await everything_arrives(running)
    assert await running.answers(CHAT) == [ONE, TWO, THREE]
    # The rows tell the same order, and which attempts it took.
    assert [row["attempts"] for row in await rows(running)] == [3, 1, 1, 1]


@pytest.mark.scenario("M1-039")
async def test_a_chat_keeps_its_order_through_a_429(running: RunningSystem) -> None:
    await fault(running, "delay", seconds=1, chat_id=CHAT)
    await fault(running, "too_many_requests", retry_after=20, chat_id=CHAT)
    await said(running, "one", "two", "three")
    advance(running, 1)
    await ended_attempts(running, 1)
    assert (await deliver(running, wish("meanwhile", recipient=str(ELSEWHERE))))["delivery"]["status"] == "delivered"
    advance(running, 19)
    assert await running.answers(CHAT) == []
    await everything_arrives(running)
    assert await running.answers(CHAT) == [ONE, TWO, THREE]


@pytest.mark.scenario("M1-039")
async def test_a_replay_comes_behind_what_has_arrived_and_before_what_comes_later(running: RunningSystem) -> None:
    await fault(running, "error_5xx", times=3, chat_id=CHAT)
    await said(running, "one")
    await as_time_passes(running, lambda: with_status(running, "dead_lettered"))
    assert (await deliver(running, wish("two", recipient=str(CHAT))))["delivery"]["status"] == "delivered"
    [letter] = (await tool(running, "dead_letter_list"))["dead_letters"]

    await fault(running, "error_5xx", chat_id=CHAT)  # the replay needs a second attempt
    replay = asyncio.create_task(tool(running, "dead_letter_replay", dead_letter_id=letter["id"]))
    await running.until(lambda: with_status(running, "pending"))
    await said(running, "three")
    await as_time_passes(running, lambda: with_status(running, "delivered", 3))
    assert (await replay)["replay_count"] == 1
    # What was confirmed stays where it stands: the replay does not slip in before it.
    assert await running.answers(CHAT) == [TWO, ONE, THREE]
    order = [row["message"] for row in await rows(running) if row["status"] == "delivered"]
    assert order == [TWO, ONE, THREE]


@pytest.mark.scenario("M1-039")
async def test_a_thread_of_mails_keeps_its_order_and_holds_up_no_other(running: RunningSystem) -> None:
    await mail_fault(running, phase="rcpt", kind="reply", code=451, text="4.7.1 greylisted")
    asked = lineage(
        running,
        source_channel="email",
        source_endpoint_identity="butlers@butlers.example",
        source_sender_identity=FRIEND,
        source_thread_identity="<thread-1@elsewhere.example>",
    )
    for text in ("one", "two"):
        await later(running, _mail(text, intent="reply", request_context=asked))
    await ended_attempts(running, 1)
    fresh = await deliver(running, _mail("a thread of its own", recipient=FRIEND))
    assert fresh["delivery"]["status"] == "delivered"
    assert [row["status"] for row in await rows(running)] == ["awaiting_retry", "pending", "delivered"]
    advance(running, 100)
    await everything_arrives(running)
    texts = [mail["text"].strip() for mail in await mails(running)]
    assert texts == ["a thread of its own", "one", "two"]


def _mail(text: str, **fields: Any) -> dict[str, Any]:
    return wish(text, channel="email", subject="s", **fields)
