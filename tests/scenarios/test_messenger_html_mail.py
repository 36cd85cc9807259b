"""A mail with HTML and a way to unsubscribe, from a butler's `notify.dispatch` to the mail server."""

from __future__ import annotations

from email import message_from_bytes
from email.message import EmailMessage
from email.policy import default
from typing import Any

import pytest

from butlers.channels.email import SIMULATED_ADDRESS
from butlers.channels.email.simulator.store import SENT
from tests.scenarios.messenger_door import attempts, call, mail_fault, mails, official_call, rows, stored, wish
from tests.scenarios.shared_system import running, system
from tests.system import RunningSystem
from tests.unit.outbound.templates.given import ANN, INVOICE

pytestmark = pytest.mark.asyncio(loop_scope="module")
__all__ = ["running", "system"]  # fixtures

LINK = "https://home.example/unsubscribe/abc?list=news&who=a%40b"
PAGE = "<html><head></head><body><p>Grüße &amp; <b>mehr</b></p></body></html>"


async def raw_mails(running: RunningSystem) -> list[bytes]:
    addresses = [f"{running.mail.control_url}/accepted/{mail['number']}/raw" for mail in await mails(running)]
    return [(await running.http.get(address)).content for address in addresses]


def parsed(raw: bytes) -> EmailMessage:
    return message_from_bytes(raw, policy=default)


async def dispatch(running: RunningSystem, notify: dict[str, Any]) -> dict[str, Any]:
    return await call(running, "switchboard", "notify.dispatch", notify, caller="health")


async def test_a_mail_has_its_text_its_html_and_a_way_out(running: RunningSystem) -> None:
    notify = wish("Grüße & mehr", channel="email", subject="News", html=PAGE, unsubscribe_url=LINK)
    answer = await official_call(running, "switchboard", "notify.dispatch", notify, caller="health")
    assert (answer["status"], answer["delivery"]["status"]) == ("ok", "delivered"), answer
    [raw] = await raw_mails(running)
    mail = parsed(raw)
    assert mail.get_content_type() == "multipart/alternative"
    text, html = mail.iter_parts()
    assert (text.get_content_type(), text.get_content()) == ("text/plain", "Grüße & mehr\r\n")
    assert (html.get_content_type(), html.get_content()) == ("text/html", f"{PAGE}\r\n")
    assert mail["Subject"] == "[health] News"  # so the words themselves need no mark
    assert f"List-Unsubscribe: <{LINK}>\r\n".encode() in raw
    assert b"List-Unsubscribe-Post: List-Unsubscribe=One-Click\r\n" in raw
    [row] = await rows(running)
    assert (row["envelope"]["delivery"]["html"], row["envelope"]["delivery"]["unsubscribe_url"]) == (PAGE, LINK)


async def test_a_resend_is_the_same_mail_byte_for_byte(running: RunningSystem) -> None:
    """The answer is lost, and no Sent folder tells that the mail arrived: it is sent again, now from its row."""
    running.mail.store.delete_mailbox(SIMULATED_ADDRESS, SENT)
    try:
        await mail_fault(running, phase="dot", kind="drop_after")
        content = {"subject": "Again", "html": PAGE, "unsubscribe_url": LINK, "idempotency_key": "resent"}
        answer = await dispatch(running, wish("x", channel="email", **content))
        assert answer["delivery"]["status"] == "delivered", answer
    finally:
        running.mail.store.create_mailbox(SIMULATED_ADDRESS, SENT)
    first, second = await attempts(running, answer["delivery"]["delivery_id"])
    assert (first["certainty"], second["certainty"]) == ("uncertain", "sent")
    accepted = await raw_mails(running)
    assert len(accepted) == 2
    assert accepted[0] == accepted[1]
    assert [part.get_content_type() for part in parsed(accepted[1]).iter_parts()] == ["text/plain", "text/html"]


async def test_what_a_channel_cannot_carry_is_refused_before_anything_is_stored(running: RunningSystem) -> None:
    before = await stored(running)
    for fields, words in (
        ({"html": PAGE}, "html is not possible on telegram"),
        ({"unsubscribe_url": LINK}, "unsubscribe_url is not possible on telegram"),
        ({"channel": "email", "unsubscribe_url": "http://elsewhere.example/u"}, "must begin with https://"),
        ({"channel": "email", "unsubscribe_url": f"{LINK}\r\nBcc: x@y.example"}, "without spaces"),
    ):
        answer = await dispatch(running, wish("x", **fields))
        assert (answer["status"], answer["error"]["class"]) == ("error", "validation_error")
        assert words in answer["error"]["message"]
    assert await stored(running) == before
    assert await raw_mails(running) == []


async def test_a_template_becomes_a_mail(running: RunningSystem) -> None:
    await call(running, "switchboard", "templates.put", INVOICE | {"id": "mailed"})
    asked = {"template_id": "mailed", "locale": "de-CH", "channel": "email", "variables": ANN | {"name": "<Ann>"}}
    rendered = await call(running, "switchboard", "templates.preview", asked, caller="health")
    words = {"subject": rendered["subject"], "html": rendered["html"]}
    answer = await dispatch(running, wish(rendered["text"], channel="email", **words))
    assert answer["delivery"]["status"] == "delivered", answer
    [raw] = await raw_mails(running)
    mail = parsed(raw)
    text, html = mail.iter_parts()
    assert mail["Subject"] == "[health] Rechnung für <Ann>"
    assert text.get_content() == "Grüezi <Ann>, total 12.5.\r\n"
    assert "Hello &lt;Ann&gt;" in html.get_content()
