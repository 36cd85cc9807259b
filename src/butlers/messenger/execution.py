"""The worker that makes attempts.

    claim (durable) -> leave a mark in the wire log -> attempt -> settle: delivered | retry | failed | uncertain

One loop claims what is due and rescues what dead workers left behind; each claimed delivery runs in a task of its own.
`uncertain` is never blindly retried: it is parked for a person to settle (policy never_duplicate).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID
from weakref import WeakValueDictionary

from butlers.clock import Clock
from butlers.errors import InternalError, LeaseLost, TimeoutExceeded
from butlers.messenger import wire_log
from butlers.messenger.channel import AttemptResult, Certainty, Channel, NotSent
from butlers.messenger.deliveries import ClaimedDelivery, Deliveries, Settlement
from butlers.messenger.settling import settle, uncertain
from butlers.reliability.lease import LeasePolicy
from butlers.reliability.retry import RetryPolicy
from butlers.telemetry import Telemetry, get_logger
from butlers.telemetry.catalogue import (
    DELIVERY_FAILED,
    DELIVERY_LATENCY,
    DELIVERY_SENT,
    PROVIDER_LATENCY,
    QUEUE_WAIT,
    RETRY_ATTEMPT,
)
from butlers.telemetry.spans import PROVIDER_SEND

log = get_logger("butlers.messenger")

_INSIST_S = 0.5  # between tries to record an outcome
_LONGEST_NAP = 5.0  # seconds between looks at the table when nobody calls


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionPolicy:
    retry: RetryPolicy
    timeout_s: Mapping[str, float]  # per channel, with "default"
    max_in_flight: int
    lease: LeasePolicy

    def timeout_for(self, channel: str) -> float:
        return self.timeout_s.get(channel, self.timeout_s.get("default", 30.0))


class _AttemptWire:
    """What one attempt says while it runs."""

    def __init__(self, log: wire_log.WireLog, attempt_id: UUID) -> None:
        self._log = log
        self._attempt_id = attempt_id
        self.left = False

    def leaving(self, part: int = 1) -> None:
        self.left = True
        self._log.leaving(self._attempt_id)

    async def part_sent(self, part: int, provider_delivery_id: str) -> None:
        raise NotImplementedError


class DeliveryWorker:
    """Claims, attempts, settles and rescues."""

    def __init__(
        self,
        *,
        deliveries: Deliveries,
        channels: Mapping[str, Channel],
        policy: ExecutionPolicy,
        wire_directory: Path,
        name: str,
        clock: Clock,
        telemetry: Telemetry,
    ) -> None:
        self._deliveries = deliveries
        self._channels = channels
        self._policy = policy
        self._wire_directory = wire_directory
        self._wire = wire_log.WireLog(wire_directory, name)
        self._name = name
        self._clock = clock
        self._telemetry = telemetry
        self._awake = asyncio.Event()
        self._tasks: dict[UUID, asyncio.Task[None]] = {}
        self._tokens: dict[UUID, UUID] = {}
        # Weak: a waiter that gives up, or waits for another process's delivery, leaves nothing behind.
        self._waiters: WeakValueDictionary[UUID, asyncio.Event] = WeakValueDictionary()
        self._closing = False

    def wake(self) -> None:
        self._awake.set()

    async def finished(self, delivery_id: UUID) -> None:
        ended = self._waiters.setdefault(delivery_id, asyncio.Event())
        await ended.wait()

    async def tidy(self) -> None:
        """Remove the wire logs of workers that ended without an open attempt."""
        for worker in wire_log.dead_workers(self._wire_directory):
            if await self._deliveries.open_attempts_of(worker) == 0:
                wire_log.remove(self._wire_directory, worker)

    async def run(self) -> None:
        """Work until cancelled."""
        renewal = asyncio.create_task(self._keep_renewed())
        try:
            while True:
                self._awake.clear()
                await self._round()
                await self._nap()
        finally:
            renewal.cancel()

    async def _round(self) -> None:
        try:
            await self.rescue()
            while await self.run_once():
                pass
        except Exception as error:
            # Attempts under way depend on this loop; whatever is wrong may have passed by the next round.
            log.error("delivery round failed", error=error)

    async def run_once(self) -> int:
        """Start what is due, as far as there is room; returns how many were started."""
        room = self._policy.max_in_flight - len(self._tasks)
        if room <= 0 or self._closing:
            return 0
        claimed = await self._deliveries.claim_due(limit=room, worker=self._name, lease_s=self._policy.lease.ttl)
        for delivery in claimed:
            self._start(delivery)
        return len(claimed)

    async def _nap(self) -> None:
        due = await self._deliveries.next_due()
        wait = _LONGEST_NAP if due is None else (due - self._clock.now()).total_seconds()
        # A due row that was not claimed waits for an earlier one of its conversation, whose end wakes us.
        wait = min(max(wait, 0.05 if not self._tasks else 0.5), _LONGEST_NAP)
        try:
            async with asyncio.timeout(wait):
                await self._awake.wait()
        except TimeoutError:
            return

    def _start(self, delivery: ClaimedDelivery) -> None:
        task = asyncio.create_task(self._deliver(delivery), name=f"delivery {delivery.id}")
        self._tasks[delivery.id] = task
        self._tokens[delivery.id] = delivery.claim_token
        task.add_done_callback(lambda _: self._ended(delivery.id))

    def _ended(self, delivery_id: UUID) -> None:
        self._tasks.pop(delivery_id, None)
        self._tokens.pop(delivery_id, None)
        if (waiter := self._waiters.pop(delivery_id, None)) is not None:
            waiter.set()
        self.wake()

    async def _deliver(self, delivery: ClaimedDelivery) -> None:
        started = self._clock.monotonic()
        self._observe_start(delivery)
        with self._telemetry.span(
            PROVIDER_SEND,
            request_id=delivery.request_id,
            parent=delivery.trace_context,
            delivery_id=str(delivery.id),
            channel=delivery.channel,
        ):
            result = await self._attempt(delivery)
        latency_ms = int((self._clock.monotonic() - started) * 1000)
        settlement = settle(
            result,
            attempt=delivery.attempt,
            policy=self._policy.retry,
            now=self._clock.now(),
            not_after=delivery.not_after,
            draw=random.random(),  # noqa: S311 - jitter, not a secret
        )
        if await self._write_down(delivery, result, settlement, latency_ms):
            self._observe_end(delivery, settlement, latency_ms)

    async def _write_down(
        self, delivery: ClaimedDelivery, result: AttemptResult, settlement: Settlement, latency_ms: int
    ) -> bool:
        """Record the outcome, insistently: what is known now would be doubt after a crash."""
        while True:
            try:
                await self._deliveries.finish(delivery, result, settlement, latency_ms)
                return True
            except LeaseLost:
                log.warning("delivery was taken over", delivery_id=delivery.id)
                return False
            except Exception as error:
                log.error("outcome was not recorded", error=error, delivery_id=delivery.id)
                await self._clock.sleep(_INSIST_S)

    async def _attempt(self, delivery: ClaimedDelivery) -> AttemptResult:
        if delivery.not_after is not None and self._clock.now() > delivery.not_after:
            return NotSent(error=TimeoutExceeded("it was too late to send it", retryable=False))
        wire = _AttemptWire(self._wire, delivery.attempt_id)
        timeout_s = self._policy.timeout_for(delivery.channel)
        try:
            async with asyncio.timeout(timeout_s):
                channel = self._channels[delivery.channel]
                return await channel.attempt(delivery.outgoing, timeout_s=timeout_s, wire=wire)
        except TimeoutError:
            certainty = Certainty.UNCERTAIN if wire.left else Certainty.NOT_SENT
            return NotSent(error=TimeoutExceeded(f"no answer within {timeout_s:g} s"), certainty=certainty)
        except Exception as error:
            log.error("channel failed unexpectedly", error=error, delivery_id=delivery.id, channel=delivery.channel)
            certainty = Certainty.UNCERTAIN if wire.left else Certainty.NOT_SENT
            return NotSent(error=InternalError(f"{type(error).__name__} in the channel"), certainty=certainty)

    async def rescue(self) -> int:
        """Settle what dead workers were doing, by the evidence they left."""
        abandoned = await self._deliveries.claim_abandoned(
            limit=100, worker=self._name, lease_s=self._policy.lease.ttl, in_hand=list(self._tasks)
        )
        for delivery, worker in abandoned:
            await self._rescue_one(delivery, worker)
        for worker in {worker for _, worker in abandoned}:
            if worker != self._name and await self._deliveries.open_attempts_of(worker) == 0:
                wire_log.remove(self._wire_directory, worker)
        return len(abandoned)

    async def _rescue_one(self, delivery: ClaimedDelivery, worker: str) -> None:
        doubtful = wire_log.may_have_left(self._wire_directory, worker, delivery.attempt_id)
        lost = TimeoutExceeded("the process ended during the attempt")
        certainty = Certainty.UNCERTAIN if doubtful else Certainty.NOT_SENT
        result = NotSent(error=lost, certainty=certainty)
        now = self._clock.now()
        # A crash of ours says nothing about the provider: try at once, whatever the count of attempts.
        settlement = (
            Settlement(status="uncertain", error=uncertain(lost))
            if doubtful
            else Settlement(status="awaiting_retry", next_attempt_at=now, error=lost)
        )
        await self._deliveries.finish(delivery, result, settlement, 0)
        log.warning("delivery rescued", delivery_id=delivery.id, certainty=certainty, request_id=delivery.request_id)

    async def _keep_renewed(self) -> None:
        while True:
            await self._clock.sleep(self._policy.lease.renew_every)
            try:
                await self._deliveries.renew(list(self._tokens.values()), self._policy.lease.ttl)
            except Exception as error:
                log.error("leases were not renewed", error=error)

    async def close(self, timeout_s: float) -> None:
        """Take nothing new, let attempts under way end, then let go of the wire log."""
        self._closing = True
        if tasks := list(self._tasks.values()):
            await asyncio.wait(tasks, timeout=timeout_s)
        late = [task for task in self._tasks.values() if not task.done()]
        for task in late:
            task.cancel()
        self._wire.close(keep=bool(late))

    def _observe_start(self, delivery: ClaimedDelivery) -> None:
        if delivery.attempt == 1:
            waited = self._clock.now() - delivery.created_at
            self._telemetry.observe(QUEUE_WAIT, waited.total_seconds() * 1000, **delivery.labels)
        else:
            self._telemetry.count(RETRY_ATTEMPT, 1, **delivery.labels)

    def _observe_end(self, delivery: ClaimedDelivery, settlement: Settlement, latency_ms: int) -> None:
        outcome, labels = settlement.status, delivery.labels
        self._telemetry.observe(PROVIDER_LATENCY, latency_ms, outcome=outcome, **labels)
        log.info(
            "delivery attempted",
            delivery_id=delivery.id,
            request_id=delivery.request_id,
            attempt=delivery.attempt,
            outcome=outcome,
            error_class=settlement.error.error_class if settlement.error else None,
        )
        if outcome == "awaiting_retry":
            return
        total = self._clock.now() - delivery.created_at
        self._telemetry.observe(DELIVERY_LATENCY, total.total_seconds() * 1000, outcome=outcome, **labels)
        if outcome == "delivered":
            self._telemetry.count(DELIVERY_SENT, 1, **labels)
        else:
            error_class = settlement.error.error_class.value if settlement.error else None
            self._telemetry.count(DELIVERY_FAILED, 1, outcome=outcome, error_class=error_class, **labels)
