"""The online way: one message to a handful of people, decided and scheduled in one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from butlers.contracts.envelope import invalid
from butlers.outbound.documents import MessageDocument, parse_document
from butlers.outbound.planning import plan, whoever_is_blocked, whoever_is_queued
from butlers.outbound.store import OutboundStore
from butlers.outbound.values import Blocked, Outcome, Queued
from butlers.storage.database import Database, Executor

HORIZON = timedelta(days=7)  # how far ahead a message may be scheduled


@dataclass(frozen=True, slots=True, kw_only=True)
class SendResult:
    message_id: UUID
    queued: tuple[Queued, ...]
    blocked: tuple[Blocked, ...]

    def to_wire(self) -> dict[str, Any]:
        return {
            "message_id": str(self.message_id),
            "queued": [
                {"recipient_id": q.recipient_id, "channel": q.channel, "scheduled_at": q.scheduled_at.isoformat()}
                for q in self.queued
            ],
            "blocked": [
                {"recipient_id": b.recipient_id, "reason": b.reason.value, "detail": b.detail} for b in self.blocked
            ],
        }


class MessageDeliveryService:
    """Takes a message, decides for each recipient, and schedules what may go."""

    def __init__(self, *, database: Database, store: OutboundStore, horizon: timedelta = HORIZON) -> None:
        self._database = database
        self._store = store
        self._horizon = horizon

    async def send_message(self, data: str | bytes, *, now: datetime) -> SendResult:
        """Decide and schedule; a message that is known gets its first answer for whom it was decided before."""
        document = _checked(parse_document(MessageDocument, data, kind="message"))
        now = now.astimezone(UTC)
        async with self._database.transaction() as connection:
            # Before anything is read: what is known must not become more while this waits.
            await self._store.take_turn(connection, document)
            is_new = await self._store.keep_message(connection, document, now=now)
            known = {} if is_new else await self._known(connection, document)
            undecided = [one for one in document.recipient_ids if one not in known]
            decided = await self._decide(connection, document, undecided, now) if undecided else ()
            await self._store.keep_outcomes(connection, document, decided, now=now)
        by_recipient = known | {outcome.recipient_id: outcome for outcome in decided}
        return _result(document.id, [by_recipient[one] for one in document.recipient_ids])

    async def _known(self, connection: Executor, document: MessageDocument) -> dict[str, Outcome]:
        return dict(await self._store.known_outcomes(connection, document.id, document.recipient_ids))

    async def _decide(
        self, connection: Executor, document: MessageDocument, ids: Sequence[str], now: datetime
    ) -> tuple[Outcome, ...]:
        horizon = now + self._horizon
        circumstances = await self._store.circumstances(connection, document, now=now, horizon=horizon)
        recipients = await self._store.recipients(connection, ids)
        booked = await self._store.booked(connection, document.sender_id, since=start_of_day(now))
        return plan(recipients, circumstances, booked=booked)


def start_of_day(moment: datetime) -> datetime:
    """In UTC: what was scheduled earlier counts against none of the limits that still hold."""
    return moment.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)


def _checked(document: MessageDocument) -> MessageDocument:
    if not document.recipient_ids:
        raise invalid("recipient_ids", "must name at least one recipient")
    return document


def _result(message_id: UUID, outcomes: Sequence[Outcome]) -> SendResult:
    return SendResult(message_id=message_id, queued=whoever_is_queued(outcomes), blocked=whoever_is_blocked(outcomes))
