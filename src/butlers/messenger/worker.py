"""The worker that makes attempts.

    claim (durable) -> find what an uncertain attempt left -> mark the wire log -> attempt -> settle

One loop claims what is due and rescues what dead workers left behind; each claimed delivery runs in a task of its own,
and outcomes that come together are written together.

A stop has an order, because a claim that is under way becomes an attempt later:

    the intake is written down -> nothing new is claimed -> claims and attempts under way end, as long as there is time
    -> the rest is cut off -> the wire log is let go; whatever is claimed after that is given back
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cache, partial
from pathlib import Path
from typing import Self
from uuid import UUID
from weakref import WeakValueDictionary

import asyncpg

from butlers.channels.adapter import Adapter, AttemptResult, Sent
from butlers.clock import Clock
from butlers.errors import ClassifiedError, from_wire
from butlers.messenger import evidence
from butlers.messenger.admission import ClaimSlots, OutcomeFuture
from butlers.messenger.attempt import ChannelPolicy, Circumstances, Ended, Outcome, attempt, settle
from butlers.messenger.config import DeliverySection
from butlers.messenger.deliveries import Deliveries
from butlers.messenger.delivery import ClaimedDelivery
from butlers.messenger.evidence import Rescuer
from butlers.messenger.observer import Observer
from butlers.storage.claims import LeasePolicy
from butlers.storage.group_commit import GroupCommitter
from butlers.telemetry import get_logger

log = get_logger("butlers.messenger")

_LOOK_AGAIN_S = 0.5  # when the table could not be looked at
_LONGEST_WAIT_S = 5.0  # between looks at the table when nothing wakes the worker
_RESCUE_EVERY_S = 0.5  # between looks for dead workers
_SHUTDOWN_GRACE_S = 2.0  # at a stop, for attempts that are cut off and for a look at what stays open
_INSIST_S = 0.5  # between tries to record an outcome
# Outcomes in one transaction. With more, all callers that wait would be answered at the same moment and come again at
# the same moment, and the processor and the disk would take turns instead of working side by side.
_TOGETHER = 64
_REFUSALS = (asyncpg.DataError, asyncpg.IntegrityConstraintViolationError, asyncpg.ProgramLimitExceededError)
_LEFT_OUT = "the provider's words could not be kept"
_MOST_PARTS = 2**31 - 1  # what the column holds


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionPolicy:
    channel: Callable[[str], ChannelPolicy]  # by name, without its scope
    max_concurrent: int
    lease: LeasePolicy

    @classmethod
    def of(cls, delivery: DeliverySection, *, channels: Mapping[str, Adapter], lease: LeasePolicy) -> Self:
        """A channel whose provider recognises a repeat by its key is never in doubt, and never loses a message."""
        repeatable = {channel.name for channel in channels.values() if getattr(channel, "resend_is_safe", False)}

        @cache
        def channel_policy(name: str) -> ChannelPolicy:
            configured = ChannelPolicy.of(delivery, name)
            return replace(configured, certainty="never_lose") if name in repeatable else configured

        return cls(channel=channel_policy, max_concurrent=delivery.max_concurrent_attempts, lease=lease)


class DeliveryWorker:
    """Claims, attempts, settles and rescues."""

    def __init__(
        self,
        *,
        deliveries: Deliveries,
        channels: Mapping[str, Adapter],  # by name with scope: telegram.bot
        policy: ExecutionPolicy,
        wire_directory: Path,
        name: str,
        clock: Clock,
        observer: Observer,
        new_id: Callable[[], UUID],
    ) -> None:
        self._deliveries = deliveries
        self._channels = channels
        self._policy = policy
        self._wire = evidence.WireLog(wire_directory, name)
        self._name = name
        self._clock = clock
        self._observer = observer
        self._new_id = new_id
        self._awake = asyncio.Event()
        self._tasks: dict[UUID, asyncio.Task[None]] = {}
        self._tokens: dict[UUID, UUID] = {}
        self._outcomes: dict[UUID, Outcome] = {}  # of deliveries that a caller waits for
        # Weak: a caller that gives up, or waits for another process's delivery, leaves nothing behind.
        self._expected: WeakValueDictionary[UUID, OutcomeFuture] = WeakValueDictionary()
        self._reserved = 0  # slots of batches that are not yet committed
        self._held_up = True  # something due could not be claimed, so the end of anything may set it free
        self._recorder = Recorder(deliveries=deliveries, clock=clock)
        self._rescuer = Rescuer(
            deliveries=deliveries,
            wire_directory=wire_directory,
            name=name,
            lease_s=policy.lease.ttl,
            circumstances=self._circumstances,
            observer=observer,
            new_id=new_id,
        )
        self._rescued_at = float("-inf")
        self._in_trouble: frozenset[str] = frozenset()  # channels at the last look
        self._closing = False  # nothing new is claimed
        self._closed = False  # nothing is attempted any more
        self._stirred = asyncio.Event()  # a claim or an attempt is over
        self._returns: set[asyncio.Task[None]] = set()

    def wake(self) -> None:
        self._held_up = True
        self._awake.set()

    def expect(self, delivery_id: UUID) -> OutcomeFuture:
        return self._expected.setdefault(delivery_id, asyncio.get_running_loop().create_future())

    def reserve_slots(self, requested: int) -> ClaimSlots:
        """Slots that are free now, reserved until `start_claimed`."""
        room = self._room()
        # With few slots left, deliveries that wait already come first.
        scarce = self._held_up and room < self._policy.max_concurrent / 2
        slots = 0 if self._closing or scarce else max(0, min(requested, room))
        self._reserved += slots
        lease = timedelta(seconds=self._policy.lease.ttl)
        return ClaimSlots(
            count=slots,
            token=self._new_id(),
            worker=self._name,
            expires_at=self._clock.now() + lease,
            channels=self._channels,
        )

    def _room(self) -> int:
        return self._policy.max_concurrent - len(self._tasks) - self._reserved

    async def run(self) -> None:
        """Work until cancelled."""
        renewal = asyncio.create_task(self._keep_renewed())
        try:
            while True:
                self._awake.clear()
                try:
                    if self._clock.monotonic() - self._rescued_at >= _RESCUE_EVERY_S:
                        await self.rescue()
                    while await self.run_once():
                        pass
                except Exception as error:
                    # Attempts under way depend on this loop; what is wrong may have passed by the next round.
                    log.error("delivery round failed", error=error)
                await self._wait_for_work()
        finally:
            renewal.cancel()

    async def run_once(self) -> bool:
        """Start what is due, as far as there is room; whether there may be more."""
        room = self._room()
        if room <= 0 or self._closing:
            return False
        claimed = await self._claim(
            room, self._deliveries.claim_due(limit=room, worker=self._name, lease_s=self._policy.lease.ttl)
        )
        return len(claimed) == room

    async def _claim(self, room: int, claim: Awaitable[list[ClaimedDelivery]]) -> list[ClaimedDelivery]:
        """Claim with so many slots reserved, and start what was claimed."""
        self._reserved += room
        claimed: list[ClaimedDelivery] = []
        try:
            claimed += await claim
        finally:
            self.start_claimed(claimed, reserved=room)
        return claimed

    def start_claimed(self, claimed: Sequence[ClaimedDelivery], *, reserved: int) -> None:
        self._reserved -= reserved
        if self._closed and claimed:
            returning = asyncio.create_task(self._give_back(claimed), name="unused claims")
            self._returns.add(returning)
            returning.add_done_callback(self._returns.discard)
        else:
            for delivery in claimed:
                task = asyncio.create_task(self._deliver(delivery), name=f"delivery {delivery.id}")
                self._tasks[delivery.id] = task
                self._tokens[delivery.id] = delivery.claim_token
                task.add_done_callback(partial(self._ended, delivery.id))
        self._stirred.set()

    async def _give_back(self, unused: Sequence[ClaimedDelivery]) -> None:
        try:
            await self._deliveries.give_back(unused)
        except Exception as error:
            # The worker that rescues them finds a wire log without a mark of theirs, and so tries them again.
            log.error("claims were not given back", error=error)

    async def probe(self) -> None:
        """Try channels in trouble as far as their circuits admit."""
        channels = await self._deliveries.open_circuits()
        if self._in_trouble - set(channels):  # a worker, here or elsewhere, found one well again
            self.wake()
        self._in_trouble = frozenset(channels)
        for channel in channels:
            room = self._room()
            if room <= 0 or self._closing:
                return
            lease_s = self._policy.lease.ttl
            await self._claim(
                room, self._deliveries.claim_probes(channel, limit=room, worker=self._name, lease_s=lease_s)
            )

    async def _wait_for_work(self) -> None:
        """Until something may be due, or `wake` is called."""
        try:
            due, self._held_up = await self._deliveries.next_due()
            wait = _LONGEST_WAIT_S if due is None else (due - self._clock.now()).total_seconds()
        except Exception as error:
            log.error("delivery round failed", error=error)
            wait = _LOOK_AGAIN_S
        # A due row that was not claimed waits for an earlier one of its conversation, whose end wakes us.
        wait = min(max(wait, 0.05 if not self._tasks else 0.5), _LONGEST_WAIT_S)
        try:
            async with asyncio.timeout(wait):
                await self._awake.wait()
        except TimeoutError:
            return

    def _ended(self, delivery_id: UUID, task: asyncio.Task[None]) -> None:
        if self._tasks.get(delivery_id) is task:  # it may have been claimed again already
            del self._tasks[delivery_id], self._tokens[delivery_id]
        outcome = self._outcomes.pop(delivery_id, None)
        if (expected := self._expected.pop(delivery_id, None)) is not None:
            expected.set_result(outcome)
        if self._held_up:
            self.wake()
        self._stirred.set()

    async def _deliver(self, delivery: ClaimedDelivery) -> None:
        started = self._clock.monotonic()
        with self._observer.provider_send(delivery):
            result = await attempt(
                delivery,
                channel=self._channels.get(delivery.scoped_channel),
                policy=self._policy.channel(delivery.channel),
                leaving=self._wire.leaving,
                record_part=self._deliveries.record_part,
                clock=self._clock,
            )
        settlement = settle(result, self._circumstances(delivery))
        ended = Ended(
            delivery=delivery,
            result=result,
            settlement=settlement,
            latency_ms=int((self._clock.monotonic() - started) * 1000),
            receipt_id=self._new_id(),
        )
        if (written := await self._recorder.record(ended)) is not None:
            self._wire.settled(delivery.attempt_id)
            self._observer.attempt_ended(written)
            if delivery.id in self._expected and getattr(result, "part", 1) == 1:
                self._outcomes[delivery.id] = written.outcome
            self._held_up |= settlement.status == "awaiting_retry"

    def _circumstances(self, delivery: ClaimedDelivery) -> Circumstances:
        return Circumstances(
            attempt=delivery.attempt,
            policy=self._policy.channel(delivery.channel),
            mode=delivery.mode,
            now=self._clock.now(),
            not_after=delivery.not_after,
            in_doubt=delivery.in_doubt and not delivery.settled,
            draw=random.random(),  # noqa: S311 - jitter, not a secret
            max_attempts=delivery.max_attempts,
        )

    async def rescue(self) -> int:
        """Settle what dead workers were doing, by the evidence they left."""
        self._rescued_at = self._clock.monotonic()
        return await self._rescuer.rescue(in_hand=list(self._tasks))

    async def _keep_renewed(self) -> None:
        while True:
            await self._clock.sleep(self._policy.lease.renew_every)
            try:
                await self._deliveries.renew(dict(self._tokens), self._policy.lease.ttl)
            except Exception as error:
                log.error("leases were not renewed", error=error)

    async def close(self, timeout_s: float, *, after: Callable[[], Awaitable[None]] | None = None) -> None:
        """Let what is under way end, as long as there is time, and let go of the wire log. `after`: the intake's end,
        until which what it writes down is still taken.
        """
        try:
            async with asyncio.timeout(timeout_s):
                if after is not None:
                    await after()
                self._closing = True
                while self._tasks or self._reserved:
                    self._stirred.clear()
                    await self._stirred.wait()
        except TimeoutError:
            log.warning("attempts are cut off", count=len(self._tasks))
        self._closing = self._closed = True
        if late := list(self._tasks.values()):
            for task in late:
                task.cancel()
            await asyncio.wait(late, timeout=_SHUTDOWN_GRACE_S)
        try:  # without the evidence, what stays open would be in doubt
            async with asyncio.timeout(_SHUTDOWN_GRACE_S):
                keep = self._reserved > 0 or await self._deliveries.open_attempts_of(self._name) > 0
        except Exception as error:
            log.warning("what stays open is not known", error=error)
            keep = True
        self._wire.close(keep=keep)


class Recorder:
    """Writes down how attempts ended."""

    def __init__(self, *, deliveries: Deliveries, clock: Clock) -> None:
        self._deliveries = deliveries
        self._clock = clock
        self._finishes: GroupCommitter[Ended, bool] = GroupCommitter(deliveries.finish, max_batch=_TOGETHER)

    async def record(self, ended: Ended) -> Ended | None:
        """Returns what was recorded; None: the claim was lost. Tries without end, because what is known now would be
        doubt after a crash.
        """
        redacted = False
        while True:
            try:
                written = await self._finishes.submit(ended)
                break
            except Exception as error:
                log.error("outcome was not recorded", error=error, delivery_id=ended.delivery.id)
                # The values, and not the server or the moment, are the trouble; ValueError is the driver's own.
                if isinstance(error, (*_REFUSALS, ValueError)) and not redacted:
                    ended, redacted = without_provider_text(ended), True
                else:
                    await self._clock.sleep(_INSIST_S)
        if written:
            return ended
        # Another worker took the delivery over and may believe it lost; a yes of the provider still counts.
        log.warning("delivery was taken over", delivery_id=ended.delivery.id)
        if isinstance(ended.result, Sent):
            settled = await self._deliveries.late_yes(ended, ended.result)
            log.warning("it was sent all the same", delivery_id=ended.delivery.id, outcome=settled)
        return None


def without_provider_text(ended: Ended) -> Ended:
    """The same outcome without anything that the provider wrote."""
    settlement, result, response = ended.settlement, ended.result, {"left_out": _LEFT_OUT}
    if isinstance(result, Sent):
        part = result.part if 0 < result.part <= _MOST_PARTS else 1
        name = f"unknown-{ended.delivery.attempt_id}"
        plain: AttemptResult = Sent(provider_delivery_id=name, part=part, response=response)
    else:
        plain = replace(result, error=_left_out(result.error), response=response, moved_to=None)
    error = _left_out(settlement.error) if settlement.error is not None else None
    return replace(ended, result=plain, settlement=replace(settlement, error=error))


def _left_out(error: ClassifiedError) -> ClassifiedError:
    return from_wire(error.error_class.value, _LEFT_OUT, retryable=error.retryable)
