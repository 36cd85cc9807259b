"""Mail as it comes: readable where it can be read, bounded always, and never an error."""

from __future__ import annotations

from dataclasses import asdict
from time import process_time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from butlers.channels.email.mailbox.imap import Fetched
from butlers.channels.email.mailbox.mime import (
    MAX_ATTACHMENTS,
    MAX_HEADERS,
    MAX_TEXT,
    addresses,
    decoded,
    read_mail,
)
from butlers.channels.email.mailbox.reports import understand
from butlers.channels.email.mailbox.routing import NO_TEXT, UNKNOWN_SENDER, RouteCounts, thread_of, to_envelope
from butlers.channels.email.mailbox.tools import MailRouted
from butlers.clock import ManualClock
from butlers.contracts.ingest import IngestEnvelope

HEAD = b"From: Ann <Ann@Far.Example>\r\nSubject: Hi\r\nMessage-ID: <1@far.example>\r\n"
FRAGMENTS = (
    *(b"Content-Type: multipart/mixed; boundary=x\r\n", b"Content-Type: message/rfc822\r\n", b"--x\r\n", b"--x--\r\n"),
    *(b"Content-Type: multipart/report; report-type=delivery-status; boundary=x\r\n", b"Action: failed\r\n", b"\r\n"),
    *(b"Content-Type: message/delivery-status\r\n", b"Status: 5.1.1\r\n", b"Content-Transfer-Encoding: base64\r\n"),
    *(b"Content-Type: text/plain; charset=\x00\r\n", b"Content-Type: text/html; charset=nonsense\r\n", b"<b>hi</b>"),
    *(b"Subject: =?utf-8?b?====?=\r\n", b"Subject: =?nonsense?q?=zz?= =?utf-8?q?\xff?=\r\n", b"From: <<>,;:@\r\n"),
    *(b"Content-Disposition: attachment; filename*=utf-9''%ff; filename=\"a\x00b\"\r\n", b"Message-ID: <\x00>\r\n"),
    *(b"\xff\xfe\x00", b"<![CDATA[", b"<!", b"&#xD800;", b"Date: 99 Foo 99999\r\n", b"References: <a@x> <b@x>\r\n"),
)
MANGLED = st.lists(st.sampled_from(FRAGMENTS) | st.binary(max_size=30), max_size=40).map(b"".join)


def fetched(raw: bytes) -> Fetched:
    return Fetched(uid=1, size=len(raw), seen=False, arrived_at=None, raw=raw)


def test_a_plain_mail() -> None:
    mail = read_mail(HEAD + b"Content-Type: text/plain; charset=latin-1\r\n\r\nGr\xfc\xdfe\r\n")
    assert ((mail.sender_name, mail.sender_address), mail.header("subject")) == (("Ann", "ann@far.example"), "Hi")
    assert (mail.text, mail.truncated, mail.attachments) == ("Grüße", False, ())


def test_text_stands_beside_html_and_attachments() -> None:
    raw = HEAD + (
        b"Content-Type: multipart/mixed; boundary=m\r\n\r\n--m\r\n"
        b"Content-Type: multipart/alternative; boundary=a\r\n\r\n"
        b"--a\r\nContent-Type: text/plain\r\n\r\nplain\r\n"
        b"--a\r\nContent-Type: text/html\r\n\r\n<p>rich</p>\r\n--a--\r\n"
        b'--m\r\nContent-Type: application/pdf; name="=?utf-8?q?Rechnung_f=C3=BCr_M=C3=A4rz.pdf?="\r\n'
        b"Content-Transfer-Encoding: base64\r\nContent-Disposition: attachment\r\n\r\naGVsbG8=\r\n"
        b"--m\r\nContent-Type: text/plain\r\nContent-Disposition: attachment; filename=notes.txt\r\n\r\n"
        b"notes\r\n--m--\r\n"
    )
    mail = read_mail(raw)
    assert mail.text == "plain"
    assert [(a.filename, a.media_type, a.size_bytes) for a in mail.attachments] == [
        ("Rechnung für März.pdf", "application/pdf", 5),
        ("notes.txt", "text/plain", 5),
    ]


