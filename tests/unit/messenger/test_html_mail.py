"""HTML beside the text of a message, and the link by which a reader unsubscribes: from the contract to the adapter."""

from __future__ import annotations

from typing import Any

import pytest

from butlers.channels.channel import Capabilities, Channel, Outbound
from butlers.clock import ManualClock
from butlers.contracts.notify import LONGEST_URL, NotifyEnvelope
from butlers.errors import ValidationError
from butlers.ids import Uuid7Factory
from butlers.messenger import delivery as delivery_module
from butlers.messenger.delivery import NewDelivery, outgoing_of, restored
from butlers.messenger.parking import tool_args
from butlers.messenger.preparation import Preparation
from butlers.reliability.idempotency import delivery_key
from butlers.telemetry.redaction import SecretFilter

from .given import REQUEST_ID, START, AddressBook, new_delivery, row

LINK = "https://home.example/u/abc"
PAGE = "<html><head></head><body class='x'><p>hello</p></body></html>"
SECRET = "p&ss-word'9"


def mail(**fields: Any) -> NotifyEnvelope:
    delivery = {"intent": "send", "channel": "email", "message": "hello", "recipient": "a@b.example"} | fields
    context = {"request_id": REQUEST_ID}
    document = {"schema_version": "notify.v1", "origin_butler": "general", "delivery": delivery}
    return NotifyEnvelope.parse(document | {"request_context": context})


async def prepared(*secrets: str, **fields: Any) -> NewDelivery:
    clock = ManualClock(START)
    desk = Preparation(
        contacts=AddressBook(),
        channels=("email.bot",),
        own_address="butler@home.example",
        clock=clock,
        new_id=Uuid7Factory(clock),
        secrets=SecretFilter(lambda: secrets),
    )
    return await desk.prepare(mail(**fields), None)


# --- the contract ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("channel", ["telegram", "sms", "chat"])
@pytest.mark.parametrize(("field", "value"), [("html", PAGE), ("unsubscribe_url", LINK)])
def test_a_channel_that_cannot_show_it_is_refused(channel: str, field: str, value: str) -> None:
    with pytest.raises(ValidationError, match=f"{field} is not possible on {channel}"):
        mail(channel=channel, recipient="7", **{field: value})


@pytest.mark.parametrize(
    "url",
    [
        LINK,
        "https://home.example:8443/u?a=1&b=%20#c",
        "http://127.0.0.1:40200/u/abc",
        "http://localhost/u",
        "http://[::1]:80/u",
        "https://h/" + "x" * (LONGEST_URL - 10),
    ],
)
def test_addresses_to_unsubscribe_at(url: str) -> None:
    assert mail(unsubscribe_url=url).delivery.unsubscribe_url == url


@pytest.mark.parametrize(
    "url",
    [
        "",
        "http://home.example/u",
        "mailto:out@home.example",
        "javascript:alert(1)",
        "https://",
        "https:///u",
        "https://user:pass@home.example/u",
        "https://home.example:99999/u",
        "https://home.example/a b",
        "https://home.example/>\r\nBcc: x@y",
        "https://home.example/<x>",
        'https://home.example/"x"',
        "https://höme.example/",
        "https://[::1/u",
        "http://127.0.0.1.evil.example/u",
        "https://h/" + "x" * LONGEST_URL,
    ],
)
def test_what_no_mail_program_should_post_to_is_refused(url: str) -> None:
    with pytest.raises(ValidationError) as refused:
        mail(unsubscribe_url=url)
    assert refused.value.fields[0].field == "delivery.unsubscribe_url"


# --- the key ---------------------------------------------------------------------------------------------------------


async def test_html_and_link_are_content() -> None:
    keys = [
        (await prepared(**fields)).idempotency_key
        for fields in (
            {},
            {"html": PAGE},
            {"html": PAGE.upper()},
            {"unsubscribe_url": LINK},
            {"html": PAGE, "unsubscribe_url": LINK},
            {"subject": PAGE},
        )
    ]
    assert len(set(keys)) == len(keys)
    assert (await prepared(html=PAGE)).idempotency_key == keys[1]


def test_a_key_without_them_is_what_it_always_was() -> None:
    given = {"request_id": "r", "origin_butler": "o", "intent": "send", "channel": "email", "target_identity": "t"}
    before = "delivery-2bd219c71d0d37c84216ff3b8d82855855176fcb45e3b6579e60603d5e9c9b3d"
    assert delivery_key(**given, message="m", subject="s") == before


# --- secrets ---------------------------------------------------------------------------------------------------------


async def test_a_secret_is_taken_out_of_html_as_out_of_text() -> None:
    new = await prepared("s3cret-value", html=f"{PAGE}<!-- s3cret-value -->")
    assert new.outgoing.html == f"{PAGE}<!-- [redacted] -->"
    assert "s3cret-value" not in str(new.to_row())
    [decision] = [one for one in new.decisions if one.rule == "secrets"]
    assert decision.detail.startswith("1 ")


@pytest.mark.parametrize(
    "html",
    [
        "<p>p&amp;ss-word&#39;9</p>",
        "<p>p&#38;ss<b></b>-word&apos;<i>9</i></p>",
        '<a href="https://x.example/?q=p&amp;ss-word&#x27;9">x</a>',
    ],
)
async def test_html_that_hides_a_secret_does_not_leave_and_the_text_does(html: str) -> None:
    new = await prepared(SECRET, html=html)
    assert new.outgoing.html is None
    assert new.outgoing.message == "hello"
    assert html not in str(new.to_row())
    assert [one.verdict for one in new.decisions if one.rule == "secrets"] == ["redacted"]


async def test_a_link_that_holds_a_secret_does_not_leave() -> None:
    new = await prepared("s3cret-value", unsubscribe_url="https://home.example/s3cret-value")
    assert new.outgoing.unsubscribe_url is None
    assert "s3cret-value" not in str(new.to_row())


# --- the way to the adapter ------------------------------------------------------------------------------------------


async def test_what_leaves_is_the_same_now_and_from_its_row() -> None:
    new = await prepared(html=PAGE, unsubscribe_url=LINK)
    stored = row(new.to_row(), parts_sent=None)
    for outgoing in (new.outgoing, outgoing_of(stored), restored(stored).outgoing):
        assert (outgoing.html, outgoing.unsubscribe_url, outgoing.message) == (PAGE, LINK, "hello")


async def test_a_person_who_approves_sees_what_will_leave() -> None:
    given = tool_args(await prepared(html=PAGE, unsubscribe_url=LINK))
    assert (given["html"], given["unsubscribe_url"]) == (PAGE, LINK)


def test_without_a_subject_line_the_html_says_whose_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    board = Channel(name="email", title="Board", outbound=Outbound(capabilities=Capabilities(html=True)))
    monkeypatch.setattr(delivery_module, "channel_of", lambda _name: board)
    for html, shown in (
        (PAGE, "<html><head></head><body class='x'><p>[general]</p><p>hello</p></body></html>"),
        ("<p>hello</p>", "<p>[general]</p><p>hello</p>"),
    ):
        assert new_delivery(notify=mail(html=html)).outgoing.html == shown
