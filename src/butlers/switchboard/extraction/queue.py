"""What was learned and what became of it, on record.

found -> confirmed (sure)    -> dispatched: the relationship butler has recorded it, or refused: it never will
      -> pending (less sure) -> confirmed | dismissed by a person, or expired after 7 days
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from butlers.clock import Clock
from butlers.contracts.envelope import invalid
from butlers.errors import NotFound
from butlers.storage.database import Database, Executor, Record
from butlers.storage.queries import Queries
from butlers.switchboard.extraction.signals import Extraction, preview_of
from butlers.switchboard.inbox import ClaimedMessage
from butlers.switchboard.routing.decision import Decision

TIME_TO_LIVE = timedelta(days=7)
RULE = "rule"
STATUSES = ("pending", "confirmed", "dismissed", "expired", "refused")


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What one request told a butler."""

    request_id: UUID
    received_at: datetime
    text: str  # the parts that went there
    sender: str
    source_channel: str
    source_endpoint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtractionQueue:
    database: Database
    queries: Queries  # of butlers.switchboard.extraction
    clock: Clock
    new_id: Callable[[], UUID]

    async def unread(self, butler: str, *, since: datetime, limit: int) -> list[Told]:
        rows = await self.database.fetch(self.queries.requests_to_read, since, butler, limit)
        return [_told(row, butler) for row in rows]

    async def add(self, told: Told, extractor: str, found: Sequence[Extraction]) -> bool:
        """All that one request told, once; false when somebody else was faster."""
        now = self.clock.now()
        async with self.database.transaction() as connection:
            claim = (told.request_id, extractor, len(found), now)
            if await connection.fetchval(self.queries.claim_run, *claim) is None:
                return False
            for position, one in enumerate(found, start=1):
                await self._add(connection, told, extractor, position, one)
        return True

    async def undispatched(self, *, limit: int) -> list[Record]:
        return await self.database.fetch(self.queries.undispatched, self.clock.now(), limit)

    async def dispatched(self, extraction_id: UUID, by: str) -> None:
        async with self.database.transaction() as connection:
            if await connection.fetchval(self.queries.mark_dispatched, extraction_id, self.clock.now()) is not None:
                await self._log(connection, extraction_id, "dispatched", by)

    async def put_off(self, extraction_id: UUID, by: str, *, seconds: float) -> None:
        async with self.database.transaction() as connection:
            not_before = self.clock.now() + timedelta(seconds=seconds)
            await connection.execute(self.queries.mark_undispatched, extraction_id, not_before)
            await self._log(connection, extraction_id, "dispatch_failed", by)

    async def refused(self, extraction_id: UUID, by: str) -> None:
        """Its butler will never record it."""
        async with self.database.transaction() as connection:
            if await connection.fetchval(self.queries.mark_refused, extraction_id) is not None:
                await self._log(connection, extraction_id, "refused", by)

    async def decide(self, extraction_id: UUID, status: str, *, by: str) -> dict[str, Any]:
        """A person's word; raises when there is nothing to decide."""
        async with self.database.transaction() as connection:
            decided = await connection.fetchval(
                self.queries.decide_extraction, extraction_id, status, by, self.clock.now()
            )
            if decided is not None:
                await self._log(connection, extraction_id, status, by)
            row = await connection.fetchrow(self.queries.get_extraction, extraction_id)
        if row is None:
            raise NotFound.of("extraction_id", "no such extraction")
        if decided is None:
            stands = "has expired" if row["status"] == "pending" else f"is {row['status']}"
            raise invalid("extraction_id", f"is not pending: it {stands}")
        return dict(row)

    async def expire(self) -> int:
        async with self.database.transaction() as connection:
            gone = await connection.fetch(self.queries.expire_extractions, self.clock.now())
            for row in gone:
                await self._log(connection, row["id"], "expired", RULE)
        return len(gone)

    async def list(self, *, status: str | None, before: UUID | None, limit: int) -> dict[str, Any]:
        rows = [dict(row) for row in await self.database.fetch(self.queries.list_extractions, status, before, limit)]
        return {"extractions": rows, "next_cursor": rows[-1]["id"] if len(rows) == limit else None}

    async def _add(self, connection: Executor, told: Told, extractor: str, position: int, one: Extraction) -> None:
        now, identity = self.clock.now(), self.new_id()
        await connection.execute(
            self.queries.add_extraction,
            identity,
            told.request_id,
            position,
            one.signal_type.value,
            one.confidence,
            one.contact_hint,
            dict(one.data),
            preview_of(told.text),
            told.sender,
            told.source_channel,
            told.source_endpoint,
            "confirmed" if one.is_high else "pending",
            RULE if one.is_high else None,
            now if one.is_high else None,
            now + TIME_TO_LIVE,
            now,
        )
        await self._log(connection, identity, "confirmed" if one.is_high else "queued", extractor)

    async def _log(self, connection: Executor, extraction_id: UUID, event: str, actor: str) -> None:
        values = (self.new_id(), extraction_id, event, actor, self.clock.now())
        await connection.execute(self.queries.log_extraction, *values)


def told_by(message: ClaimedMessage, decision: Decision, butler: str) -> Told:
    """What a message told one butler."""
    spans = [(segment.start, segment.end) for segment in decision.segments if segment.butler == butler]
    return Told(
        request_id=message.context.request_id,
        received_at=message.context.received_at,
        text="\n".join(message.text[start:end] for start, end in spans),
        sender=message.context.source_sender_identity,
        source_channel=message.context.source_channel,
        source_endpoint=message.context.source_endpoint_identity,
    )


def _told(row: Record, butler: str) -> Told:
    context: Mapping[str, Any] = row["request_context"]
    text: str = row["normalized_text"]
    segments = [segment for segment in row["routing_output"]["segments"] if segment["butler"] == butler]
    return Told(
        request_id=row["request_id"],
        received_at=row["received_at"],
        text="\n".join(text[segment["start"] : segment["end"]] for segment in segments),
        sender=context["source_sender_identity"],
        source_channel=context["source_channel"],
        source_endpoint=context["source_endpoint_identity"],
    )
