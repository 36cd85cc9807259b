"""The mail as it is written: threads, subjects, encodings, and headers that nobody can break out of."""

from __future__ import annotations

from datetime import UTC, datetime
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import default
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from butlers.channels.adapter import Outgoing
from butlers.channels.email.message import MAX_REFERENCES, compose, message_id
from butlers.channels.email.smtp import framed
from butlers.clock import ManualClock
from butlers.ids import Uuid7Factory

BUTLER, OWNER = "butler@home.example", "owner@home.example"
NOON = datetime(2026, 3, 10, 12, 0, 0, 700_000, tzinfo=UTC)
HEADERS = {
    "from",
    "to",
    "subject",
    "date",
    "message-id",
    "in-reply-to",
    "references",
    "auto-submitted",
    "content-type",
    "content-transfer-encoding",
    "mime-version",
    "list-unsubscribe",
    "list-unsubscribe-post",
}
ANY_TEXT = st.text(max_size=300) | st.text(alphabet="\r\n\x00\x0b\x0c\x1c\x85\u2028\u2029 :=?<>qaB", max_size=80)


def delivery_id() -> UUID:
    return Uuid7Factory(ManualClock(NOON), random_bits=lambda _: 5)()


def outgoing(**fields: Any) -> Outgoing:
    usual: dict[str, Any] = {"intent": "send", "target": OWNER, "message": "hello", "subject": "[health] News"}
    return Outgoing(delivery_id=delivery_id(), idempotency_key="key", **usual | fields)


def answer(**event: Any) -> Outgoing:
    return outgoing(intent="reply", source_event={"message_id": "<parent@far.example>"} | event)


def read(mail: EmailMessage) -> EmailMessage:
    return message_from_bytes(mail.as_bytes(), policy=default)


def written(**fields: Any) -> EmailMessage:
    return read(compose(outgoing(**fields), sender=BUTLER))


# --- threads ---------------------------------------------------------------------------------------------------------


def test_an_answer_points_at_its_parent_and_continues_the_thread() -> None:
    mail = read(compose(answer(references="<root@far.example>\r\n <second@far.example>"), sender=BUTLER))
    assert mail["In-Reply-To"] == "<parent@far.example>"
    assert mail["References"].split() == ["<root@far.example>", "<second@far.example>", "<parent@far.example>"]
    assert mail["Auto-Submitted"] == "auto-replied"


def test_without_references_the_parents_own_parent_continues_the_thread() -> None:
    mail = read(compose(answer(in_reply_to="<root@far.example>"), sender=BUTLER))
    assert mail["References"].split() == ["<root@far.example>", "<parent@far.example>"]
    ambiguous = read(compose(answer(in_reply_to="<one@x> <two@x>"), sender=BUTLER))
    assert ambiguous["References"] == "<parent@far.example>"


def test_a_send_has_no_thread() -> None:
    mail = written(source_event={"message_id": "<parent@far.example>"})
    assert (mail["In-Reply-To"], mail["References"], mail["Auto-Submitted"]) == (None, None, "auto-generated")


@pytest.mark.parametrize("message_id", [None, 7, "", "no brackets", "<two words>", "<a\r\nBcc: x@y>", "<é@x>"])
def test_an_unusable_parent_makes_a_new_thread(message_id: Any) -> None:
    mail = read(compose(answer(message_id=message_id), sender=BUTLER))
    assert (mail["In-Reply-To"], mail["References"], mail["Bcc"]) == (None, None, None)


def test_a_long_thread_keeps_its_root_and_its_latest_mails() -> None:
    earlier = [f"<{number}@far.example>" for number in range(100)]
    ids = read(compose(answer(references=" ".join(earlier)), sender=BUTLER))["References"].split()
    assert ids == [earlier[0], *earlier[-(MAX_REFERENCES - 2) :], "<parent@far.example>"]


def test_long_message_ids_are_not_encoded() -> None:
    long = f"<{'a' * 400}@far.example>"
    raw = compose(answer(message_id=long), sender=BUTLER).as_bytes()
    assert f"In-Reply-To: {long}\r\n".encode() in raw


