"""Email through a real SMTP conversation: identity, refusals and lost answers."""

from __future__ import annotations

import pytest

from tests.scenarios.messenger_door import (
    attempts,
    deliver,
    forget,
    lineage,
    mail_fault,
    mails,
    rows,
    stored,
    wish,
)
from tests.scenarios.shared_system import running, system
from tests.system import RunningSystem

OWNER_MAIL = "owner@butlers.example"

pytestmark = pytest.mark.asyncio(loop_scope="module")
__all__ = ["running", "system"]  # fixtures


async def test_a_mail_says_what_it_is_and_who_it_is_from(running: RunningSystem) -> None:
    answer = await deliver(running, wish("line one\nline two\n.\n. dots", channel="email", subject="Größe"))
    (mail,) = await mails(running)
    assert (mail["from"], mail["subject"]) == ("butler@butlers.example", "[health] Größe")
    assert mail["text"] == "line one\nline two\n.\n. dots"
    assert mail["message_id"] == answer["delivery"]["provider_delivery_id"]
    raw = (await running.http.get(f"{running.mail.control_url}/accepted/{mail['number']}/raw")).text
    assert "Auto-Submitted: auto-generated" in raw


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
    for phase, code in (("rcpt", 550), ("mail", 553), ("dot", 554)):
        await mail_fault(running, phase=phase, kind="reply", code=code)
        answer = await deliver(running, wish(phase, channel="email"))
        assert answer["delivery"]["status"] == "failed"
        assert (answer["error"]["class"], answer["error"]["retryable"]) == ("validation_error", False)
        (attempt,) = await attempts(running, answer["delivery"]["delivery_id"])
        assert (attempt["outcome"], attempt["certainty"]) == ("rejected", "not_sent")
    assert await mails(running) == []


async def test_a_connection_lost_after_the_final_dot_is_uncertain_and_parked(running: RunningSystem) -> None:
    for kind, arrived in (("drop_after", 1), ("drop_before", 1)):
        await mail_fault(running, phase="dot", kind=kind)
        notify = wish(kind, channel="email", request_context=lineage(running))
        answer = await deliver(running, notify)
        assert answer["delivery"]["status"] == "uncertain"
        assert answer["error"]["retryable"] is False
        again = await deliver(running, notify)
        assert again["delivery"]["delivery_id"] == answer["delivery"]["delivery_id"]
        assert again["delivery"]["status"] == "uncertain"
        (attempt,) = await attempts(running, answer["delivery"]["delivery_id"])
        assert attempt["certainty"] == "uncertain"
        assert len(await mails(running)) == arrived


async def test_a_connection_lost_before_the_message_is_not_sent_and_tried_again(running: RunningSystem) -> None:
    for phase in ("connect", "ehlo", "mail", "rcpt"):
        await mail_fault(running, phase=phase, kind="drop_before")
        answer = await deliver(running, wish(phase, channel="email"))
        assert answer["delivery"]["status"] == "delivered", phase
        first, _second = await attempts(running, answer["delivery"]["delivery_id"])
        assert first["certainty"] == "not_sent"
    assert [mail["text"] for mail in await mails(running)] == ["connect", "ehlo", "mail", "rcpt"]


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