def test_html_alone_is_read_as_words() -> None:
    html = (
        b"<html><head><title>no</title><style>x{}</style></head><body><p>One &amp; two</p>three<br>four</body></html>"
    )
    assert read_mail(HEAD + b"Content-Type: text/html\r\n\r\n" + html).text == "One & two\nthree\nfour"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("=?utf-8?q?Gr=C3=BC=C3=9Fe?=", "Grüße"),
        ("=?utf-8?q?Gr=C3?= =?UTF-8?b?vMOfZQ==?= an =?latin-1*de?Q?J=F6rg_M=2E?=!", "Grüße an Jörg M.!"),
        ("a =?utf-8?q?b", "a =?utf-8?q?b"),
        ("=?utf-8?x?b?= =? =?=?", "=?utf-8?x?b?= =? =?=?"),
        ("a\r\n b", "a b"),
        ("=?nonsense?q?x=FF?=", "xÿ"),
        ("=?utf-8?b?!!!?=", None),
        ("nul \x00 here", "nul \ufffd here"),
    ],
)
def test_headers_are_one_line_of_text(value: str, shown: str | None) -> None:
    assert shown in (None, decoded(value))


def test_headers_in_plain_utf8_are_understood() -> None:
    assert read_mail("Subject: Grüße\r\n\r\nx".encode()).header("Subject") == "Grüße"


def test_addresses_are_picked_out() -> None:
    assert addresses('"Ann, B." <A@X.example>, broken') == [("Ann, B.", "a@x.example")]
    assert addresses(None) == []


@pytest.mark.parametrize(
    ("written", "sender"),
    [
        ("=?utf-8?q?owner=40gmail.com=2C?= <eve@gmail.com>", ("owner@gmail.com,", "eve@gmail.com")),
        ("=?utf-8?b?b3duZXJAZ21haWwuY29tLA==?= <eve@gmail.com>", ("owner@gmail.com,", "eve@gmail.com")),
        ("=?utf-8?q?=3Cowner=40gmail.com=3E=2C?= <eve@gmail.com>", ("<owner@gmail.com>,", "eve@gmail.com")),
        ('"owner@gmail.com, " <eve@gmail.com>', ("owner@gmail.com,", "eve@gmail.com")),
        ("=?utf-8?q?J=C3=B6rg?= (work)\r\n <J@X.example>", ("Jörg (work)", "j@x.example")),
        ("j@x.example (Jo)", ("Jo", "j@x.example")),
    ],
)
def test_the_author_is_parsed_before_the_name_is_decoded(written: str, sender: tuple[str, str]) -> None:
    mail = read_mail(f"From: {written}\r\n\r\nx".encode())
    assert ((mail.sender_name, mail.sender_address), mail.author) == (sender, sender[1])


@pytest.mark.parametrize(
    "head",
    [
        "From: owner@gmail.com, eve@gmail.com",
        "From: owner@gmail.com <eve@gmail.com>",
        "From: <owner@gmail.com> <eve@gmail.com>",
        "From: owner@gmail.com, eve",
        "From: owner@gmail.com (eve@gmail.com)",
        'From: (") <owner@gmail.com> ("<eve@gmail.com>)',
        'From: owner@gmail.com "<eve@gmail.com>',
        "From: <@gmail.com,@x.example:owner@gmail.com>",
        "From: Us: owner@gmail.com, eve@gmail.com;",
        "From: owner@gmail.com\r\nFrom: eve@gmail.com",
        "From: owner@gmail.com\r\nfrom : eve@gmail.com",
        "From: owner@gmail.com\r\n" + "X-Y: z\r\n" * MAX_HEADERS + "From: eve@gmail.com",
        "From: owner@gmail.com" + " " * 9_000 + ", eve@gmail.com",
        "Subject: nobody",
    ],
)
def test_a_from_that_may_be_another_persons_has_no_author(head: str) -> None:
    assert read_mail(f"{head}\r\n\r\nx".encode()).author == ""


# --- bounds ----------------------------------------------------------------------------------------------------------