# --- subjects and text -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("subject", "shown"),
    [
        ("[health] Lunch", "Re: [health] Lunch"),
        ("[health] Re: Lunch", "Re: [health] Lunch"),
        ("Re: [health] Lunch", "Re: [health] Lunch"),
        ("RE: re[2]: AW: [health] Re: Lunch", "Re: [health] Lunch"),
        ("Re: [health] [health] Lunch", "Re: [health] Lunch"),
        ("[health] Lunch [health]", "Re: Lunch [health]"),
        ("[health] [ticket 7] Re: Lunch", "Re: [health] [ticket 7] Lunch"),
        ("[health] Regarding lunch", "Re: [health] Regarding lunch"),
        ("[health]", "Re: [health]"),
    ],
)
def test_an_answer_says_re_once_and_the_origin_once(subject: str, shown: str) -> None:
    assert written(intent="reply", subject=subject)["Subject"] == shown
    assert written(subject=subject)["Subject"] == subject


@pytest.mark.parametrize(
    "subject", ["Größe", "=?utf-8?q?=0D=0ABcc:_x@y?=", "日本語" * 60, "word " * 80 + "end", "x" * 400, "two  spaces"]
)
def test_subjects_arrive_as_they_were_meant(subject: str) -> None:
    mail = compose(outgoing(subject=subject), sender=BUTLER)
    assert str(mail["Subject"]) == subject
    assert read(mail)["Subject"] == subject
    assert max(map(len, mail.as_bytes().split(b"\r\n"))) <= 78


@pytest.mark.parametrize("text", ["hello", "Grüße\nzwei", ".\n..\n.x", "x" * 5_000, "a\rb\r\nc", "bell \x07", "tab\t"])
def test_text_arrives_as_it_was_meant(text: str) -> None:
    mail = compose(outgoing(message=text), sender=BUTLER)
    assert read(mail).get_content().replace("\r\n", "\n").removesuffix("\n") == text.replace("\r\n", "\n").replace(
        "\r", "\n"
    )
    assert max(map(len, mail.as_bytes().split(b"\r\n"))) <= 78
    mail.as_bytes().decode("ascii")


# --- the same mail again ---------------------------------------------------------------------------------------------


@given(message=st.text(max_size=200), subject=st.text(max_size=100), intent=st.sampled_from(["send", "reply"]))
def test_a_second_attempt_is_the_same_bytes(message: str, subject: str, intent: str) -> None:
    def attempt() -> bytes:
        event = {"message_id": "<p@x>", "references": "<r@x>"}
        return compose(
            outgoing(message=message, subject=subject, intent=intent, source_event=event), sender=BUTLER
        ).as_bytes()

    assert attempt() == attempt()


def test_message_id_and_date_follow_from_the_delivery() -> None:
    mail = written()
    assert mail["Message-ID"] == message_id("key", sender=BUTLER)
    assert mail["Message-ID"] != message_id("another key", sender=BUTLER)
    assert mail["Date"] == "Tue, 10 Mar 2026 12:00:00 +0000"


# --- nothing breaks out ----------------------------------------------------------------------------------------------


@given(subject=ANY_TEXT, message=ANY_TEXT, intent=st.sampled_from(["send", "reply"]), data=st.data())
def test_no_header_can_be_injected(subject: str, message: str, intent: str, data: st.DataObject) -> None:
    event = {name: data.draw(ANY_TEXT) for name in ("message_id", "references", "in_reply_to", "subject")}
    mail = compose(outgoing(subject=subject, message=message, intent=intent, source_event=event), sender=BUTLER)
    head, _, body = mail.as_bytes().partition(b"\r\n\r\n")
    names = [line.partition(b":")[0].decode().lower() for line in head.split(b"\r\n") if not line.startswith(b" ")]
    assert set(names) <= HEADERS
    assert len(names) == len(set(names))
    assert b"\x00" not in head + body
    assert b"\n" not in head.replace(b"\r\n", b"") and b"\r" not in head.replace(b"\r\n", b"")
    head.decode("ascii")
    shown = str(read(mail)["Subject"])
    assert shown.isprintable() or not any(c in shown for c in "\r\n\x00\x0b\x0c\x85\u2028\u2029")


