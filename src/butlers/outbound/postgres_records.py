"""The records in PostgreSQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from pydantic_core import to_json

from butlers.contracts.envelope import invalid
from butlers.contracts.message_state import ENDED, MessageState
from butlers.outbound import SCHEMA
from butlers.outbound.documents import MessageDocument, parse_document
from butlers.outbound.records import AttemptEnd, Decide, Work, attempt_moment, check_transition, is_paced, stored_form
from butlers.outbound.throttle import LONGEST, Throttling
from butlers.outbound.values import Blocked, BlockedReason, Outcome, Queued, dedupe_key, dedupe_keys
from butlers.storage.database import Database, Executor, Record
from butlers.storage.queries import Queries, fill_schema

_COLUMNS = frozenset(
    {
        "channel",
        "scheduled_at",
        "detail",
        "reason",
        "attempts",
        "sends",
        "failed_channels",
        "delivery_id",
        "digest_id",
        "waits_for",
        "repeats",
        "acknowledged_at",
    }
)


def message_turn(message_id: UUID) -> str:
    """Names the lock of whoever decides for a message: two at once would both decide for the same people."""
    return f"outbound message {message_id}"


def sender_turn(sender_id: str) -> str:
    """Names the lock of whoever books a sender's minutes: two at once would both take the last place of one."""
    return f"outbound sender {sender_id}"


def recipient_turn(recipient_id: str) -> str:
    """Names the lock of whoever begins an attempt for a recipient: two at once would both take the last place."""
    return f"outbound recipient {recipient_id}"


def start_of_day(moment: datetime) -> datetime:
    """In UTC: what was scheduled earlier counts against none of the limits that still hold."""
    return moment.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)