def nested(depth: int) -> bytes:
    head = b"".join(
        b"Content-Type: multipart/mixed; boundary=b%d\r\n\r\n--b%d\r\n" % (level, level) for level in range(depth)
    )
    return head + b"Content-Type: text/plain\r\n\r\ndeep\r\n"


def test_a_mail_that_is_nested_without_end_shows_its_head_alone() -> None:
    mail = read_mail(HEAD + nested(5_000))
    assert (mail.header("Subject"), mail.text, mail.truncated) == ("Hi", "", True)
    assert read_mail(HEAD + nested(5)).text.strip() == "deep"


def test_parts_text_and_headers_are_bounded() -> None:
    parts = b"--m\r\nContent-Type: image/png\r\n\r\nx\r\n" * 1_000
    mail = read_mail(HEAD + b"Content-Type: multipart/mixed; boundary=m\r\n\r\n" + parts + b"--m--\r\n")
    assert len(mail.attachments) == MAX_ATTACHMENTS
    long = read_mail(HEAD + b"\r\n" + b"x" * (2 * MAX_TEXT))
    assert (len(long.text), long.truncated) == (MAX_TEXT, True)
    many = read_mail(b"".join(b"X-%d: y\r\n" % number for number in range(5_000)) + b"\r\nx")
    assert len(many.headers) == MAX_HEADERS


@pytest.mark.parametrize(
    "costly",
    [
        b"Content-Type: text/html\r\n\r\n" + b"<!--" * 100_000,
        b"Content-Type: text/html\r\n\r\n" + b"<style>" * 100_000,
        b"Content-Type: multipart/mixed; boundary=x\r\n\r\n" + b"--x\r\n\r\n" * 300_000,
        nested(60) + b"-\r\n" * 1_000_000,
        b"From: " + b"(" * 500_000 + b"\r\n\r\nx",
        b"Content-Type: text/html\r\n\r\n<script>" + b"</script" * 49_000,
        b"".join(b"X-%d: a%bb\r\n" % (number, b" " * 7_900) for number in range(99)) + b"\r\nx",
        b"".join(b"X-%d: %b\r\n" % (number, b"=?x?q?a" * 1_100) for number in range(99)) + b"\r\nx",
        b'Content-Type: text/plain; x="' + b";" * 2_000_000 + b"\r\n\r\nx",
    ],
    ids=[
        *("comments", "styles", "parts", "lines", "parentheses"),
        *("closing tags", "blank headers", "encoded words", "parameters"),
    ],
)
def test_nobody_can_keep_us_busy(costly: bytes) -> None:
    started = process_time()
    read_mail(costly)
    understand(costly)
    assert process_time() - started < 5  # each of them took minutes, or the better part of one, unbounded


def test_a_character_number_without_end_is_no_error() -> None:
    html = b"<p>a&#" + b"1" * 5_000 + b";b</p>"
    assert read_mail(HEAD + b"Content-Type: text/html\r\n\r\n" + html).text == "a\ufffdb"


def test_a_hidden_element_ends_at_its_own_closing_tag() -> None:
    html = b"a<script>b</scripts>c< /script>d</SCRIPT >e<style>f"
    assert read_mail(HEAD + b"Content-Type: text/html\r\n\r\n" + html).text == "ae"


@given(MANGLED)
@example(b"")
@example(b"\x00")
@example(b"Content-Type: text/plain; charset=\x00\r\n\r\n\xff")
@example(b"From: " + b"(" * 2_000)
@example(b"Subject: " + b"=?utf-8?q?a?= " * 500)
def test_no_mail_is_an_error(raw: bytes) -> None:
    mail = read_mail(raw)
    envelope = to_envelope(fetched(raw), mail, address="butler@home.example", now=ManualClock().now())
    IngestEnvelope.parse(envelope.to_wire())
    understand(raw)


def test_a_mail_without_anything_is_still_handed_in() -> None:
    envelope = to_envelope(fetched(b"\r\n"), read_mail(b"\r\n"), address="b@home.example", now=ManualClock().now())
    assert (envelope.sender.identity, envelope.payload.normalized_text) == (UNKNOWN_SENDER, NO_TEXT)
    assert envelope.event.external_event_id.endswith("@no-message-id.invalid>")


