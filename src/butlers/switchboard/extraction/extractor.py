"""What is learned from messages that were dealt with, beside their path and never in its way.

MemoryCapture makes an episode of Switchboard's memory of each. Without a model no sessions leave episodes; the messages
themselves are what there is to learn from. What a crash leaves on its list is forgotten: an episode is a help, not a
record.

Extractor looks through what was routed to the relationship butler:

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
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Self
from uuid import UUID

from butlers.butler.core_tools import wire
from butlers.butler.identity import Caller
from butlers.butler.memory.episodes import Episodes, NewEpisode, importance, shortened
from butlers.butler.memory.extraction import MAX_NAME
from butlers.butler.toolbox import Tool
from butlers.butler.transport import Transport
from butlers.clock import Clock
from butlers.contracts.envelope import RequestContext, invalid
from butlers.errors import ClassifiedError, NotFound, TimeoutExceeded
from butlers.operations import routing as operations
from butlers.operations.routing import DecideArguments, ListArguments
from butlers.storage.database import Database, Executor, Record
from butlers.storage.queries import Queries
from butlers.switchboard.extraction import local
from butlers.switchboard.extraction.signals import MAX_PREVIEW, Extraction, ModelExtractor
from butlers.switchboard.requests.inbox import ClaimedMessage
from butlers.switchboard.routing.decision import Decision, Segment
from butlers.switchboard.routing.llm_answer import clean_line
from butlers.telemetry import get_logger

log = get_logger("butlers.extraction")
memory_log = get_logger("butlers.memory")

RECIPIENT = "relationship"
RECORD_TOOL = "relationship.record"
LOOK_BACK = timedelta(hours=1)  # of a look for what was left out
CATCH_UP = timedelta(minutes=5)  # between such looks
LOOK_EVERY_S = 30.0
MOST_OFFERED = 1_000  # messages that wait to be looked through, or remembered
BATCH = 50
CALL_TIMEOUT_S = 30.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 2.0, 600.0
MOST_DOUBLINGS = 10  # beyond the longest pause; a number of tries has no bound, and a float has
TIME_TO_LIVE = timedelta(days=7)
RULE = "rule"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceMessage:
    """What one request told a butler."""

    request_id: UUID
    received_at: datetime
    text: str  # the parts that went there
    sender: str
    source_channel: str
    source_endpoint: str

    @classmethod
    def by(cls, context: RequestContext, text: str, segments: Iterable[Segment]) -> Self:
        """What a message told the recipient."""
        spans = [(segment.start, segment.end) for segment in segments if segment.butler == RECIPIENT]
        return cls(
            request_id=context.request_id,
            received_at=context.received_at,
            text="\n".join(text[start:end] for start, end in spans),
            sender=context.source_sender_identity,
            source_channel=context.source_channel,
            source_endpoint=context.source_endpoint_identity,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Extractor:
    database: Database
    queries: Queries  # of butlers.switchboard.extraction
    transport: Transport
    clock: Clock
    new_id: Callable[[], UUID]
    model: ModelExtractor | None = None  # None: rules alone
    _wake: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _offered: deque[SourceMessage] = field(default_factory=lambda: deque(maxlen=MOST_OFFERED), init=False)
    _caught_up: list[datetime] = field(default_factory=list, init=False)

    def offer(self, message: ClaimedMessage, decision: Decision) -> None:
        """A request that was decided like this has been dealt with."""
        if any(segment.butler == RECIPIENT for segment in decision.segments):
            self._offered.append(SourceMessage.by(message.context, message.text, decision.segments))
            self._wake.set()

    def tools(self) -> list[Tool]:
        return [
            Tool.of(operations.EXTRACTIONS, self._list),
            Tool.of(operations.CONFIRM, lambda caller, given: self._decide(caller, given, "confirmed")),
            Tool.of(operations.DISMISS, lambda caller, given: self._decide(caller, given, "dismissed")),
        ]

    async def _list(self, _caller: Caller, given: ListArguments) -> dict[str, Any]:
        status = None if given.status == "any" else given.status
        rows = await self.database.fetch(self.queries.list_extractions, status, given.cursor, given.limit)
        cursor = rows[-1]["id"] if len(rows) == given.limit else None
        return wire({"extractions": [dict(row) for row in rows], "next_cursor": cursor})

    async def _decide(self, caller: Caller, given: DecideArguments, status: str) -> dict[str, Any]:
        """A person's word; raises when there is nothing to decide."""
        values = (given.extraction_id, status, caller.name, self.clock.now())
        async with self.database.transaction() as connection:
            decided = await connection.fetchval(self.queries.decide_extraction, *values)
            if decided is not None:
                await self._log(connection, given.extraction_id, status, caller.name)
            row = await connection.fetchrow(self.queries.get_extraction, given.extraction_id)
        if row is None:
            raise NotFound.of("extraction_id", "no such extraction")
        if decided is None:
            stands = "has expired" if row["status"] == "pending" else f"is {row['status']}"
            raise invalid("extraction_id", f"is not pending: it {stands}")
        self._wake.set()  # it may have to be dispatched
        return wire(dict(row))

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

    async def _woken(self) -> None:
        waiting = [asyncio.ensure_future(self._wake.wait()), asyncio.ensure_future(self.clock.sleep(LOOK_EVERY_S))]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waiting:
                one.cancel()

    async def run_once(self) -> bool:
        """Whether there may be more to do at once."""
        for _ in range(min(BATCH, len(self._offered))):
            await self._read(self._offered.popleft())
        now = self.clock.now()
        if not self._caught_up or now - self._caught_up[0] >= CATCH_UP:
            self._caught_up[:] = [now]
            for row in await self.database.fetch(self.queries.requests_to_read, now - LOOK_BACK, RECIPIENT, BATCH):
                context = RequestContext.model_validate(row["request_context"], strict=False)
                decision = Decision.from_wire(row["routing_output"])
                await self._read(SourceMessage.by(context, row["normalized_text"], decision.segments))
        confirmed = await self.database.fetch(self.queries.undispatched, self.clock.now(), BATCH)
        for row in confirmed:
            await self._dispatch(row)
        async with self.database.transaction() as connection:
            for row in await connection.fetch(self.queries.expire_extractions, self.clock.now()):
                await self._log(connection, row["id"], "expired", RULE)
        return bool(self._offered) or len(confirmed) == BATCH

    async def _read(self, message: SourceMessage) -> None:
        """Queue all that one request told, once: another process may have been faster."""
        extractor, found = await self._extract(message)
        async with self.database.transaction() as connection:
            claim = (message.request_id, extractor, len(found), self.clock.now())
            if await connection.fetchval(self.queries.claim_run, *claim) is not None:
                for position, one in enumerate(found, start=1):
                    await self._add(connection, message, extractor, position, one)

    async def _extract(self, message: SourceMessage) -> tuple[str, tuple[Extraction, ...]]:
        if self.model is not None:
            try:
                return self.model.version, await self.model.extract(message.text, message.request_id)
            except ClassifiedError as error:
                log.warning(
                    "the model took nothing out",
                    request_id=message.request_id,
                    error=error,
                    error_class=error.error_class,
                )
        return local.VERSION, local.extract(message.text, message.received_at.date())

    async def _add(
        self, connection: Executor, message: SourceMessage, extractor: str, position: int, one: Extraction
    ) -> None:
        now, identity = self.clock.now(), self.new_id()
        await connection.execute(
            self.queries.add_extraction,
            identity,
            message.request_id,
            position,
            one.signal_type.value,
            one.confidence,
            one.contact_hint,
            dict(one.data),
            clean_line(message.text, MAX_PREVIEW),
            message.sender,
            message.source_channel,
            message.source_endpoint,
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
        error: ClassifiedError | None = None
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                await self.transport.call(RECIPIENT, RECORD_TOOL, arguments)
        except TimeoutError:
            error = TimeoutExceeded(f"{RECIPIENT} gave no answer within {CALL_TIMEOUT_S:g} s")
        except ClassifiedError as failure:
            error = failure
        if error is not None:
            log.warning(
                "extraction was not recorded", request_id=row["request_id"], error=error, error_class=error.error_class
            )
        async with self.database.transaction() as connection:
            if error is None:
                event = "dispatched"
                changed = await connection.fetchval(self.queries.mark_dispatched, row["id"], self.clock.now())
            elif error.retryable:
                event, pause = "dispatch_failed", timedelta(seconds=pause_after(row["attempts"]))
                changed = await connection.execute(self.queries.mark_undispatched, row["id"], self.clock.now() + pause)
            else:  # it would be refused again; it stays on record
                event = "refused"
                changed = await connection.fetchval(self.queries.mark_refused, row["id"])
            if changed is not None:
                await self._log(connection, row["id"], event, RECIPIENT)


def pause_after(attempts: int) -> float:
    """Seconds until the next try."""
    return min(FIRST_PAUSE_S * 2.0 ** min(attempts, MOST_DOUBLINGS), LONGEST_PAUSE_S)


class MemoryCapture:
    def __init__(self, *, episodes: Episodes, clock: Clock) -> None:
        self._episodes = episodes
        self._clock = clock
        self._offered: deque[NewEpisode] = deque(maxlen=MOST_OFFERED)
        self._wake = asyncio.Event()

    def offer(self, message: ClaimedMessage, _decision: Decision) -> None:
        """A message that was dealt with; one that an operator put back was remembered the first time."""
        if message.override is not None:
            return
        speaker = message.context.speaker
        self._offered.append(
            NewEpisode(
                source="message",
                content=shortened(message.text),
                speaker=shortened(speaker, MAX_NAME),
                importance=importance(message.text, speaker),
                request_id=message.context.request_id,
            )
        )
        self._wake.set()

    async def run(self) -> None:
        """Write down what was offered until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._offered:
                try:
                    await self._episodes.store(self._offered.popleft(), now=self._clock.now())
                except Exception as error:
                    memory_log.warning("an episode was not kept", error=error)
