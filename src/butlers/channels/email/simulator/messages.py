"""Mail as an outside sender or a mail server writes it, and as a person reads it."""

from __future__ import annotations

import email
import email.policy
from datetime import datetime
from email.errors import MessageError
from email.message import EmailMessage
from email.utils import format_datetime
from typing import Annotated, Any, Literal

from pydantic import Field

from butlers.channels.email.simulator.store import AcceptedMail
from butlers.errors import FieldError, ValidationError
from butlers.simulators.engine import Body

_FIELDS = {"From": "from", "To": "to", "Subject": "subject"}  # headers that have a field of their own
_UNREADABLE = (MessageError, ValueError, LookupError, AttributeError, TypeError, RecursionError)
# What is read of a message for a summary: the library takes quadratic time for more that is made to keep it busy.
_MAX_HEAD, _MAX_BODY = 12_000, 2_000_000  # bytes
_MAX_CONTAINERS, _MAX_DELIMITERS = 20, 500


_ADDRESS = r"^[^\s@<>\x00-\x1f]+@[^\s@<>\x00-\x1f]+$"

Address = Annotated[str, Field(pattern=_ADDRESS, max_length=320)]


class OutsideMail(Body):
    sender: Address = Field(alias="from")
    to: Address | list[Address] = Field(min_length=1)
    subject: str = ""
    text: str
    message_id: str | None = Field(default=None, pattern=r"^<[^<>\s]+>$")
    in_reply_to: str | None = Field(default=None, pattern=r"^<[^<>\s]+>$")
    headers: dict[str, str] = Field(default_factory=dict)  # further ones, such as Auto-Submitted

    @property
    def recipients(self) -> tuple[str, ...]:
        return (self.to,) if isinstance(self.to, str) else tuple(self.to)


def compose(letter: OutsideMail, *, message_id: str, now: datetime) -> bytes:
    """The letter as bytes with CRLF line ends; ValidationError when a header cannot be written."""
    message = EmailMessage(policy=email.policy.SMTP)
    for name, value in _headers(letter, message_id, now):
        _write_header(message, name, value)
    try:
        message.set_content(letter.text)
    except UnicodeEncodeError as error:
        raise _unwritable("text", "not valid Unicode text") from error
    return message.as_bytes()


def summary(raw: bytes) -> dict[str, Any]:
    """The parts of a message that people ask about; unreadable parts are None, never an error."""
    message = email.message_from_bytes(_bounded(raw), policy=email.policy.default)
    return {
        "from": _header(message, "From"),
        "to": _header(message, "To"),
        "subject": _header(message, "Subject"),
        "message_id": _header(message, "Message-ID"),
        "in_reply_to": _header(message, "In-Reply-To"),
        "references": _header(message, "References"),
        "text": _text(message),
    }


def _bounded(raw: bytes) -> bytes:
    head, end, body = raw.partition(b"\r\n\r\n")
    return head[:_MAX_HEAD] + end + (b"" if is_costly(raw) else body[:_MAX_BODY])


def is_costly(raw: bytes) -> bool:
    """Whether it takes a library long to find the parts of a message."""
    containers = raw.count(b"multipart/") + raw.count(b"message/")
    return containers > _MAX_CONTAINERS or (containers > 0 and raw.count(b"\n--") > _MAX_DELIMITERS)


def _headers(letter: OutsideMail, message_id: str, now: datetime) -> list[tuple[str, str]]:
    headers = {
        "From": letter.sender,
        "To": ", ".join(letter.recipients),
        "Subject": letter.subject,
        "Date": format_datetime(now),
        "Message-ID": message_id,
    }
    if letter.in_reply_to is not None:
        headers["In-Reply-To"] = headers["References"] = letter.in_reply_to
    known = {name.lower(): name for name in headers}
    for name, value in letter.headers.items():
        headers[known.get(name.lower(), name)] = value
    return list(headers.items())


