"""Looks through what was routed to the relationship butler, beside the path of the message and never in its way.

    offer(message)   only puts it on a list and wakes the loop: it cannot fail and waits for nothing
    run_once         read: what was offered; now and then also what a crash or a full list left out -> signals -> queue
                     dispatch: what is confirmed -> the butler's tool `relationship.record`, by a key of its own
                               -> recorded | refused for good: the end | away: later
                     expire: what nobody decided in time

The tables are the record: a second look at a request finds the line of the first.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from butlers.butler.transport import Transport
from butlers.clock import Clock
from butlers.errors import ClassifiedError, TimeoutExceeded
from butlers.storage.database import Record
from butlers.switchboard.extraction import local
from butlers.switchboard.extraction.model import ModelExtractor
from butlers.switchboard.extraction.queue import ExtractionQueue, Told, told_by
from butlers.switchboard.extraction.signals import Extraction
from butlers.switchboard.inbox import ClaimedMessage
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

    def wake(self) -> None:
        """Something is to be dispatched."""
        self._wake.set()

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
        try:
            await self._call(arguments)
        except ClassifiedError as error:
            log.warning(
                "extraction was not recorded", request_id=row["request_id"], error=error, error_class=error.error_class
            )
            await self._failed(row, error)
        else:
            await self.queue.dispatched(row["id"], RECIPIENT)

    async def _failed(self, row: Record, error: ClassifiedError) -> None:
        """What is refused for good would be refused again; it stays on record."""
        if error.retryable:
            await self.queue.put_off(row["id"], RECIPIENT, seconds=pause_after(row["attempts"]))
        else:
            await self.queue.refused(row["id"], RECIPIENT)

    async def _call(self, arguments: dict[str, object]) -> None:
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                await self.transport.call(RECIPIENT, RECORD_TOOL, arguments)
        except TimeoutError:
            raise TimeoutExceeded(f"{RECIPIENT} gave no answer within {CALL_TIMEOUT_S:g} s") from None


def pause_after(attempts: int) -> float:
    """Seconds until the next try."""
    return min(FIRST_PAUSE_S * 2.0 ** min(attempts, MOST_DOUBLINGS), LONGEST_PAUSE_S)
