"""What a butler did, told to whoever keeps the record, at no cost to the doing.

    session or schedule ends -> report() -> bounded queue -> loop: a batch at a time -> sink

Telling is fire and forget: it never waits and never fails. When the record cannot be kept, that is logged and the
entries are gone; when they come faster than they can be kept, the newest are dropped and counted.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from butlers.butler.transport import Transport
from butlers.clock import Clock
from butlers.telemetry import get_logger

log = get_logger("butlers.activity")

CAPACITY = 2000
BATCH = 200
CLOSE_S = 5.0  # how long the last entries may take when the process stops


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """One thing that was done."""

    butler: str
    operation: str
    request_summary: Mapping[str, Any]  # ids and names, never what somebody wrote
    result: str
    error: str | None = None
    actor: str | None = None
    at: datetime


Sink = Callable[[Sequence[Activity]], Awaitable[None]]


class Report(Protocol):
    """How the parts of a butler tell what they did."""

    def __call__(
        self, operation: str, summary: Mapping[str, Any], *, result: str, error: str | None, actor: str | None = None
    ) -> None: ...


def unreported(
    operation: str, summary: Mapping[str, Any], *, result: str, error: str | None, actor: str | None = None
) -> None:
    """For whoever has nobody to tell."""


@dataclass(slots=True, kw_only=True)
class ActivityQueue:
    """Keeps what is told until the sink has taken it."""

    sink: Sink
    capacity: int = CAPACITY
    batch: int = BATCH
    _waiting: deque[Activity] = field(default_factory=deque, init=False)
    _wake: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _dropped: int = field(default=0, init=False)

    def report(self, activity: Activity) -> None:
        if len(self._waiting) >= self.capacity:
            self._dropped += 1
            return
        self._waiting.append(activity)
        self._wake.set()

    async def run(self) -> None:
        """Hand over whatever comes, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            await self.flush()

    async def flush(self) -> None:
        """Hand over all there is; what the sink does not take is gone."""
        while self._waiting:
            entries = [self._waiting.popleft() for _ in range(min(self.batch, len(self._waiting)))]
            try:
                await self.sink(entries)
            except Exception as error:
                log.warning("activity not recorded", error=error, count=len(entries))
        if self._dropped:
            log.warning("activity came too fast to be recorded", count=self._dropped)
            self._dropped = 0

    async def close(self) -> None:
        """The last entries, if somebody takes them in time."""
        try:
            async with asyncio.timeout(CLOSE_S):
                await self.flush()
        except TimeoutError:
            log.warning("activity not recorded in time", count=len(self._waiting))


class ActivityReporter:
    """A butler's own way of telling Switchboard, in this process or in another."""

    def __init__(self, *, butler: str, transport: Transport, clock: Clock) -> None:
        self._butler = butler
        self._transport = transport
        self._clock = clock
        self._queue = ActivityQueue(sink=self._send)
        self.run = self._queue.run
        self.close = self._queue.close

    def __call__(
        self, operation: str, summary: Mapping[str, Any], *, result: str, error: str | None, actor: str | None = None
    ) -> None:
        activity = Activity(
            butler=self._butler,
            operation=operation,
            request_summary=summary,
            result=result,
            error=error,
            actor=actor,
            at=self._clock.now(),
        )
        self._queue.report(activity)

    async def _send(self, entries: Sequence[Activity]) -> None:
        documents = [_wire(entry) for entry in entries]
        await self._transport.call("switchboard", "audit.record", {"entries": documents})


def _wire(entry: Activity) -> dict[str, Any]:
    document = {
        "operation": entry.operation,
        "request_summary": dict(entry.request_summary),
        "result": entry.result,
        "error": entry.error,
        "actor": entry.actor,
        "at": entry.at.isoformat(),
    }
    return {key: value for key, value in document.items() if value is not None}
