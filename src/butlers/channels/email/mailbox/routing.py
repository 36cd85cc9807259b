"""The inbox, handed on: reports to the receipts, everything else to Switchboard's ingest door.

The checkpoint moves behind a mail only after Switchboard has said that it is on disk, so a crash hands the last mail in
again and the door recognises it by its Message-ID. A mail that the door refuses for good, or that is quarantined, is
counted and passed over: it would block everything behind it.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass
from datetime import datetime
from hashlib import sha256
from typing import Any

from butlers.butler.transport import Transport
from butlers.channels.email.headers import message_ids
from butlers.channels.email.mailbox.batches import NewMail, Place
from butlers.channels.email.mailbox.bounces import Bounces, ReportOutcome
from butlers.channels.email.mailbox.imap import Fetched
from butlers.channels.email.mailbox.mime import Mail
from butlers.channels.email.mailbox.parser import MailParser
from butlers.channels.email.mailbox.reports import DeliveryReport
from butlers.clock import Clock
from butlers.contracts.ingest import Attachment, Event, IngestEnvelope, Payload, Sender, Source
from butlers.errors import ClassifiedError, SenderRefused, TargetUnavailable
from butlers.isolation.isolate import IsolationFailed
from butlers.telemetry import get_logger

log = get_logger("butlers.channels.email.mailbox")

NO_TEXT = "(no text)"
UNKNOWN_SENDER = "unknown"


@dataclass(slots=True, kw_only=True)
class RouteCounts:
    """What became of the mails of one look."""

    routed: int = 0
    duplicates: int = 0  # known already
    bounces: int = 0  # reports about deliveries of ours
    skipped: int = 0  # reports that say nothing to us, and mail from ourselves
    refused: int = 0  # their senders may not write in
    failed: int = 0  # no valid message, quarantined, or not handed in because Switchboard is away


class InboxRouter:
    def __init__(
        self,
        *,
        new_mail: NewMail,
        parser: MailParser,
        bounces: Bounces,
        transport: Transport,
        address: str,
        clock: Clock,
    ) -> None:
        self._new_mail = new_mail
        self._parser = parser
        self._bounces = bounces
        self._transport = transport
        self._address = address.strip().lower()
        self._clock = clock
        self._one_at_a_time = asyncio.Lock()

    async def check_and_route(self, *, limit: int) -> dict[str, int]:
        counts = RouteCounts()

        async def handle(mail: Fetched) -> None:
            await self._handle(mail, counts)

        async with self._one_at_a_time:
            try:
                quarantined = await self._new_mail.read(handle, limit=limit)
                counts.failed += quarantined
            except _NotNow:
                counts.failed += 1
        return asdict(counts)

    async def retry(self, place: Place) -> dict[str, Any]:
        """One quarantined mail again, at an operator's word."""
        counts = RouteCounts()

        async def handle(mail: Fetched) -> None:
            await self._handle(mail, counts)

        async with self._one_at_a_time:
            handled = await self._new_mail.retry(handle, place)
        return {"handled": handled, **asdict(counts)}

    async def _handle(self, fetched: Fetched, counts: RouteCounts) -> None:
        try:
            await self._pass_on(fetched, counts)
        except IsolationFailed:
            raise
        except SenderRefused:
            counts.refused += 1
        except ClassifiedError as error:
            log.warning(
                "mail was not handed in", error=error, error_class=error.error_class, reason=str(error.retryable)
            )
            if error.retryable:
                raise _NotNow("the mail was not handed in: " + error.message) from error
            counts.failed += 1

    async def _pass_on(self, fetched: Fetched, counts: RouteCounts) -> None:
        understood = await self._parser.understand(fetched.raw)
        if (mail := understood.mail) is None:
            await self._report(understood.report, counts)
        elif mail.sender_address == self._address:
            counts.skipped += 1
        else:
            await self._ingest(to_envelope(fetched, mail, address=self._address, now=self._clock.now()), counts)

    async def _report(self, report: DeliveryReport | None, counts: RouteCounts) -> None:
        outcome = await self._bounces.record(report) if report else ReportOutcome.UNKNOWN
        counts.bounces += outcome is ReportOutcome.RECORDED
        counts.duplicates += outcome is ReportOutcome.REPEATED
        counts.skipped += outcome in (ReportOutcome.UNDECIDED, ReportOutcome.UNKNOWN)

    async def _ingest(self, envelope: IngestEnvelope, counts: RouteCounts) -> None:
        reply = await self._transport.call("switchboard", "ingest", envelope.to_wire())
        known = bool(reply.get("duplicate"))
        counts.duplicates += known
        counts.routed += not known


class _NotNow(TargetUnavailable):
    """Switchboard or the database is away; the mail waits where it is."""


def to_envelope(fetched: Fetched, mail: Mail, *, address: str, now: datetime) -> IngestEnvelope:
    """The mail as ingest.v1. `raw` has the shape that Switchboard's `source_event` reads."""
    name, sender = mail.sender
    return IngestEnvelope(
        schema_version="ingest.v1",
        source=Source(channel="email", provider="imap", endpoint_identity=address),
        event=Event(
            external_event_id=identity_of(fetched, mail),
            external_thread_id=thread_of(mail) or identity_of(fetched, mail),
            observed_at=fetched.arrived_at or now,
        ),
        sender=Sender(identity=sender[:500] or UNKNOWN_SENDER, display_name=name[:200].strip() or None),
        payload=Payload(
            raw={
                "headers": _header_values(mail),
                "author": mail.author,
                "uid": fetched.uid,
                "size_bytes": fetched.size,
            },
            normalized_text=_text(mail),
            attachments=[_attachment(a.media_type, a.size_bytes, a.filename) for a in mail.attachments],
        ),
    )


def identity_of(fetched: Fetched, mail: Mail) -> str:
    """The Message-ID; a mail without one is known by its bytes."""
    named = message_ids(mail.header("Message-ID"))
    return named[0] if named else f"<{sha256(fetched.raw).hexdigest()[:40]}@no-message-id.invalid>"


def thread_of(mail: Mail) -> str | None:
    """The first mail of the conversation."""
    earlier = message_ids(mail.header("References")) or message_ids(mail.header("In-Reply-To"))
    return earlier[0] if earlier else None


def _header_values(mail: Mail) -> dict[str, Any]:
    return {name: values[0] if len(values) == 1 else list(values) for name, values in mail.headers.items()}


def _text(mail: Mail) -> str:
    subject, body = mail.header("Subject") or "", mail.text.strip()
    return "\n\n".join(part for part in (subject, body) if part.strip()) or NO_TEXT


def _attachment(media_type: str, size: int, filename: str | None) -> Attachment:
    return Attachment(media_type=media_type, size_bytes=size, filename=(filename or "").strip() or None)
