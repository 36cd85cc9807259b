"""The worker that sends: it claims what is due, each endpoint in its own few slots, so that a slow one delays itself.

An attempt whose outcome could not be written is made again when its lease has run out: at least once, under one id.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from uuid import UUID

from butlers.clock import Clock
from butlers.errors import ClassifiedError, LeaseLost
from butlers.reliability.retry import RetryPolicy
from butlers.storage.claims import LeasePolicy
from butlers.telemetry import catalogue, get_logger
from butlers.telemetry.telemetry import Telemetry
from butlers.webhooks.deliveries import Answer, ClaimedDelivery, Deliveries, Settlement, settlement
from butlers.webhooks.sender import WebhookSender

log = get_logger("butlers.webhooks")

SLOTS = 4  # attempts at one time for one endpoint
LOOK_EVERY_S = 1.0  # for retries that have become due


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPolicy:
    retry: RetryPolicy
    lease: LeasePolicy
    slots: int = SLOTS


class WebhookWorker:
    def __init__(
        self,
        *,
        deliveries: Deliveries,
        sender: WebhookSender,
        policy: WorkerPolicy,
        name: str,
        clock: Clock,
        random: Callable[[], float],
        telemetry: Telemetry,
    ) -> None:
        self._deliveries = deliveries
        self._sender = sender
        self._policy = policy
        self._name = name
        self._clock = clock
        self._random = random
        self._telemetry = telemetry
        self._running: dict[UUID, tuple[ClaimedDelivery, asyncio.Task[None]]] = {}
        self._awake = asyncio.Event()
        self._closing = False

    def wake(self) -> None:
        """Something may be due."""
        self._awake.set()

    async def run(self) -> None:
        """Work until cancelled."""
        renewal = asyncio.create_task(self._keep_renewed())
        try:
            while True:
                self._awake.clear()
                await self.run_once()
                await self._wait()
        finally:
            renewal.cancel()

    async def run_once(self) -> int:
        """Start what is due; how many attempts that were."""
        if self._closing:
            return 0
        claimed = await self._deliveries.claim_due(
            per_endpoint=self._policy.slots, worker=self._name, lease_s=self._policy.lease.ttl
        )
        for delivery in claimed:
            task = asyncio.create_task(self._attempt(delivery), name=f"webhook {delivery.id}")
            self._running[delivery.id] = (delivery, task)
            task.add_done_callback(partial(self._ended, delivery.id))
        return len(claimed)

    async def settled(self) -> None:
        """When every attempt that was started has its outcome."""
        if tasks := [task for _, task in self._running.values()]:
            await asyncio.wait(tasks)

    async def drain(self, timeout_s: float) -> None:
        """Start nothing more, and let what is under way end; what does not end in time is given back."""
        self._closing = True
        if running := [*self._running.values()]:
            _, late = await asyncio.wait([task for _, task in running], timeout=timeout_s)
            for task in late:
                task.cancel()
            unsent = [delivery.claim for delivery, task in running if task in late]
            if unsent:
                await self._deliveries.claims.give_back(unsent, counted=True)

    async def _attempt(self, delivery: ClaimedDelivery) -> None:
        try:
            answer = await self._sender.send(delivery.id, delivery.target, delivery.payload)
        except Exception as error:
            # Without an outcome the row would be claimed again for ever.
            log.error("a webhook could not be sent", error=error, delivery_id=delivery.id)
            answer = Answer(error=f"sending failed unexpectedly ({type(error).__name__})")
        settled = settlement(
            answer,
            attempt=delivery.attempt,
            policy=self._policy.retry,
            now=self._clock.now(),
            random=self._random(),
        )
        try:
            disabled = await self._deliveries.settle(delivery, settled)
        except LeaseLost:
            log.warning("another worker has the webhook, or its endpoint is deleted", delivery_id=delivery.id)
        except Exception as error:
            log.error("an outcome was not written; the webhook is sent again", error=error, delivery_id=delivery.id)
        else:
            self._report(delivery, settled, disabled)

    def _report(self, delivery: ClaimedDelivery, settled: Settlement, disabled: str | None) -> None:
        outcome = "retried" if settled.state == "pending" else settled.state
        self._telemetry.count(catalogue.WEBHOOK_ATTEMPTS, outcome=outcome, reason=_kind(settled.answer))
        status = settled.answer.status
        if settled.state == "dead_lettered":
            self._telemetry.count(catalogue.WEBHOOK_DEAD_LETTERED)
            log.warning("webhook set aside", delivery_id=delivery.id, status_code=status, attempt=delivery.attempt)
        elif settled.state == "pending":
            log.info("webhook fails, to be sent again", delivery_id=delivery.id, status_code=status)
        if disabled is not None:
            self._telemetry.count(catalogue.WEBHOOK_ENDPOINT_DISABLED)
            log.warning("webhook endpoint disabled", endpoint_id=delivery.target.endpoint_id)

    def _ended(self, id: UUID, _task: asyncio.Task[None]) -> None:
        del self._running[id]
        self._awake.set()

    async def _wait(self) -> None:
        """Until `wake` is called, or for a while."""
        waits = [asyncio.ensure_future(self._awake.wait()), asyncio.ensure_future(self._clock.sleep(LOOK_EVERY_S))]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waits:
                one.cancel()

    async def _keep_renewed(self) -> None:
        lease = self._policy.lease
        while True:
            await self._clock.sleep(lease.renew_every)
            if self._running:
                try:
                    claims = [delivery.claim for delivery, _ in self._running.values()]
                    await self._deliveries.claims.renew(claims, lease_s=lease.ttl)
                except ClassifiedError as error:
                    log.error("leases were not renewed", error=error)


def _kind(answer: Answer) -> str:
    """One of a handful of words, for a metric."""
    return "no_answer" if answer.status is None else f"{answer.status // 100}xx"