class PostgresRecords:
    def __init__(self, database: Database, *, schema: str = SCHEMA) -> None:
        self._database = database
        self._schema = schema
        self._queries = Queries.load("butlers.outbound.postgres_records", schema=schema)

    async def accept(
        self, document: MessageDocument, ids: Sequence[str], decide: Decide, *, now: datetime
    ) -> dict[str, Outcome]:
        async with self._database.transaction() as connection:
            is_new = await self._keep_message(connection, document, now)
            known = {} if is_new else await self._known(connection, document, ids)
            undecided = [one for one in ids if one not in known]
            if undecided:
                booked = await self._booked(connection, document, now)
                decided = decide(undecided, booked)
                await self._keep_outcomes(connection, document, decided, now)
                known |= {outcome.recipient_id: outcome for outcome in decided}
        return known

    async def _keep_message(self, connection: Executor, document: MessageDocument, now: datetime) -> bool:
        """Whether it is new. Whoever else decides for the same message waits until this transaction ends."""
        text = stored_form(document)
        values = (document.id, document.sender_id, text, now, document.conversation_id, document.event)
        await connection.execute(self._queries.take_turn, message_turn(document.id))
        if await connection.fetchval(self._queries.insert_message, *values) is not None:
            return True
        if not await connection.fetchval(self._queries.is_same_message, document.id, text):
            raise invalid("id", "was used for another message")
        return False

    async def _known(self, connection: Executor, document: MessageDocument, ids: Sequence[str]) -> dict[str, Outcome]:
        queued = await connection.fetch(self._queries.scheduled_of, document.id, ids)
        blocked = await connection.fetch(self._queries.blocked_of, document.id, ids)
        return {row["recipient_id"]: Queued(**dict(row)) for row in queued} | {
            row["recipient_id"]: Blocked(**dict(row) | {"reason": BlockedReason(row["reason"])}) for row in blocked
        }

    async def _booked(self, connection: Executor, document: MessageDocument, now: datetime) -> Mapping[datetime, int]:
        """What the sender has scheduled, by minute; nothing is read where nothing limits it."""
        if not is_paced(document):
            return {}
        await connection.execute(self._queries.take_turn, sender_turn(document.sender_id))
        return await self.booked(document, now=now, connection=connection)

    async def booked(
        self, document: MessageDocument, *, now: datetime, connection: Executor | None = None
    ) -> Mapping[datetime, int]:
        values = (document.sender_id, start_of_day(now))
        rows = await (connection or self._database).fetch(self._queries.booked_minutes, *values)
        return {row["minute"]: row["messages"] for row in rows}

    async def _keep_outcomes(
        self, connection: Executor, document: MessageDocument, outcomes: Sequence[Outcome], now: datetime
    ) -> None:
        queued = [each for each in outcomes if isinstance(each, Queued)]
        blocked = [each for each in outcomes if isinstance(each, Blocked)]
        if queued:
            await connection.execute(
                self._queries.insert_scheduled,
                document.id,
                document.sender_id,
                document.priority.value,
                now,
                list(dedupe_keys(document.id, (each.recipient_id for each in queued)).values()),
                [each.recipient_id for each in queued],
                [each.channel for each in queued],
                [each.scheduled_at for each in queued],
                [each.detail for each in queued],
                "" if is_paced(document) else "quiet",
            )
        if blocked:
            await connection.execute(
                self._queries.insert_blocked,
                document.id,
                now,
                [each.recipient_id for each in blocked],
                [each.reason.value for each in blocked],
                [each.detail for each in blocked],
            )

    async def planned(self, *, before: datetime, limit: int) -> list[Work]:
        return [_work(row) for row in await self._database.fetch(self._queries.planned, before, limit)]

    async def overdue(self, *, untouched_since: datetime, limit: int) -> list[Work]:
        return [_work(row) for row in await self._database.fetch(self._queries.overdue, untouched_since, limit)]

    async def in_queue(self, *, after: str, limit: int) -> list[Work]:
        """What has an entry in the queue, in the order of the keys."""
        return [_work(row) for row in await self._database.fetch(self._queries.in_queue, after, limit)]

    async def mark_queued(self, keys: Sequence[str], *, now: datetime) -> None:
        await self._database.execute(self._queries.mark_queued, keys, now)

    async def load(self, keys: Sequence[str]) -> dict[str, Work]:
        return {row["dedupe_key"]: _work(row) for row in await self._database.fetch(self._queries.work_of, keys)}

    async def sent_times(self, recipient_id: str, channel: str, *, since: datetime) -> list[datetime]:
        rows = await self._database.fetch(self._queries.sent_times, recipient_id, channel, since)
        return [row["started_at"] for row in rows]

    async def begin_attempt(
        self, work: Work, channel: str, throttling: Throttling, *, now: datetime
    ) -> Work | datetime | None:
        async with self._database.transaction() as connection:
            await connection.execute(self._queries.take_turn, recipient_turn(work.recipient_id))
            rows = await connection.fetch(self._queries.sent_times, work.recipient_id, channel, now - LONGEST)
            sent = [row["started_at"] for row in rows]
            moment = attempt_moment(sent, now)
            free = throttling.next_free(sent, moment)
            if free > moment:
                return free
            changes = {"channel": channel, "sends": work.sends + 1, "waits_for": ""}
            moved = await self._move(connection, work, MessageState.SENDING, now, changes)
            if moved is not None:
                values = (work.key, moved.sends, work.recipient_id, channel, moment)
                await connection.execute(self._queries.insert_attempt, *values)
            return moved

    async def throttled_times(self, work: Work, channel: str) -> list[datetime]:
        rows = await self._database.fetch(self._queries.throttled_times, work.recipient_id, channel, work.key)
        return [row["scheduled_at"] for row in rows]

    async def end_attempt(self, work: Work, end: AttemptEnd, *, now: datetime) -> None:
        values = (end.outcome, end.error_class, end.error, end.delivery_id)
        await self._database.execute(self._queries.end_attempt, work.key, work.sends, now, *values)

    async def move(self, work: Work, to: MessageState, *, now: datetime, **changes: Any) -> Work | None:
        async with self._database.transaction() as connection:
            return await self._move(connection, work, to, now, changes)

    async def _move(
        self, connection: Executor, work: Work, to: MessageState, now: datetime, changes: Mapping[str, Any]
    ) -> Work | None:
        check_transition(work, to)
        if unknown := set(changes) - _COLUMNS:
            raise ValueError(f"these columns cannot be changed: {', '.join(sorted(unknown))}")
        assigned = "".join(f", {column} = ${number}" for number, column in enumerate(changes, 6))
        sql = fill_schema(
            "/* move */ UPDATE {schema}.scheduled_messages AS work SET state = $3, updated_at = $4, ended_at = $5"
            f"{assigned} FROM {{schema}}.messages AS message"
            " WHERE work.dedupe_key = $1 AND work.state = $2 AND message.id = work.message_id"
            " RETURNING work.*, message.document",
            self._schema,
        )
        ended = now if to in ENDED else None
        row = await connection.fetchrow(sql, work.key, work.state.value, to.value, now, ended, *changes.values())
        if row is None:
            return None
        moved = _work(row)
        await connection.execute(self._queries.insert_event, work.key, to.value, moved.channel, moved.detail, now)
        return moved

    async def join_digest(self, work: Work, digest: MessageDocument, *, due: datetime, now: datetime) -> bool:
        key = dedupe_key(digest.id, work.recipient_id)
        message = (digest.id, digest.sender_id, stored_form(digest), now, digest.conversation_id, digest.event)
        row = (key, digest.id, work.recipient_id, digest.sender_id, work.channel, due, digest.priority.value, now)
        changes = {"digest_id": digest.id, "detail": f"digest {digest.id}"}
        with suppress(_NotOpen):
            async with self._database.transaction() as connection:
                await connection.execute(self._queries.insert_message, *message)
                await connection.execute(self._queries.insert_digest, *row)
                state = await connection.fetchval(self._queries.lock_digest, key)
                if state not in (MessageState.PLANNED, MessageState.QUEUED):
                    return False
                if await self._move(connection, work, MessageState.DIGESTED, now, changes) is None:
                    raise _NotOpen  # a digest must not stay behind without a message
        return True

    async def members(self, digest_id: UUID) -> list[Work]:
        return [_work(row) for row in await self._database.fetch(self._queries.members, digest_id)]

    async def held(self, recipient_id: str, *, now: datetime) -> list[str]:
        return [row["dedupe_key"] for row in await self._database.fetch(self._queries.held, recipient_id, now)]

    async def acknowledge(
        self, recipient_id: str, message_id: UUID | None, *, now: datetime, before: datetime | None = None
    ) -> list[str]:
        rows = await self._database.fetch(self._queries.acknowledge, recipient_id, message_id, now, before)
        return [row["dedupe_key"] for row in rows]

    async def cancel(
        self, message_id: UUID, recipient_id: str | None, *, detail: str, now: datetime, limit: int
    ) -> list[str]:
        """Withdraw a message from up to `limit` recipients; the keys of those whom it had not left for."""
        rows = await self._database.fetch(self._queries.cancel, message_id, recipient_id, detail, now, limit)
        return [row["dedupe_key"] for row in rows]

    async def stored_message(self, message_id: UUID) -> MessageDocument | None:
        """The message as it was accepted, without its recipients."""
        document = await self._database.fetchval(self._queries.stored_message, message_id)
        return _document(document) if document is not None else None


class _NotOpen(Exception):
    """The message has left the state in which it was looked at."""


def _work(row: Record) -> Work:
    return Work(
        key=row["dedupe_key"],
        message_id=row["message_id"],
        recipient_id=row["recipient_id"],
        channel=row["channel"],
        scheduled_at=row["scheduled_at"],
        state=MessageState(row["state"]),
        document=_document(row["document"]),
        created_at=row["created_at"],
        detail=row["detail"],
        reason=row["reason"],
        attempts=row["attempts"],
        sends=row["sends"],
        failed_channels=tuple(row["failed_channels"]),
        delivery_id=row["delivery_id"],
        digest_id=row["digest_id"],
        is_digest=row["is_digest"],
        waits_for=row["waits_for"],
        repeats=row["repeats"],
        acknowledged_at=row["acknowledged_at"],
        ended_at=row["ended_at"],
    )


def _document(stored: Mapping[str, Any]) -> MessageDocument:
    return parse_document(MessageDocument, to_json(stored), kind="message")