def test_the_tool_documents_every_count_of_a_look() -> None:
    assert set(MailRouted.model_fields) == set(asdict(RouteCounts()))


def test_the_thread_is_the_first_mail_of_the_conversation() -> None:
    assert thread_of(read_mail(b"References: <root@x> <b@x>\r\nIn-Reply-To: <b@x>\r\n\r\n")) == "<root@x>"
    assert thread_of(read_mail(b"In-Reply-To: <b@x>\r\n\r\n")) == "<b@x>"
    assert thread_of(read_mail(b"\r\n")) is None


# --- reports ---------------------------------------------------------------------------------------------------------


def report(
    blocks: str, original: str | None = "Content-Type: message/rfc822\n\nMessage-ID: <mine@home.example>\n\nx"
) -> bytes:
    parts = ["Content-Type: text/plain\n\nSorry.", f"Content-Type: message/delivery-status\n\n{blocks}", original]
    body = "".join(f"--r\n{part}\n" for part in parts if part is not None)
    head = (
        "From: MAILER-DAEMON@far.example\nContent-Type: multipart/report; report-type=delivery-status; boundary=r\n\n"
    )
    return f"{head}{body}--r--\n".replace("\n", "\r\n").encode()


def recipient(action: str, status: str) -> str:
    about_it = f"Final-Recipient: rfc822; ann@far.example\nAction: {action}\nStatus: {status}\n"
    return f"Reporting-MTA: dns; far.example\n\n{about_it}"


@pytest.mark.parametrize(
    ("action", "status", "fate", "gone"),
    [
        ("failed", "5.1.1", "bounced", True),
        ("Failed", "5.1.10 (bad address)", "bounced", True),
        ("failed", "5.0.0", "bounced", True),
        ("failed", "5.2.1", "bounced", True),
        ("failed", "5.2.2", "bounced", False),
        ("failed", "5.7.1", "bounced", False),
        ("failed", "4.4.7", "bounced", False),
        ("failed", "nonsense", "bounced", False),
        ("delivered", "2.0.0", "delivered", False),
        ("delayed", "4.4.1", "undecided", False),
        ("relayed", "2.0.0", "undecided", False),
    ],
)
def test_a_report_says_what_became_of_a_mail(action: str, status: str, fate: str, gone: bool) -> None:
    found = understand(report(recipient(action, status))).report
    assert found is not None
    assert (found.message_id, found.fate, found.recipient_gone) == ("<mine@home.example>", fate, gone)


@pytest.mark.parametrize(
    "original",
    [
        "Content-Type: text/rfc822-headers\n\nSubject: x\nMessage-ID: <mine@home.example>\nTo: y",
        "Content-Type: text/rfc822-headers\n\nSubject: x\nmessage-id:\n <mine@home.example>",
        "Content-Type: message/rfc822\n\nMessage-Id: <mine@home.example>\n\nMessage-ID: <other@x>",
    ],
)
def test_the_original_may_come_back_whole_or_as_its_head(original: str) -> None:
    found = understand(report(recipient("failed", "5.1.1"), original)).report
    assert found is not None
    assert found.message_id == "<mine@home.example>"


def test_a_report_about_nothing_is_none() -> None:
    assert understand(report(recipient("failed", "5.1.1"), None)).report is None
    assert understand(report("Reporting-MTA: dns; far.example\n")).report is None
    assert understand(HEAD + b"\r\nAction: failed\r\n").report is None
    assert understand(report(recipient("failed", "5.1.1")).replace(b"delivery-status;", b"disposition;")).report is None
    assert understand(report(recipient("failed", "5.1.1"), None)).mail is None


def test_of_several_recipients_the_worst_counts() -> None:
    both = recipient("delivered", "2.0.0") + "\nFinal-Recipient: rfc822; bob@x\nAction: failed\nStatus: 5.1.1\n"
    found = understand(report(both)).report
    assert found is not None
    assert (found.fate, found.status) == ("bounced", "5.1.1")
