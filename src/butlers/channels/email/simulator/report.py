"""The report of a mail server about a mail that it accepted and then could, or could not, deliver (RFC 3464)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from email.utils import format_datetime

from butlers.channels.email.simulator.mailbox import AcceptedMail

HOST = "mail.simulator.invalid"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    recipient: str
    action: str  # failed | delayed | delivered | relayed | expanded
    status: str  # such as 5.1.1
    diagnostic: str
    whole: bool  # whether the mail comes back whole, or its head alone


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
