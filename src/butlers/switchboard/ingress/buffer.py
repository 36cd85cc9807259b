"""The DurableBuffer (seed 003): a bounded memory queue in front of a durable inbox.

    hot path     accept -> offer -> tier queue -> worker
    put off      offer_later -> tier queue, when its time has come
    cold path    scanner: rows that are accepted but in no queue, or whose worker died -> tier queue

A full queue loses nothing: the row stays in the inbox and the scanner finds it. The queue carries references only;
the claim in the database decides who processes, so a reference may safely be queued twice.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from uuid import UUID

from butlers.clock import Clock
from butlers.reliability.fair_queue import Full, Taken, TieredQueue
from butlers.switchboard.config import BufferSection
from butlers.switchboard.ingress.ingress import MessageRef
from butlers.switchboard.requests.inbox import MessageInbox
from butlers.telemetry import Telemetry, get_logger
from butlers.telemetry.catalogue import (
    BUFFER_BACKPRESSURE,
    BUFFER_ENQUEUE,
    BUFFER_PROCESS_LATENCY,
    BUFFER_QUEUE_DEPTH,
    BUFFER_SCANNER_RECOVERED,
    DEQUEUE_BY_TIER,
)

log = get_logger("butlers.buffer")

MOST_LATER = 1_000


class DurableBuffer:
    """Queues references and runs the workers that process them."""

    def __init__(
        self,
        *,
        inbox: MessageInbox,
        process: Callable[[MessageRef], Awaitable[bool]],  # false: another worker has it
        policy: BufferSection,
        recheck_after_s: float,  # when the claims of a dead predecessor have run out
        clock: Clock,
        telemetry: Telemetry,
        leave: Callable[[str], None] = lambda _channel: None,  # told the channel of each message that was processed
    ) -> None:
        self._inbox = inbox
        self._process = process
        self._leave = leave
        self._policy = policy
        self._recheck_after_s = recheck_after_s
        self._clock = clock
        self._telemetry = telemetry
        self._queue: TieredQueue[MessageRef] = TieredQueue(
            queue_capacity=policy.queue_capacity, max_consecutive_same_tier=policy.max_consecutive_same_tier
        )
        self._queued: set[UUID] = set()
        self._taken: set[UUID] = set()  # by workers, claimed or about to be
        self._busy: Counter[str] = Counter()  # workers by channel
        self._wake = asyncio.Event()
        self._later: set[asyncio.Task[None]] = set()  # put off, each until its time has come
        self._sweep_now = asyncio.Event()
        self._backlog = False  # the inbox held more than the queue could take
        self._stopping = False

    def offer(self, message: MessageRef, *, path: str = "hot") -> bool:
        """Queue a message; false when it is queued already or its queue is full."""
        if message.request_id in self._queued:
            return False
        answer = self._queue.offer(message, message.policy_tier, key=message.source_channel)
        if answer.fell_back:
            log.warning("unknown policy tier, using default", request_id=message.request_id)
        if isinstance(answer, Full):
            self._backlog = True
            self._telemetry.count(BUFFER_BACKPRESSURE)
            return False
        self._queued.add(message.request_id)
        self._wake.set()
        self._telemetry.count(BUFFER_ENQUEUE, path=path)
        self._show_depth()
        return True

    def offer_later(self, message: MessageRef, seconds: float) -> None:
        """A message that was put off, when its time has come; what does not fit is found by the scanner."""
        if self._stopping or len(self._later) >= MOST_LATER:
            return

        async def wait_and_offer() -> None:
            await self._clock.sleep(seconds)
            self.offer(message, path="cold")

        waiting = asyncio.create_task(wait_and_offer(), name=f"put off {message.request_id}")
        self._later.add(waiting)
        waiting.add_done_callback(self._later.discard)

    async def run(self) -> None:
        """Work until cancelled. Beyond `worker_count`, every channel that no worker is busy with gets a worker: a
        butler that one channel waits for does not stop the others.
        """
        async with asyncio.TaskGroup() as group:
            group.create_task(self._scan(), name="buffer scanner")
            while not self._stopping:
                await self._wake.wait()
                self._wake.clear()
                while not self._stopping:
                    free = self._busy.total() < self._policy.worker_count
                    taken = self._queue.take() if free else self._queue.take_other_than(self._busy.keys())
                    if taken is None:
                        break
                    self._busy[taken.key] += 1
                    group.create_task(self._work_on(taken), name=f"buffer worker {taken.item.request_id}")

    async def _work_on(self, taken: Taken[MessageRef]) -> None:
        message, started = taken.item, self._clock.monotonic()
        self._queued.discard(message.request_id)
        self._taken.add(message.request_id)
        self._telemetry.count(
            DEQUEUE_BY_TIER, policy_tier=taken.tier.value, starvation_override=taken.starvation_override
        )
        self._show_depth()
        if self._backlog and not len(self._queue):
            self._sweep_now.set()
        try:
            outcome = "skipped"
            if await self._process(message):
                self._leave(message.source_channel)  # one that is put off is found again by the next count
                outcome = "processed"
        except Exception as error:
            # The claim runs out and the scanner brings the message back; a worker must survive anything.
            outcome = "failed"
            log.error("processing failed", error=error, request_id=message.request_id)
        finally:
            self._taken.discard(message.request_id)
            self._busy[taken.key] -= 1
            if not self._busy[taken.key]:
                del self._busy[taken.key]
            self._wake.set()
        elapsed = (self._clock.monotonic() - started) * 1000
        self._telemetry.observe(BUFFER_PROCESS_LATENCY, elapsed, outcome=outcome)

    async def _scan(self) -> None:
        grace_s, recheck_at = 0.0, None
        while True:
            try:
                await self.sweep(grace_s=grace_s)
            except Exception as error:
                log.error("sweep failed", error=error)
            now, interval = self._clock.monotonic(), self._policy.scanner_interval_s
            recheck_at = now + self._recheck_after_s if recheck_at is None else recheck_at
            await self._pause(min(recheck_at - now, interval) if recheck_at > now else interval)
            grace_s = 0.0 if self._backlog else self._policy.scanner_grace_s

    async def _pause(self, seconds: float) -> None:
        """Until the seconds are over, or a sweep is due at once."""
        self._sweep_now.clear()
        waiting = asyncio.create_task(self._sweep_now.wait())
        timer = asyncio.create_task(self._clock.sleep(seconds))
        try:
            await asyncio.wait([waiting, timer], return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
            timer.cancel()

    async def sweep(self, *, grace_s: float) -> int:
        """Bring rows back that no worker has; returns how many."""
        batch = self._policy.scanner_batch_size
        limit = batch + len(self._queued) + len(self._taken)
        found = await self._inbox.waiting(grace_s=grace_s, limit=limit)
        self._backlog = len(found) >= limit
        # What a worker has taken and not claimed yet looks as if no worker had it.
        lost = [message for message in found if message.request_id not in self._taken]
        recovered = sum(self.offer(message, path="cold") for message in lost)
        if recovered:
            self._telemetry.count(BUFFER_SCANNER_RECOVERED, recovered)
            log.info("scanner recovered messages", count=recovered)
        return recovered

    def stop(self) -> None:
        """Take nothing new; what is queued stays in the inbox for the next start."""
        self._stopping = True
        self._wake.set()
        for waiting in self._later:
            waiting.cancel()

    def full(self) -> bool:
        """Whether no tier has room left."""
        return all(depth >= self._policy.queue_capacity for depth in self._queue.depth_by_tier().values())

    def depth(self) -> dict[str, int]:
        """How many messages are queued, by tier."""
        return {tier.value: depth for tier, depth in self._queue.depth_by_tier().items()}

    def _show_depth(self) -> None:
        for tier, depth in self._queue.depth_by_tier().items():
            self._telemetry.gauge(BUFFER_QUEUE_DEPTH, depth, policy_tier=tier.value)