@given(target=ANY_TEXT)
def test_an_address_is_one_or_is_refused(target: str) -> None:
    try:
        mail = compose(outgoing(target=target), sender=BUTLER)
    except ValueError:
        return
    assert f"To: {mail['To']}\r\n".encode() in mail.as_bytes()


@pytest.mark.parametrize(
    "target", ["x@y\r\nBcc: z@example.org", "a b@example.org", "nobody", "ö@ü.example", "a@" * 200]
)
def test_what_is_no_address_is_refused(target: str) -> None:
    with pytest.raises(ValueError, match=r"address|SMTP"):
        compose(outgoing(target=target), sender=BUTLER)


@given(st.binary(max_size=200))
def test_a_message_cannot_end_itself(raw: bytes) -> None:
    framed_message = framed(raw)
    assert framed_message.endswith(b"\r\n.\r\n")
    assert framed_message.count(b"\r\n.\r\n") == 1
    assert not framed_message.startswith(b".\r\n")
    assert b"\n" not in framed_message.replace(b"\r\n", b"")


# --- HTML, and the way out of a list ---------------------------------------------------------------------------------

LINK = "https://home.example/u/abc?who=a%40b&list=1"


def test_a_mail_with_html_has_its_text_first() -> None:
    mail = written(message="Größe\n-- \n.", html="<p>Größe &amp; = <b>mehr</b></p>")
    assert mail.get_content_type() == "multipart/alternative"
    text, html = mail.iter_parts()
    assert (text.get_content_type(), html.get_content_type()) == ("text/plain", "text/html")
    assert text.get_content() == "Größe\r\n-- \r\n.\r\n"
    assert html.get_content() == "<p>Größe &amp; = <b>mehr</b></p>\r\n"
    assert mail.get_body(("html", "plain")) is html


def test_a_mail_with_html_is_the_same_again_byte_for_byte() -> None:
    raw = {compose(outgoing(html="<p>x</p>", unsubscribe_url=LINK), sender=BUTLER).as_bytes() for _ in range(3)}
    assert len(raw) == 1
    assert all(len(line) <= 998 for line in raw.pop().split(b"\r\n"))


def test_no_part_can_end_at_the_boundary() -> None:
    """The boundary follows from the key, which a caller may know."""
    boundary = written(html="<p>x</p>").get_boundary()
    forged = f"x\n--{boundary}\nContent-Type: text/html\n\n<b>forged</b>\n--{boundary}--\n"
    mail = written(message=forged, html=forged)
    assert mail.get_boundary() == boundary
    assert [part.get_content() for part in mail.iter_parts()] == [forged.replace("\n", "\r\n")] * 2


@given(text=ANY_TEXT, html=ANY_TEXT)
def test_any_text_and_any_html_make_two_parts(text: str, html: str) -> None:
    mail = written(message=text, html=html)
    assert [part.get_content_type() for part in mail.iter_parts()] == ["text/plain", "text/html"]
    assert {name.lower() for name in mail} <= HEADERS
    assert not mail.defects


def test_a_reader_can_unsubscribe_with_one_click() -> None:
    mail = compose(outgoing(unsubscribe_url=LINK), sender=BUTLER)
    lines = mail.as_bytes().split(b"\r\n")
    assert f"List-Unsubscribe: <{LINK}>".encode() in lines
    assert b"List-Unsubscribe-Post: List-Unsubscribe=One-Click" in lines
    assert written()["List-Unsubscribe"] is None
    assert written()["List-Unsubscribe-Post"] is None


@given(ANY_TEXT)
def test_no_address_breaks_out_of_its_header(url: str) -> None:
    """The contract refuses such addresses; what is written does not depend on that."""
    mail = written(unsubscribe_url=f"https://x/{url}")
    assert {name.lower() for name in mail} <= HEADERS
    header = mail["List-Unsubscribe"]
    assert header.startswith("<https://x/")
    assert header.endswith(">")
    assert header.count("<") == header.count(">") == 1
    assert "\n" not in header
