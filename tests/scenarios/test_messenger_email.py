"""Email through a real SMTP conversation: identity, refusals and lost answers."""

from __future__ import annotations

from typing import Any

import pytest

from tests.scenarios.messenger_door import (
    attempts,
    deliver,
    execute,
    forget,
    lineage,
    mail_fault,
    mails,
    refusal,
    route,
    rows,
    stored,
    wish,
)
from tests.scenarios.shared_system import running, system
from tests.system import RunningSystem

OWNER_MAIL = "owner@butlers.example"

pytestmark = pytest.mark.asyncio(loop_scope="module")
__all__ = ["running", "system"]  # fixtures


async def raw_of(running: RunningSystem, mail: dict[str, Any]) -> bytes:
    return (await running.http.get(f"{running.mail.control_url}/accepted/{mail['number']}/raw")).content


async def test_a_mail_says_what_it_is_and_who_it_is_from(running: RunningSystem) -> None:
    answer = await deliver(running, wish("line one\nline two\n.\n. dots", channel="email", subject="Größe"))
    (mail,) = await mails(running)
    assert (mail["from"], mail["subject"]) == ("butler@butlers.example", "[health] Größe")
    assert mail["text"] == "line one\nline two\n.\n. dots"
    assert mail["message_id"] == answer["delivery"]["provider_delivery_id"]
    assert b"Auto-Submitted: auto-generated\r\n" in await raw_of(running, mail)


async def test_greylisting_is_waited_out_with_the_same_message_id(running: RunningSystem) -> None:
    for phase in ("rcpt", "dot"):
        await mail_fault(running, phase=phase, kind="reply", code=451)
        answer = await deliver(running, wish(phase, channel="email", request_context=lineage(running)))
        assert answer["delivery"]["status"] == "delivered"
        first, second = await attempts(running, answer["delivery"]["delivery_id"])
        assert (first["outcome"], first["certainty"], first["retryable"]) == ("rejected", "not_sent", True)
        assert (first["error_class"], second["certainty"]) == ("target_unavailable", "sent")
    accepted = await mails(running)
    assert [mail["text"] for mail in accepted] == ["rcpt", "dot"]
    receipts = await running.database.fetch("select provider_delivery_id from messenger.delivery_receipts")
    assert {row["provider_delivery_id"] for row in receipts} == {mail["message_id"] for mail in accepted}


async def test_the_message_id_follows_from_the_wish(running: RunningSystem) -> None:
    """The same wish, made to a system that remembers nothing of it, is the same mail to a mailbox."""
    seen = []
    for _ in range(2):
        await forget(running)
        await deliver(running, wish("once", channel="email", idempotency_key="the first of May"))
        await deliver(running, wish("once", channel="email", idempotency_key="the second of May"))
        seen.append([mail["message_id"] for mail in await mails(running)])
    assert seen[0] == seen[1]
    assert len(set(seen[0])) == 2


async def test_a_permanent_refusal_is_final(running: RunningSystem) -> None:
    for phase, code, text in (("rcpt", 550, "5.7.1 policy"), ("mail", 553, "5.1.8 you"), ("dot", 554, "5.6.0 content")):
        await mail_fault(running, phase=phase, kind="reply", code=code, text=text)
        answer = await deliver(running, wish(phase, channel="email"))
        assert answer["delivery"]["status"] == "failed"
        assert (answer["error"]["class"], answer["error"]["retryable"]) == ("validation_error", False)
        (attempt,) = await attempts(running, answer["delivery"]["delivery_id"])
        assert (attempt["outcome"], attempt["certainty"]) == ("rejected", "not_sent")
        assert attempt["provider_response"] == {"phase": phase, "code": code, "enhanced": text.split()[0]}
    assert await mails(running) == []
    assert await running.database.fetch("select * from messenger.recipient_rules") == []


async def test_a_recipient_that_is_no_more_is_not_written_to_again(running: RunningSystem) -> None:
    gone, other = "gone@far.example", "here@far.example"
    await mail_fault(running, phase="rcpt", kind="reply", code=550, text="5.1.1 no such user", recipient=gone)
    answer = await deliver(running, wish("first", channel="email", recipient=gone))
    assert (answer["delivery"]["status"], answer["error"]["class"]) == ("failed", "validation_error")
    (rule,) = await running.database.fetch("select target, rule, decided_by from messenger.recipient_rules")
    assert tuple(rule) == (gone, "suppressed", "provider")
    error = await refusal(running, wish("second", channel="email", recipient=gone))
    assert "suppressed" in error["message"]
    await deliver(running, wish("third", channel="email", recipient=other))
    assert [mail["text"] for mail in await mails(running)] == ["third"]


