"""Who gets a place when more comes in than goes out, and the queue of what waits (seed 003, "Backpressure").

    Shares       whether a channel still has a place: a guaranteed share for each, the rest for all
    decide       accepted | deferred | shed | rejected, by [admission] of butler.toml
    Occupancy    how many messages wait, by channel: counted in the table now and then, in memory in between
    Admission    the three together, as the ingress asks them

The DurableBuffer is a bounded memory queue in front of a durable inbox.

    hot path     accept -> offer -> tier queue -> worker
    put off      offer_later -> tier queue, when its time has come
    cold path    scanner: rows that are accepted but in no queue, or whose worker died -> tier queue

A full queue loses nothing: the row stays in the inbox and the scanner finds it. The queue carries references only;
the claim in the database decides who processes, so a reference may safely be queued twice.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, Self
from uuid import UUID

from butlers.channels.registry import inbound_names
from butlers.clock import Clock
from butlers.errors import OverloadRejected
from butlers.reliability.fair_queue import Full, Taken, TieredQueue
from butlers.storage.database import Database
from butlers.storage.queries import Queries
from butlers.switchboard.config import AdmissionSection, BufferSection, Overflow
from butlers.switchboard.requests.inbox import MessageInbox, MessageRef
from butlers.telemetry import get_logger
from butlers.telemetry.catalogue import (
    BUFFER_BACKPRESSURE,
    BUFFER_ENQUEUE,
    BUFFER_PROCESS_LATENCY,
    BUFFER_QUEUE_DEPTH,
    BUFFER_SCANNER_RECOVERED,
    DEQUEUE_BY_TIER,
    SWITCHBOARD_QUEUE_DEPTH,
)
from butlers.telemetry.telemetry import Telemetry

log = get_logger("butlers.buffer")
admission_log = get_logger("butlers.admission")

MOST_LATER = 1_000  # messages that were put off and are in memory
COUNT_EVERY_S = 1.0
_SHARE_OF_TIME = 50  # a count that takes long comes less often: at most a fiftieth of the time


class Outcome(StrEnum):
    ACCEPTED = "accepted"
    DEFERRED = "deferred"
    SHED = "shed"
    REJECTED = "rejected"


WAITS = frozenset({Outcome.ACCEPTED, Outcome.DEFERRED})
_OVERFLOW: Mapping[Overflow, Outcome] = {
    "defer": Outcome.DEFERRED,
    "shed": Outcome.SHED,
    "reject": Outcome.REJECTED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    places: int
    channels: int  # that there are, busy or not

    def place(self, channel: str, waiting: Mapping[str, int]) -> Literal["own", "shared"] | None:
        """Where one more of this channel fits: half of the places are the channels' own, the others anyone's."""
        own = self.places // (2 * self.channels)
        if waiting.get(channel, 0) < own:
            return "own"
        in_pool = sum(count - own for count in waiting.values() if count > own)
        return "shared" if in_pool < self.places - own * self.channels else None


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionPolicy:
    waiting: Shares  # before overflow begins
    stored: Shares  # before everything is refused
    overflow: Mapping[str, Overflow]  # by tier; has "default"
    retry_after_s: float  # told to a caller that is rejected

    @classmethod
    def of(cls, section: AdmissionSection) -> Self:
        return cls(
            waiting=Shares(places=section.max_waiting, channels=len(inbound_names())),
            stored=Shares(places=section.max_stored, channels=len(inbound_names())),
            overflow=section.overflow.model_dump(),
            retry_after_s=section.retry_after_s,
        )


def decide(
    policy: AdmissionPolicy, *, channel: str, tier: str, waiting: Mapping[str, int], queues_full: bool
) -> Outcome:
    if policy.stored.place(channel, waiting) is None:
        return Outcome.REJECTED
    place = policy.waiting.place(channel, waiting)
    if place == "own" or (place == "shared" and not queues_full):
        return Outcome.ACCEPTED
    return _OVERFLOW[policy.overflow.get(tier, policy.overflow["default"])]


class Occupancy:
    """The open messages by channel, as far as this process knows."""

    def __init__(self) -> None:
        self.waiting: Counter[str] = Counter()
        self._unsettled: Counter[str] = Counter()  # let in, and no row yet: a count of the rows may miss them
        self._during_count: Counter[str] | None = None

    def enter(self, channel: str) -> None:
        """A place is taken; `settle` follows when it is known whether there is a row."""
        self.waiting[channel] += 1
        self._unsettled[channel] += 1
        if self._during_count is not None:
            self._during_count[channel] += 1

    def settle(self, channel: str, *, stored: bool) -> None:
        """Whether it came to a row; a message that was known already takes no place."""
        self._unsettled[channel] -= 1
        if not stored:
            self.leave(channel)

    def leave(self, channel: str) -> None:
        """A message has come to its end."""
        # Never below zero: a message may end that entered by another process, after the last count.
        self.waiting[channel] = max(0, self.waiting[channel] - 1)

    def begin_count(self) -> None:
        self._during_count = +self._unsettled

    def end_count(self, counted: Mapping[str, int]) -> None:
        """The rows were counted since `begin_count`: without those that came meanwhile, with some, or with all of them.

        The number of this process stays where it is one of these; otherwise all of them count, so that the door never
        lets in too many.
        """
        came, self._during_count = self._during_count or Counter(), None
        for channel in {*self.waiting, *counted, *came}:
            least = counted.get(channel, 0)
            most = least + came[channel]
            if not least <= self.waiting[channel] <= most:
                self.waiting[channel] = most


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """What decisions about messages need: the policy, and how many wait."""

    policy: AdmissionPolicy
    database: Database
    queries: Queries  # of butlers.switchboard
    clock: Clock
    telemetry: Telemetry
    occupancy: Occupancy = field(default_factory=Occupancy, init=False)

    def refusal(self) -> OverloadRejected:
        return OverloadRejected(
            "more messages wait than may wait; nothing was stored", retry_after=self.policy.retry_after_s
        )

    async def count(self) -> float:
        """Count the rows that wait; returns the seconds it took."""
        started = self.clock.monotonic()
        self.occupancy.begin_count()
        rows = await self.database.fetch(self.queries.count_waiting)
        self.occupancy.end_count({row["source_channel"]: row["waiting"] for row in rows})
        for channel in inbound_names():
            self.telemetry.gauge(
                SWITCHBOARD_QUEUE_DEPTH, self.occupancy.waiting.get(channel, 0), source_channel=channel
            )
        return self.clock.monotonic() - started

    async def run(self) -> None:
        """Count until cancelled; a count that fails leaves the numbers as they are."""
        took = 0.0
        while True:
            await self.clock.sleep(max(COUNT_EVERY_S, took * _SHARE_OF_TIME))
            try:
                took = await self.count()
            except Exception as error:
                admission_log.warning("the waiting messages could not be counted", error=error)


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
