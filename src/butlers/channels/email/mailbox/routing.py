"""The inbox, handed on: bounce mails become receipts, everything else goes to Switchboard's ingest door.

The checkpoint moves behind a mail only after Switchboard has said that it is on disk, so a crash hands the last mail in
again and the door recognises it by its Message-ID. A mail that the door refuses for good, or that is quarantined, is
counted and passed over: it would block everything behind it.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass
from datetime import datetime
from enum import StrEnum
from functools import partial
from hashlib import sha256
from typing import Any
from uuid import UUID

from butlers.butler.transport import Transport
from butlers.channels.email.headers import message_ids
from butlers.channels.email.mailbox.batches import NewMail, Place
from butlers.channels.email.mailbox.imap import Criteria, Fetched
from butlers.channels.email.mailbox.mime import Mail
from butlers.channels.email.mailbox.reports import DeliveryReport, MailParser
from butlers.clock import Clock
from butlers.contracts.ingest import Attachment, Event, IngestEnvelope, Payload, Sender, Source
from butlers.errors import ClassifiedError, SenderRefused, TargetUnavailable, ValidationError
from butlers.isolation.isolate import IsolationFailed
from butlers.messenger.receipts import Receipt, ReceiptIntake
from butlers.storage.database import Database
from butlers.storage.queries import Queries
from butlers.telemetry import get_logger

log = get_logger("butlers.channels.email.mailbox")

NO_TEXT = "(no text)"
UNKNOWN_SENDER = "unknown"
# The server sorts out what is worth a look; the parser decides.
REPORTS = Criteria(header=("Content-Type", "multipart/report"))
MOST_AT_ONCE = 1_000


class ReportOutcome(StrEnum):
    RECORDED = "recorded"
    REPEATED = "repeated"  # it was on record already
    UNDECIDED = "undecided"  # delayed, relayed: nothing final is said
    UNKNOWN = "unknown"  # not about a delivery of ours


class Bounces:
    def __init__(self, *, database: Database, schema: str, receipts: ReceiptIntake) -> None:
        self._database = database
        self._queries = Queries.load("butlers.channels.email.mailbox", schema=schema)
        self._receipts = receipts

    async def record(self, report: DeliveryReport) -> ReportOutcome:
        if report.fate == "undecided":
            return ReportOutcome.UNDECIDED
        receipt = Receipt(
            receipt_type=report.fate,
            delivery_id=await self._unanswered(report.message_id),
            provider_delivery_id=report.message_id,
            permanent=report.recipient_gone,
            reason=f"a mail server reported {report.status}" if report.status else None,
        )
        try:
            outcome = await self._receipts.record("email", receipt)
        except ValidationError:  # no delivery of ours goes by that name
            return ReportOutcome.UNKNOWN
        return ReportOutcome.REPEATED if outcome.repeated else ReportOutcome.RECORDED

    async def _unanswered(self, message_id: str) -> UUID | None:
        """The delivery whose answer was lost: it has no receipt to be found by."""
        digest = message_id.removeprefix("<").partition("@")[0]
        found: UUID | None = await self._database.fetchval(self._queries.delivery_of_key, digest)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class BounceWatch:
    """Looks through the inbox for reports and leaves everything else alone."""

    new_mail: NewMail
    parser: MailParser
    bounces: Bounces

    async def run_once(self) -> dict[str, int]:
        """How many reports there were of each outcome. Raises when the mailbox is away; the next look finds them."""
        seen = dict.fromkeys((outcome.value for outcome in ReportOutcome), 0)

        async def handle(mail: Fetched) -> None:
            report = (await self.parser.understand(mail.raw)).report
            outcome = await self.bounces.record(report) if report else ReportOutcome.UNKNOWN
            seen[outcome.value] += 1

        await self.new_mail.read(handle, limit=MOST_AT_ONCE)
        return seen


@dataclass(slots=True, kw_only=True)
class RouteCounts:
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
        handle = partial(self._handle, counts)
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
        handle = partial(self._handle, counts)
        async with self._one_at_a_time:
            handled = await self._new_mail.retry(handle, place)
        return {"handled": handled, **asdict(counts)}

    async def _handle(self, counts: RouteCounts, fetched: Fetched) -> None:
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
            outcome = await self._bounces.record(understood.report) if understood.report else ReportOutcome.UNKNOWN
            counts.bounces += outcome is ReportOutcome.RECORDED
            counts.duplicates += outcome is ReportOutcome.REPEATED
            counts.skipped += outcome in (ReportOutcome.UNDECIDED, ReportOutcome.UNKNOWN)
        elif mail.sender_address == self._address:
            counts.skipped += 1
        else:
            envelope = to_envelope(fetched, mail, address=self._address, now=self._clock.now())
            reply = await self._transport.call("switchboard", "ingest", envelope.to_wire())
            known = bool(reply.get("duplicate"))
            counts.duplicates += known
            counts.routed += not known


class _NotNow(TargetUnavailable):
    """Switchboard or the database is away; the mail waits where it is."""


def to_envelope(fetched: Fetched, mail: Mail, *, address: str, now: datetime) -> IngestEnvelope:
    """The mail as ingest.v1. `raw` has the shape that Switchboard's `source_event` reads."""
    name, sender = mail.sender_name, mail.sender_address
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
                "headers": {key: one[0] if len(one) == 1 else list(one) for key, one in mail.headers.items()},
                "author": mail.author,
                "uid": fetched.uid,
                "size_bytes": fetched.size,
            },
            normalized_text=_text(mail),
            attachments=[
                Attachment(
                    media_type=a.media_type, size_bytes=a.size_bytes, filename=(a.filename or "").strip() or None
                )
                for a in mail.attachments
            ],
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


def _text(mail: Mail) -> str:
    subject, body = mail.header("Subject") or "", mail.text.strip()
    return "\n\n".join(part for part in (subject, body) if part.strip()) or NO_TEXT
