"""An answer follows Switchboard's record of the request, whatever the butler that answers says of it."""

from __future__ import annotations

from typing import Any

import pytest

from butlers.ids import Uuid7Factory
from tests.scenarios.messenger_door import call, lineage, mails, request_mailed, request_said, rows, sends, stored, wish
from tests.scenarios.shared_system import running, system
from tests.system import OWNER_CHAT_ID, RunningSystem

STRANGER = 7_001  # never wrote to anybody

pytestmark = pytest.mark.asyncio(loop_scope="module")
__all__ = ["running", "system"]  # fixtures


async def dispatch(running: RunningSystem, notify: dict[str, Any]) -> dict[str, Any]:
    """Ask Switchboard for a delivery, as the butler that the message is from."""
    return await call(running, "switchboard", "notify.dispatch", notify, caller=notify["origin_butler"])


async def refused(running: RunningSystem, notify: dict[str, Any]) -> dict[str, Any]:
    """The error; nothing may have been stored at Messenger or left for any provider."""
    before, sent, people = await stored(running), await sends(running), await seen_by_all(running)
    response = await dispatch(running, notify)
    assert (response["status"], response.get("delivery")) == ("error", None), response
    assert (await stored(running), await sends(running), await seen_by_all(running)) == (before, sent, people)
    error: dict[str, Any] = response["error"]
    assert (error["class"], error["retryable"]) == ("validation_error", False)
    return error


async def seen_by_all(running: RunningSystem) -> list[list[dict[str, Any]]]:
    return [await mails(running), *[await running.transcript(chat) for chat in (OWNER_CHAT_ID, STRANGER)]]


async def recorded(running: RunningSystem, text: str) -> dict[str, Any]:
    """The owner writes and is answered: the lineage that is on record, as the butler was given it."""
    request_id, _ = await request_said(running, text)
    await running.finished(request_id)
    query = "select request_context from switchboard.message_inbox where request_id = $1::text::uuid"
    context: dict[str, Any] = await running.database.fetchval(query, request_id)
    names = ("request_id", "received_at", "source_channel", "source_endpoint_identity", "source_sender_identity")
    return {name: context[name] for name in (*names, "source_thread_identity")}


def reply(context: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return wish("an answer", **({"intent": "reply", "request_context": context} | fields))


@pytest.mark.scenario("M1-023")
async def test_a_request_that_is_not_on_record_cannot_be_answered(running: RunningSystem) -> None:
    there = {"source_sender_identity": str(STRANGER), "source_thread_identity": str(STRANGER)}
    for context in (lineage(running), lineage(running, **there)):
        error = await refused(running, reply(context))
        assert "no such request" in error["message"]
        assert [wrong["field"] for wrong in error["fields"]] == ["request_context.request_id"]
    reaction = reply(lineage(running, **there), intent="react", emoji="👀")
    assert "no such request" in (await refused(running, reaction))["message"]


@pytest.mark.scenario("M1-023")
@pytest.mark.parametrize(
    "forged",
    [
        {"source_sender_identity": str(STRANGER)},
        {"source_thread_identity": str(STRANGER)},
        {"source_sender_identity": str(STRANGER), "source_thread_identity": str(STRANGER)},
        {"source_channel": "email", "source_sender_identity": "stranger@elsewhere.example"},
        {"source_endpoint_identity": "another bot"},
    ],
)
async def test_a_request_of_somebody_else_cannot_be_answered_as_ones_own(
    running: RunningSystem, forged: dict[str, str]
) -> None:
    context = await recorded(running, f"I weigh 80 kg {sorted(forged)}")
    assert "no such request" in (await refused(running, reply(context | forged)))["message"]
    reaction = reply(context | forged, intent="react", emoji="👀")
    assert "no such request" in (await refused(running, reaction))["message"]
    assert await running.transcript(STRANGER) == []


@pytest.mark.scenario("M1-023")
async def test_what_is_on_record_is_answered_and_only_there(running: RunningSystem) -> None:
    context = await recorded(running, "I weigh 81 kg")
    error = await refused(running, reply(context, recipient=str(STRANGER)))
    assert error["message"].startswith("delivery.recipient")
    error = await refused(running, reply(context, channel="email"))
    assert error["message"].startswith("delivery.channel")

    told = await dispatch(running, reply(context, recipient=f" {OWNER_CHAT_ID} "))
    assert told["delivery"]["status"] == "delivered"
    assert (await running.answers())[-1] == "[health] an answer"
    row = (await rows(running))[-1]
    assert (str(row["request_id"]), row["target_identity"]) == (context["request_id"], str(OWNER_CHAT_ID))


async def test_a_mail_is_answered_to_whoever_wrote_it(running: RunningSystem) -> None:
    asked = "ann@far.example"
    name = f"<{Uuid7Factory(running.clock)()}@far.example>"
    request_id = await request_mailed(running, "where is my bill?", sender=asked, headers={"Message-ID": name})
    await running.finished(request_id)
    context = lineage(
        running,
        request_id=request_id,
        source_channel="email",
        source_endpoint_identity="butler@butlers.example",
        source_sender_identity="stranger@elsewhere.example",
        source_thread_identity="thread",
    )
    assert "no such request" in (await refused(running, reply(context, channel="email")))["message"]
    told = await dispatch(running, reply(context | {"source_sender_identity": asked}, channel="email"))
    assert told["delivery"]["status"] == "delivered"
    assert (await rows(running))[-1]["target_identity"] == asked
    (mail,) = [mail for mail in await mails(running) if mail["text"] == "an answer"]
    assert [recipient["address"] for recipient in mail["recipients"]] == [asked]


async def test_a_message_that_answers_nothing_needs_no_request(running: RunningSystem) -> None:
    """It goes to the owner, and the lineage that it claims decides nothing."""
    there = {"source_sender_identity": str(STRANGER), "source_thread_identity": str(STRANGER)}
    told = await dispatch(running, wish("unasked", request_context=lineage(running, **there)))
    assert told["delivery"]["status"] == "delivered"
    assert (await running.answers(), await running.transcript(STRANGER)) == (["[health] unasked"], [])
