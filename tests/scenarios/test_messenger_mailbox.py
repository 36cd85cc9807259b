"""The mailbox at Messenger's door: looking through it, reading it, handing it on, and bounces that become receipts."""

from __future__ import annotations

from typing import Any

import pytest

from butlers.butler.identity import OPERATOR
from tests.scenarios.messenger_door import call, deliver, lineage, mail_fault, mails, refusal, wish
from tests.scenarios.shared_system import running, system
from tests.system import RunningSystem

BUTLER_MAIL, OWNER_MAIL = "butler@butlers.example", "owner@butlers.example"

pytestmark = pytest.mark.asyncio(loop_scope="module")
__all__ = ["running", "system"]  # fixtures


async def tool(running: RunningSystem, name: str, *, caller: str = OPERATOR, **arguments: Any) -> dict[str, Any]:
    return await call(running, "messenger", name, arguments, caller=caller)


async def arrives(running: RunningSystem, text: str, **more: Any) -> None:
    """A person writes to the butler."""
    body = {"from": OWNER_MAIL, "to": BUTLER_MAIL, "subject": "The bill", "text": text} | more
    response = await running.http.post(f"{running.mail.control_url}/messages", json=body)
    assert response.status_code == 201, response.text


async def reported(running: RunningSystem, number: int, **report: Any) -> None:
    """A mail server reports on a mail that it had accepted."""
    response = await running.http.post(f"{running.mail.control_url}/accepted/{number}/report", json=report)
    assert response.status_code == 201, response.text


async def receipts(running: RunningSystem, delivery_id: str) -> list[str]:
    rows = await running.database.fetch(
        "select receipt_type from messenger.delivery_receipts where delivery_id = $1::text::uuid order by receipt_type",
        delivery_id,
    )
    return [row["receipt_type"] for row in rows]


@pytest.mark.scenario("M1-004")
async def test_the_mailbox_tools_work_against_a_mailbox(running: RunningSystem) -> None:
    name = "<the-bill@far.example>"
    await arrives(running, "I paid the electricity bill", message_id=name, headers={"References": "<root@far.example>"})
    page = await tool(running, "email_search_inbox", sender=OWNER_MAIL, subject="bill", unseen=True)
    (found,) = page["messages"]
    assert (found["message_id"], found["subject"], page["next_cursor"]) == (name, "The bill", None)
    letter = await tool(running, "email_read_message", uid=found["uid"])
    assert (letter["text"], letter["attachments"]) == ("I paid the electricity bill", [])
    counts = await tool(running, "email_check_and_route_inbox")
    assert {name: number for name, number in counts.items() if number} == {"routed": 1}
    row = await running.database.fetchrow(
        "select request_id, request_context, normalized_text from switchboard.message_inbox"
        " where request_context ->> 'source_channel' = 'email'"
    )
    assert row is not None
    assert row["normalized_text"] == "The bill\n\nI paid the electricity bill"
    context = row["request_context"]
    assert (context["source_endpoint_identity"], context["source_sender_identity"]) == (BUTLER_MAIL, OWNER_MAIL)
    assert context["source_thread_identity"] == "<root@far.example>"
    await running.finished(str(row["request_id"]))
    (answer, *_more) = await running.until(lambda: _answers(running))
    assert (answer["in_reply_to"], answer["references"].split()) == (name, ["<root@far.example>", name])
    assert (await tool(running, "email_check_and_route_inbox"))["routed"] == 0


async def _answers(running: RunningSystem) -> list[dict[str, Any]]:
    return [mail for mail in await mails(running) if mail["in_reply_to"]]


async def test_a_bounce_becomes_a_receipt_and_the_address_is_left_alone(running: RunningSystem) -> None:
    gone = "gone@far.example"
    sent = await deliver(running, wish("hello", channel="email", recipient=gone))
    assert sent["delivery"]["status"] == "delivered"
    (mail,) = await mails(running)
    await reported(running, mail["number"], status="5.1.1")
    await tool(running, "email_check_and_route_inbox")

    async def bounced() -> bool:
        return "bounced" in await receipts(running, sent["delivery"]["delivery_id"])

    assert await running.until(bounced)  # by the tool, or by Messenger's own look before it
    error = await refusal(running, wish("again", channel="email", recipient=gone))
    assert "suppressed" in error["message"]
    assert len(await mails(running)) == 1


async def test_a_lost_answer_is_found_in_the_sent_folder(running: RunningSystem) -> None:
    """The mail had arrived: it is not sent a second time."""
    await mail_fault(running, phase="dot", kind="drop_after")
    answer = await deliver(running, wish("once", channel="email", request_context=lineage(running)))
    assert answer["delivery"]["status"] == "delivered"
    (mail,) = await mails(running)
    assert mail["message_id"] == answer["delivery"]["provider_delivery_id"]


async def test_other_butlers_may_not_read_the_mailbox(running: RunningSystem) -> None:
    for name in ("email_search_inbox", "email_read_message", "email_check_and_route_inbox"):
        answer = await tool(running, name, caller="health")
        assert (answer["status"], answer["error"]["class"]) == ("error", "validation_error"), name
        assert "may not call" in answer["error"]["message"]


async def test_bad_questions_are_refused_by_field(running: RunningSystem) -> None:
    for name, arguments, field in (
        ("email_read_message", {"uid": 4_000_000}, "uid"),
        ("email_search_inbox", {"limit": 1_000}, "limit"),
        ("email_search_inbox", {"cursor": "nonsense"}, "cursor"),
        ("email_search_inbox", {"query": "two\nlines"}, "query"),
    ):
        answer = await tool(running, name, **arguments)
        assert (answer["error"]["class"], answer["error"]["retryable"]) == ("validation_error", False)
        assert [wrong["field"] for wrong in answer["error"]["fields"]] == [field]


async def test_quarantined_mail_is_listed_and_tried_again_at_the_api(running: RunningSystem) -> None:
    await arrives(running, "What did I spend?", message_id="<later@far.example>")
    page = await tool(running, "email_search_inbox", subject="bill")
    uid = page["messages"][0]["uid"]
    await tool(running, "email_check_and_route_inbox")
    await running.database.execute(
        "insert into messenger.mail_attempts (mailbox, uidvalidity, uid, attempts, reason, size_bytes, quarantined_at,"
        " updated_at) select split_part(key, ':', 2) || ':' || split_part(key, ':', 3),"
        " (value ->> 'uidvalidity')::bigint, $1, 3,"
        " 'it took too long', 7, now(), now() from messenger.state where key like 'mailbox.route:%'",
        uid,
    )
    address = running.url(path="/api/mailbox/quarantine")
    (mail,) = (await running.http.get(address)).json()["mails"]
    assert (mail["uid"], mail["attempts"], mail["reason"]) == (uid, 3, "it took too long")
    assert (await running.http.post(f"{address}/{mail['mail']}/retry")).status_code == 403
    assert (await running.http.post(f"{address}/1-1/retry", headers=running.bearer())).status_code == 404
    retried = (await running.http.post(f"{address}/{mail['mail']}/retry", headers=running.bearer())).json()
    assert (retried["handled"], retried["duplicates"], retried["retried_by"]) == (True, 1, OPERATOR)
    assert (await running.http.get(address)).json()["mails"] == []
