"""Looks through what was routed to the relationship butler, beside the path of the message and never in its way.

    offer(message)   only puts it on a list and wakes the loop: it cannot fail and waits for nothing
    run_once         read: what was offered; now and then also what a crash or a full list left out -> signals -> queue
                     dispatch: what is confirmed -> the butler's tool `relationship.record`, by a key of its own
                               -> recorded | refused for good: the end | away: later
                     expire: what no person decided in time

The tables are the record: a second look at a request finds the line of the first.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from butlers.butler.core_tools import wire
from butlers.butler.identity import Caller
from butlers.butler.toolbox import Tool
from butlers.butler.transport import Transport
from butlers.clock import Clock
from butlers.contracts.envelope import invalid
from butlers.errors import ClassifiedError, NotFound, TimeoutExceeded
from butlers.operations import routing as operations
from butlers.operations.routing import DecideArguments, ListArguments
from butlers.storage.database import Database, Executor, Record
from butlers.storage.queries import Queries
from butlers.switchboard.extraction import local
from butlers.switchboard.extraction.signals import Extraction, ModelExtractor, preview_of
from butlers.switchboard.requests.inbox import ClaimedMessage
from butlers.switchboard.routing.decision import Decision
from butlers.telemetry import get_logger

log = get_logger("butlers.extraction")

RECIPIENT = "relationship"
RECORD_TOOL = "relationship.record"
LOOK_BACK = timedelta(hours=1)  # of a look for what was left out
CATCH_UP = timedelta(minutes=5)  # between such looks
LOOK_EVERY_S = 30.0
MOST_OFFERED = 1_000
BATCH = 50
CALL_TIMEOUT_S = 30.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 2.0, 600.0
MOST_DOUBLINGS = 10  # beyond the longest pause; a number of tries has no bound, and a float has
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
        """All that one request told, once; false when another process was faster."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Extractor:
    queue: ExtractionQueue
    transport: Transport
    clock: Clock
    model: ModelExtractor | None = None  # None: rules alone
    _wake: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _offered: deque[Told] = field(default_factory=lambda: deque(maxlen=MOST_OFFERED), init=False)
    _caught_up: list[datetime] = field(default_factory=list, init=False)

    def offer(self, message: ClaimedMessage, decision: Decision) -> None:
        """A request that was decided like this has been dealt with."""
        if any(segment.butler == RECIPIENT for segment in decision.segments):
            self._offered.append(told_by(message, decision, RECIPIENT))
            self._wake.set()

    def tools(self) -> list[Tool]:
        return [
            Tool.of(operations.EXTRACTIONS, self._list),
            Tool.of(operations.CONFIRM, lambda caller, given: self._decide(caller, given, "confirmed")),
            Tool.of(operations.DISMISS, lambda caller, given: self._decide(caller, given, "dismissed")),
        ]

    async def _list(self, _caller: Caller, given: ListArguments) -> dict[str, Any]:
        status = None if given.status == "any" else given.status
        return wire(await self.queue.list(status=status, before=given.cursor, limit=given.limit))

    async def _decide(self, caller: Caller, given: DecideArguments, status: str) -> dict[str, Any]:
        decided = await self.queue.decide(given.extraction_id, status, by=caller.name)
        self._wake.set()  # it may have to be dispatched
        return wire(decided)

    async def run(self) -> None:
        """Look whenever something was offered, and every now and then."""
        while True:
            self._wake.clear()
            try:
                more = await self.run_once()
            except ClassifiedError as error:
                log.warning("extraction failed", error=error, error_class=error.error_class)
                more = False
            if not more:
                await self._woken()

    async def run_once(self) -> bool:
        """Whether there may be more to do at once."""
        await self._read([self._offered.popleft() for _ in range(min(BATCH, len(self._offered)))])
        if self._is_due():
            await self._read(await self.queue.unread(RECIPIENT, since=self.clock.now() - LOOK_BACK, limit=BATCH))
        confirmed = await self.queue.undispatched(limit=BATCH)
        for row in confirmed:
            await self._dispatch(row)
        await self.queue.expire()
        return bool(self._offered) or len(confirmed) == BATCH

    def _is_due(self) -> bool:
        now = self.clock.now()
        if self._caught_up and now - self._caught_up[0] < CATCH_UP:
            return False
        self._caught_up[:] = [now]
        return True

    async def _read(self, told: Iterable[Told]) -> None:
        for one in told:
            extractor, found = await self._extract(one)
            await self.queue.add(one, extractor, found)

    async def _woken(self) -> None:
        waiting = [asyncio.ensure_future(self._wake.wait()), asyncio.ensure_future(self.clock.sleep(LOOK_EVERY_S))]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waiting:
                one.cancel()

    async def _extract(self, told: Told) -> tuple[str, tuple[Extraction, ...]]:
        if self.model is not None:
            try:
                return self.model.version, await self.model.extract(told.text, told.request_id)
            except ClassifiedError as error:
                log.warning(
                    "the model took nothing out", request_id=told.request_id, error=error, error_class=error.error_class
                )
        return local.VERSION, local.extract(told.text, told.received_at.date())

    async def _dispatch(self, row: Record) -> None:
        arguments = {
            "request_id": str(row["request_id"]),
            "key": f"extraction-{row['position']}",
            "signal_type": row["signal_type"],
            "contact_hint": row["contact_hint"],
            "data": row["data"],
            "sender": row["sender"],
            "source_channel": row["source_channel"],
            "source_endpoint": row["source_endpoint"],
        }
        error: ClassifiedError
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                await self.transport.call(RECIPIENT, RECORD_TOOL, arguments)
        except TimeoutError:
            error = TimeoutExceeded(f"{RECIPIENT} gave no answer within {CALL_TIMEOUT_S:g} s")
        except ClassifiedError as failure:
            error = failure
        else:
            await self.queue.dispatched(row["id"], RECIPIENT)
            return
        log.warning(
            "extraction was not recorded", request_id=row["request_id"], error=error, error_class=error.error_class
        )
        if error.retryable:
            await self.queue.put_off(row["id"], RECIPIENT, seconds=pause_after(row["attempts"]))
        else:  # it would be refused again; it stays on record
            await self.queue.refused(row["id"], RECIPIENT)


def pause_after(attempts: int) -> float:
    """Seconds until the next try."""
    return min(FIRST_PAUSE_S * 2.0 ** min(attempts, MOST_DOUBLINGS), LONGEST_PAUSE_S)