async def test_an_answer_lost_after_the_final_dot_is_met_with_the_same_mail(running: RunningSystem) -> None:
    """Whether it had arrived or not: every mailbox that looks sees one message."""
    for kind in ("drop_after", "drop_before"):
        await mail_fault(running, phase="dot", kind=kind)
        answer = await deliver(running, wish(kind, channel="email", request_context=lineage(running)))
        assert answer["delivery"]["status"] == "delivered"
        first, second = await attempts(running, answer["delivery"]["delivery_id"])
        assert (first["certainty"], second["certainty"]) == ("uncertain", "sent")
        copies = [mail for mail in await mails(running) if mail["text"] == kind]
        assert len({await raw_of(running, mail) for mail in copies}) == 1
        assert {mail["message_id"] for mail in copies} == {answer["delivery"]["provider_delivery_id"]}


async def test_a_connection_lost_before_the_message_is_not_sent_and_tried_again(running: RunningSystem) -> None:
    for phase in ("connect", "ehlo", "mail", "rcpt", "data"):
        await mail_fault(running, phase=phase, kind="drop_before")
        answer = await deliver(running, wish(phase, channel="email"))
        assert answer["delivery"]["status"] == "delivered", phase
        first, _second = await attempts(running, answer["delivery"]["delivery_id"])
        assert first["certainty"] == "not_sent"
    assert [mail["text"] for mail in await mails(running)] == ["connect", "ehlo", "mail", "rcpt", "data"]


async def test_a_recipient_that_is_no_address_is_refused_without_a_word_to_the_server(running: RunningSystem) -> None:
    impossible = (
        "nobody",
        "@example.org",
        "a@",
        "a b@example.org",
        "a@b@c",
        "x@y\r\nBcc: z@example.org",
        "ö@ü.example",
    )
    for recipient in impossible:
        answer = await deliver(running, wish("hello", channel="email", recipient=recipient))
        assert (answer["status"], answer["delivery"]["status"]) == ("error", "failed"), recipient
        assert (answer["error"]["class"], answer["error"]["retryable"]) == ("validation_error", False), recipient
    assert {a["certainty"] for a in await attempts(running)} == {"not_sent"}
    assert {row["status"] for row in await rows(running)} == {"failed"}
    assert (await stored(running))["delivery_receipts"] == 0
    assert await mails(running) == []


# --- answers ---------------------------------------------------------------------------------------------------------


def answered(running: RunningSystem, message: str, **fields: Any) -> dict[str, Any]:
    asked = lineage(
        running,
        source_channel="email",
        source_endpoint_identity="butler@butlers.example",
        source_sender_identity=OWNER_MAIL,
        source_thread_identity="<root@far.example>",
    )
    return wish(message, channel="email", intent="reply", request_context=asked, **fields)


async def test_an_answer_continues_the_thread(running: RunningSystem) -> None:
    event = {
        "message_id": "<question@far.example>",
        "references": "<root@far.example>",
        "subject": "Re: Lunch?",
        "from": OWNER_MAIL,
    }
    response = await execute(running, route(running, answered(running, "At noon."), source_event=event))
    assert response["status"] == "ok", response
    (mail,) = await mails(running)
    assert (mail["in_reply_to"], mail["subject"]) == ("<question@far.example>", "Re: [health] Lunch?")
    assert mail["references"].split() == ["<root@far.example>", "<question@far.example>"]
    assert [recipient["address"] for recipient in mail["recipients"]] == [OWNER_MAIL]
    assert b"Auto-Submitted: auto-replied\r\n" in await raw_of(running, mail)


async def test_machines_and_lists_get_no_answer(running: RunningSystem) -> None:
    for event in (
        {"auto_submitted": "auto-replied"},
        {"precedence": "bulk"},
        {"list_id": "<club.far.example>"},
        {"return_path": "<>"},
        {"from": "butler@butlers.example"},
    ):
        error = await refusal(running, answered(running, "hello"), source_event=event)
        assert "must not be a reply" in error["message"], event
    assert await mails(running) == []


async def test_a_mail_that_came_in_is_answered_in_its_thread(running: RunningSystem) -> None:
    """From the ingest door to the mail server: the headers of the stored mail make the answer's."""
    envelope = running.envelope("I paid the electricity bill", external_event_id="<bill@far.example>")
    envelope["event"]["external_thread_id"] = "<root@far.example>"
    envelope["source"] = {"channel": "email", "provider": "imap", "endpoint_identity": "butler@butlers.example"}
    envelope["sender"] = {"identity": OWNER_MAIL}
    headers = {"Message-ID": "<bill@far.example>", "References": "<root@far.example>", "Subject": "The bill"}
    envelope["payload"]["raw"] = {"headers": headers}
    response = await running.http.post(running.url(path="/api/ingest"), json=envelope, headers=running.bearer())
    assert response.status_code == 202, response.text

    async def answers() -> list[dict[str, Any]]:
        return [mail for mail in await mails(running) if mail["in_reply_to"]]

    (mail, *_more) = await running.until(answers)
    assert mail["in_reply_to"] == "<bill@far.example>"
    assert mail["references"].split() == ["<root@far.example>", "<bill@far.example>"]
    assert mail["subject"].startswith("Re: [")
    assert mail["subject"].endswith("] The bill")