def _write_header(message: EmailMessage, name: str, value: str) -> None:
    if not name.isascii() or not name.isprintable() or ":" in name or " " in name or not name:
        raise _unwritable(f"headers.{name}", "not a header name")
    if any(ord(character) < 32 and character != "\t" for character in value):
        raise _unwritable(_FIELDS.get(name, f"headers.{name}"), "control characters are not allowed in a header")
    try:
        message[name] = value
        message.as_bytes()
    except _UNREADABLE as error:
        raise _unwritable(_FIELDS.get(name, f"headers.{name}"), "cannot be written as a header") from error


def _unwritable(field_name: str, problem: str) -> ValidationError:
    return ValidationError("the message cannot be written", fields=(FieldError(field=field_name, error=problem),))


def _header(message: EmailMessage, name: str) -> str | None:
    try:
        value = message.get(name)
        return None if value is None else _clean(str(value))
    except _UNREADABLE:
        return None


def _text(message: EmailMessage) -> str | None:
    try:
        body = message.get_body(("plain", "html"))
        return None if body is None else _clean(str(body.get_content()).replace("\r\n", "\n"))
    except _UNREADABLE:
        return None


def _clean(text: str) -> str:
    """Undecodable bytes arrive as lone surrogates, which no JSON reader accepts."""
    return text.encode("utf-8", "replace").decode().strip()


HOST = "mail.simulator.invalid"


class Report(Body):
    """What a mail server says became of a mail that it had accepted."""

    action: Literal["failed", "delayed", "delivered", "relayed", "expanded"] = "failed"
    status: str = Field(default="5.1.1", pattern=r"^[245]\.\d{1,3}\.\d{1,3}$")
    recipient: Address | None = None  # default: the first one it was accepted for
    diagnostic: str = Field(default="no such user", max_length=200, pattern=r"^[ -~]*$")
    whole: bool = True  # false: only the head of the mail comes back


def write_report(mail: AcceptedMail, report: Report, *, report_id: str, now: datetime) -> bytes:
    """Written by hand, as mail servers do it: what comes back is the mail's own bytes."""
    boundary = f"report-{report_id}"
    parts = (
        ("text/plain; charset=us-ascii", _for_people(report)),
        ("message/delivery-status", _for_machines(report, now)),
        _original(mail, whole=report.whole),
    )
    body = b"".join(
        f"--{boundary}\r\nContent-Type: {kind}\r\n\r\n".encode() + content + b"\r\n" for kind, content in parts
    )
    return _head(mail, report_id, boundary, now) + body + f"--{boundary}--\r\n".encode()


def _head(mail: AcceptedMail, report_id: str, boundary: str, now: datetime) -> bytes:
    lines = (
        f"From: Mail Delivery System <MAILER-DAEMON@{HOST}>",
        f"To: {mail.envelope_from}",
        "Subject: Delivery Status Notification",
        f"Date: {format_datetime(now)}",
        f"Message-ID: <{report_id}@{HOST}>",
        "Auto-Submitted: auto-replied",
        "MIME-Version: 1.0",
        f'Content-Type: multipart/report; report-type=delivery-status;\r\n boundary="{boundary}"',
    )
    return "".join(f"{line}\r\n" for line in (*lines, "")).encode()


def _for_people(report: Report) -> bytes:
    return f"Your message to {report.recipient}: {report.action} ({report.diagnostic}).\r\n".encode()


def _for_machines(report: Report, now: datetime) -> bytes:
    about_the_mail = (f"Reporting-MTA: dns; {HOST}", f"Arrival-Date: {format_datetime(now)}")
    about_the_recipient = (
        f"Final-Recipient: rfc822; {report.recipient}",
        f"Action: {report.action}",
        f"Status: {report.status}",
        f"Diagnostic-Code: smtp; {report.status[:1]}50 {report.status} {report.diagnostic}",
    )
    return "".join(f"{line}\r\n" for line in (*about_the_mail, "", *about_the_recipient)).encode()


def _original(mail: AcceptedMail, *, whole: bool) -> tuple[str, bytes]:
    if whole:
        return "message/rfc822", mail.raw
    return "text/rfc822-headers", mail.raw.partition(b"\r\n\r\n")[0] + b"\r\n"
