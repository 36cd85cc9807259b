"""The courier as one thing: queues, triggers, views, limits and the event log, for every way in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from butlers.clock import Clock
from butlers.courier.config import CourierConfig
from butlers.courier.core import Enqueued, QueueCore
from butlers.courier.envelope import check_envelope
from butlers.courier.errors import CourierError, RateLimited
from butlers.courier.triggers import TriggerEngine
from butlers.courier.views import Views
from butlers.reliability.token_bucket import Bucket, Refused, per_minute, take

Observer = Callable[[str, str, str, Mapping[str, Any]], None]


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
    """`run` serves the timers of leases and delays. Everything else is synchronous and belongs to one event loop."""

    def __init__(
        self, config: CourierConfig, *, clock: Clock, epoch: str, observers: tuple[Observer, ...] = ()
    ) -> None:
        self.config = config
        self.clock = clock
        self.epoch = epoch  # of this run: leases and places of views belong to it
        self._observers = observers
        self.core = QueueCore(
            clock=clock,
            policy_of=config.streams.policy_of,
            epoch=epoch,
            most_streams=config.streams.most,
            observe=self._observe if observers else None,
            on_due=lambda _due: self._sooner.set(),
        )
        self.triggers = TriggerEngine(config.triggers)
        self.views = Views(epoch)
        self._rates: dict[str, Rate] = {}  # of streams that have one
        self._sooner = asyncio.Event()

    def enqueue(self, document: Any, *, to: str | None = None) -> Enqueued:
        """Accept an envelope, and what the triggers make of it. Raises `CourierError`; then nothing was accepted."""
        envelope = check_envelope(document, to=to)
        self._check_rate(envelope["to"])
        return self._accept(envelope, path=())

    def explain(self, document: Any) -> list[dict[str, Any]]:
        return self.triggers.explain(check_envelope(document), self.clock.monotonic())

    async def run(self) -> None:
        """Serve what comes due, until cancelled."""
        while True:
            self.core.run_due()
            self._sooner.clear()
            due = self.core.next_due
            if due is None:
                await self._sooner.wait()
                continue
            woken = asyncio.create_task(self._sooner.wait())
            timer = asyncio.create_task(self.clock.sleep(max(0.0, due - self.clock.monotonic())))
            try:
                await asyncio.wait([woken, timer], return_when=asyncio.FIRST_COMPLETED)
            finally:
                woken.cancel()
                timer.cancel()

    def _accept(self, envelope: dict[str, Any], path: tuple[str, ...]) -> Enqueued:
        envelope = self.triggers.enrich(envelope, path)
        result = self.core.enqueue(envelope["to"], envelope, partition=envelope.get("partitionKey"))
        if result.duplicate:
            return result
        self.views.insert(envelope["to"], envelope)
        for fired in self.triggers.fire(envelope, self.clock.monotonic(), path):
            details = {"rule": fired.rule, "to": fired.envelope["to"]}
            try:
                self._accept(check_envelope(fired.envelope), (*path, fired.rule))
                self._observe("trigger.run", envelope["to"], envelope["id"], details)
            except CourierError as error:  # the message itself is accepted
                self._observe("trigger.fail", envelope["to"], envelope["id"], details | {"code": error.code})
        return result

    def _check_rate(self, stream: str) -> None:
        if not self.config.streams.limits_rates:
            return
        if stream not in self._rates:
            if (per_minute := self.config.streams.rate_of(stream)) is None:
                return
            if len(self._rates) >= self.config.streams.most:
                self._rates.clear()
            self._rates[stream] = Rate(per_minute, self.clock)
        self._rates[stream].spend(stream)

    def _observe(self, event: str, stream: str, id: str, details: Mapping[str, Any]) -> None:
        for observe in self._observers:
            observe(event, stream, id, details)
