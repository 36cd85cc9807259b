"""The courier as one thing: queues, triggers, views, limits and the event log, for every way in."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from butlers.clock import Clock
from butlers.courier.config import CourierConfig
from butlers.courier.core import Enqueued
from butlers.courier.envelope import check_depth, check_envelope
from butlers.courier.errors import CourierError, RateLimited
from butlers.courier.event_log import EventLog
from butlers.courier.group import Observe
from butlers.courier.journal import Journal
from butlers.courier.journal_stores import open_store
from butlers.courier.queue import Inserted, MemoryQueue, Queue, both
from butlers.courier.redis_queue import RedisQueue
from butlers.courier.triggers import TriggerEngine
from butlers.courier.views import Views
from butlers.ids import Uuid7Factory
from butlers.reliability.token_bucket import Bucket, Refused, per_minute, take


@dataclass(slots=True)
class Rate:
    """So many messages a minute, with a burst of as many."""

    per_minute: int
    clock: Clock
    _bucket: Bucket | None = None

    def spend(self, what: str) -> None:
        now = self.clock.now()
        taken = take(self._bucket or per_minute(self.per_minute, now), 1.0, now)
        self._bucket = taken.bucket
        if isinstance(taken, Refused):
            raise RateLimited(f"{what} may send {self.per_minute} messages a minute", retry_after=taken.retry_after)


class Courier:
    """Belongs to one event loop. `running` gives one with its queue."""

    def __init__(
        self,
        config: CourierConfig,
        queue: Queue,
        views: Views,
        *,
        clock: Clock,
        epoch: str,
        observe: Observe | None = None,
    ) -> None:
        self.config = config
        self.queue = queue
        self.views = views
        self.clock = clock
        self.epoch = epoch  # of this run: leases and places of views belong to it
        self.triggers = TriggerEngine(config.triggers)
        self._observe = observe or (lambda _event, _stream, _id, _details: None)
        self._rates: dict[str, Rate] = {}  # of streams that have one
        self._limits_rates = config.streams.limits_rates

    async def enqueue(self, document: Any, *, to: str | None = None, nul_free: bool = False) -> Enqueued:
        """Accept an envelope, and what the triggers make of it. Raises `CourierError`; then nothing was accepted.
        `nul_free`: the caller knows that the document holds no NUL.
        """
        envelope = check_envelope(document, to=to, nul_free=nul_free)
        self._check_rate(envelope["to"])
        return await self._accept(envelope, path=())

    def explain(self, document: Any) -> list[dict[str, Any]]:
        return self.triggers.explain(check_envelope(document), self.clock.monotonic())

    async def _accept(self, envelope: dict[str, Any], path: tuple[str, ...]) -> Enqueued:
        enriched = self.triggers.enrich(envelope, path)
        if path or enriched is not envelope:
            check_depth(enriched)  # triggers have made it
        envelope = enriched
        result = await self.queue.enqueue(envelope["to"], envelope, partition=envelope.get("partitionKey"))
        if result.duplicate:
            return result
        for fired in self.triggers.fire(envelope, self.clock.monotonic(), path):
            details = {"rule": fired.rule, "to": fired.envelope["to"]}
            try:
                await self._accept(check_envelope(fired.envelope), (*path, fired.rule))
                self._observe("trigger.run", envelope["to"], envelope["id"], details)
            except CourierError as error:  # the message itself is accepted
                self._observe("trigger.fail", envelope["to"], envelope["id"], details | {"code": error.code})
        return result

    def _check_rate(self, stream: str) -> None:
        if not self._limits_rates:
            return
        if stream not in self._rates:
            if (per_minute := self.config.streams.rate_of(stream)) is None:
                return
            if len(self._rates) >= self.config.streams.most:
                self._rates.clear()
            self._rates[stream] = Rate(per_minute, self.clock)
        self._rates[stream].spend(stream)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listeners:
    """Who else is told what happens here."""

    inserted: Inserted | None = None  # every message that is accepted, by whichever gateway
    observe: Observe | None = None  # what happens to messages at this gateway


@asynccontextmanager
async def running(config: CourierConfig, *, clock: Clock, listeners: Listeners = Listeners()) -> AsyncIterator[Courier]:
    """A courier with its queue, its journal and its event log as configured, until the block ends."""
    epoch = Uuid7Factory(clock)().hex[-12:]
    views = Views(epoch)
    async with AsyncExitStack() as stack:
        observe = listeners.observe
        if config.events is not None:
            log = stack.enter_context(EventLog(Path(config.events), clock))
            observe = both(log.observe, observe)
        queue = await _queue(config, views, Listeners(inserted=listeners.inserted, observe=observe), clock, epoch)
        await stack.enter_async_context(queue.running())
        yield Courier(config, queue, views, clock=clock, epoch=epoch, observe=observe)


async def _queue(config: CourierConfig, views: Views, listeners: Listeners, clock: Clock, epoch: str) -> Queue:
    inserted = both(views.insert, listeners.inserted)
    if config.store is not None:
        # A listener is told of every stream, views of those that they show.
        is_shown = views.shows if listeners.inserted is None else (lambda _stream: True)
        return RedisQueue(
            config, clock=clock, epoch=epoch, inserted=inserted, is_shown=is_shown, observe=listeners.observe
        )
    store = await open_store(config.journal)
    journal = Journal(store) if store is not None else None
    return MemoryQueue(config, clock=clock, epoch=epoch, inserted=inserted, observe=listeners.observe, journal=journal)
