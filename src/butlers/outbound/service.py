"""The online way: one message to a handful of people, decided and scheduled in one transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from butlers.contracts.envelope import invalid
from butlers.outbound import SCHEMA
from butlers.outbound.documents import (
    MessageDocument,
    PreferenceDocument,
    SystemDefaultsDocument,
    parse_document,
    read_defaults,
    read_preferences,
)
from butlers.outbound.planning import Circumstances, check_permission_name, plan
from butlers.outbound.values import Blocked, BlockedReason, Outcome, Queued, Recipient, dedupe_key
from butlers.storage.database import Database, Executor
from butlers.storage.queries import Queries

SYSTEM_SCOPE = "system"


def organization_scope(organization_id: str) -> str:
    return f"organization:{organization_id}"


def message_turn(message_id: UUID) -> str:
    """Names the lock of whoever decides for a message: two at once would both decide for the same people."""
    return f"outbound message {message_id}"


def sender_turn(sender_id: str) -> str:
    """Names the lock of whoever books a sender's minutes: two at once would both take the last place of one."""
    return f"outbound sender {sender_id}"


def stored_form(document: MessageDocument) -> str:
    """A message as it is kept: the same whether its recipients came with it or from a file."""
    return document.model_dump_json(by_alias=True, exclude_none=True, exclude={"recipient_ids"})


class OutboundStore:
    """Reads and writes what the decisions go by, and what they came to."""

    def __init__(self, database: Database, *, schema: str = SCHEMA) -> None:
        self._database = database
        self._queries = Queries.load("butlers.outbound", schema=schema)

    async def grant(self, subject_id: str, permission: str, *, now: datetime) -> None:
        await self._database.execute(self._queries.grant_permission, subject_id, check_permission_name(permission), now)

    async def revoke(self, subject_id: str, permission: str) -> None:
        await self._database.execute(self._queries.revoke_permission, subject_id, permission)

    async def set_preferences(self, subject_id: str, document: str, *, now: datetime) -> None:
        parse_document(PreferenceDocument, document, kind="preferences")
        await self._database.execute(self._queries.set_preferences, subject_id, document, now)

    async def set_organization_defaults(self, organization_id: str, document: str, *, now: datetime) -> None:
        parse_document(PreferenceDocument, document, kind="defaults")
        scope = organization_scope(organization_id)
        await self._database.execute(self._queries.set_defaults, scope, document, now)

    async def set_system_defaults(self, document: str, *, now: datetime) -> None:
        parse_document(SystemDefaultsDocument, document, kind="defaults")
        await self._database.execute(self._queries.set_defaults, SYSTEM_SCOPE, document, now)

    async def circumstances(
        self, connection: Executor, document: MessageDocument, *, now: datetime, horizon: datetime
    ) -> Circumstances:
        message = document.message()
        scope = organization_scope(message.organization_id or "")
        rows = await connection.fetch(self._queries.defaults_of, [SYSTEM_SCOPE, scope])
        texts = {row["scope"]: row["document"] for row in rows}
        permissions = await self._permissions(connection, [message.sender_id])
        return Circumstances(
            message=message,
            now=now,
            horizon=horizon,
            sender_permissions=permissions.get(message.sender_id, frozenset()),
            organization=read_preferences(texts.get(scope)),
            system=read_defaults(texts.get(SYSTEM_SCOPE)),
        )

    async def recipients(self, connection: Executor, ids: Sequence[str]) -> tuple[Recipient, ...]:
        """As stored, in the order asked for; whoever is not known has neither preferences nor permissions."""
        rows = await connection.fetch(self._queries.preferences_of, ids)
        documents = {row["subject_id"]: row["document"] for row in rows}
        permissions = await self._permissions(connection, ids)
        return tuple(
            Recipient(id=one, preferences=documents.get(one), permissions=permissions.get(one, frozenset()))
            for one in ids
        )

    async def _permissions(self, connection: Executor, ids: Sequence[str]) -> Mapping[str, frozenset[str]]:
        rows = await connection.fetch(self._queries.permissions_of, ids)
        return {row["subject_id"]: frozenset(row["permissions"]) for row in rows}

    async def take_turn(self, connection: Executor, document: MessageDocument) -> None:
        """Wait for the message's and the sender's turn, and keep both for this transaction.

        The message's first: whoever waits for a long load of one message must not hold up the sender's other ones.
        """
        for turn in (message_turn(document.id), sender_turn(document.sender_id)):
            await connection.execute(self._queries.take_turn, turn)

    async def booked(self, connection: Executor, sender_id: str, *, since: datetime) -> Mapping[datetime, int]:
        """What the sender has scheduled, by minute."""
        rows = await connection.fetch(self._queries.booked_minutes, sender_id, since)
        return {row["minute"]: row["messages"] for row in rows}

    async def keep_message(self, connection: Executor, document: MessageDocument, *, now: datetime) -> bool:
        """Whether it is new; an id that stands for another message is refused."""
        text = stored_form(document)
        new = await connection.fetchval(self._queries.insert_message, document.id, document.sender_id, text, now)
        if new is None and not await connection.fetchval(self._queries.is_same_message, document.id, text):
            raise invalid("id", "was used for another message")
        return new is not None

    async def keep_outcomes(
        self, connection: Executor, document: MessageDocument, outcomes: Sequence[Outcome], *, now: datetime
    ) -> None:
        queued = [each for each in outcomes if isinstance(each, Queued)]
        blocked = [each for each in outcomes if isinstance(each, Blocked)]
        await connection.execute(
            self._queries.insert_scheduled,
            document.id,
            document.sender_id,
            document.priority.value,
            now,
            [dedupe_key(document.id, each.recipient_id) for each in queued],
            [each.recipient_id for each in queued],
            [each.channel for each in queued],
            [each.scheduled_at for each in queued],
        )
        await connection.execute(
            self._queries.insert_blocked,
            document.id,
            now,
            [each.recipient_id for each in blocked],
            [each.reason.value for each in blocked],
            [each.detail for each in blocked],
        )

    async def known_outcomes(self, connection: Executor, message_id: UUID, ids: Sequence[str]) -> dict[str, Outcome]:
        queued = await connection.fetch(self._queries.scheduled_of, message_id, ids)
        blocked = await connection.fetch(self._queries.blocked_of, message_id, ids)
        return {row["recipient_id"]: Queued(**dict(row)) for row in queued} | {
            row["recipient_id"]: Blocked(**dict(row) | {"reason": BlockedReason(row["reason"])}) for row in blocked
        }


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
        document = parse_document(MessageDocument, data, kind="message")
        if not document.recipient_ids:
            raise invalid("recipient_ids", "must name at least one recipient")
        now = now.astimezone(UTC)
        async with self._database.transaction() as connection:
            # Before anything is read: what is known must not become more while this waits.
            await self._store.take_turn(connection, document)
            is_new = await self._store.keep_message(connection, document, now=now)
            known = {} if is_new else await self._store.known_outcomes(connection, document.id, document.recipient_ids)
            undecided = [one for one in document.recipient_ids if one not in known]
            decided = await self._decide(connection, document, undecided, now) if undecided else ()
            await self._store.keep_outcomes(connection, document, decided, now=now)
        by_recipient = known | {outcome.recipient_id: outcome for outcome in decided}
        outcomes = [by_recipient[one] for one in document.recipient_ids]
        return SendResult(
            message_id=document.id,
            queued=tuple(each for each in outcomes if isinstance(each, Queued)),
            blocked=tuple(each for each in outcomes if isinstance(each, Blocked)),
        )

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
