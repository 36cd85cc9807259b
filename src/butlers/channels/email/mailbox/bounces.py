"""Bounce mails become receipts, and dead addresses are not written to again."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID

from butlers.channels.email.mailbox.batches import NewMail
from butlers.channels.email.mailbox.imap import Criteria, Fetched
from butlers.channels.email.mailbox.parser import MailParser
from butlers.channels.email.mailbox.reports import DeliveryReport
from butlers.errors import ValidationError
from butlers.messenger.receipts import Receipt, ReceiptIntake
from butlers.storage.database import Database
from butlers.storage.queries import Queries

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
