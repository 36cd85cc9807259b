"""One attempt: in time, within its time, with evidence of what left."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from butlers.channels.adapter import Adapter, AttemptResult, Certainty, NotSent, Sent
from butlers.clock import Clock
from butlers.errors import ClassifiedError, InternalError, TargetUnavailable, TimeoutExceeded
from butlers.messenger import wire_log
from butlers.messenger.deliveries import Deliveries
from butlers.messenger.delivery import ClaimedDelivery
from butlers.messenger.provider_words import name, storable
from butlers.messenger.settling import ChannelPolicy
from butlers.telemetry import get_logger

log = get_logger("butlers.messenger")

GRACE_S = 1.0  # an adapter keeps the time itself and can say more about it; this is for one that does not
_INSIST_S = 0.5


class EvidenceFailed(TargetUnavailable):
    """Our own disk, not the provider."""


class AttemptWire:
    """Where an adapter says what leaves and what came through."""

    def __init__(
        self, *, evidence: wire_log.WireLog, deliveries: Deliveries, delivery: ClaimedDelivery, clock: Clock
    ) -> None:
        self._evidence = evidence
        self._deliveries = deliveries
        self._delivery_id = delivery.id
        self._attempt_id = delivery.attempt_id
        self._clock = clock
        self.in_doubt: int | None = None  # the part that left and of which nothing was heard
        self.deadline: asyncio.Timeout | None = None  # of the attempt

    def leaving(self, part: int = 1) -> None:
        try:
            self._evidence.leaving(self._attempt_id, part)
        except OSError as error:  # a full disk, a worker that has let go: without evidence nothing leaves
            raise EvidenceFailed(f"no evidence could be written ({type(error).__name__})") from error
        self.in_doubt = part

    async def part_sent(self, part: int, provider_delivery_id: str) -> None:
        """Insistently and however long it takes: what came through and is not on record would be said twice."""
        kept = name(provider_delivery_id)
        self.in_doubt = None  # it was answered, whether or not our own database is there
        with _standing_still(self.deadline):
            await self._insist(part, kept)

    async def _insist(self, part: int, kept: str) -> None:
        while True:
            try:
                await self._deliveries.record_part(self._delivery_id, part, kept)
            except Exception as error:
                log.error("a sent part was not recorded", error=error, delivery_id=self._delivery_id)
                await self._clock.sleep(_INSIST_S)
            else:
                return


@contextmanager
def _standing_still(deadline: asyncio.Timeout | None) -> Iterator[None]:
    """It does not pass meanwhile; if its time came, it passes right afterwards, so that no further part leaves late."""
    if deadline is None or deadline.expired():
        yield
        return
    moment = deadline.when()
    deadline.reschedule(None)
    try:
        yield
    finally:
        deadline.reschedule(moment)


async def attempt(
    delivery: ClaimedDelivery,
    *,
    channel: Adapter | None,
    policy: ChannelPolicy,
    wire: wire_log.WireLog,
    deliveries: Deliveries,
    clock: Clock,
) -> AttemptResult:
    if channel is None:
        return NotSent(error=TargetUnavailable(f"{delivery.scoped_channel} is not served here"), asked=False)
    if delivery.not_after is not None and clock.now() > delivery.not_after:
        return NotSent(error=TimeoutExceeded("it was too late to send it", retryable=False), asked=False)
    if delivery.in_doubt and (found := await _find(delivery, channel, policy)) is not None:
        return found
    evidence = AttemptWire(evidence=wire, deliveries=deliveries, delivery=delivery, clock=clock)
    try:
        async with asyncio.timeout(policy.timeout_s + GRACE_S) as evidence.deadline:
            result = await channel.attempt(delivery.outgoing, timeout_s=policy.timeout_s, wire=evidence)
        return storable(result)
    except TimeoutError:
        return _broken(TimeoutExceeded(f"no answer within {policy.timeout_s:g} s"), evidence)
    except EvidenceFailed as error:
        return replace(_broken(error, evidence), asked=evidence.in_doubt is not None)
    except Exception as error:
        log.error("channel failed unexpectedly", error=error, delivery_id=delivery.id, channel=delivery.channel)
        return _broken(InternalError(f"{type(error).__name__} in the channel"), evidence)


async def _find(delivery: ClaimedDelivery, channel: Adapter, policy: ChannelPolicy) -> Sent | None:
    """The message of an earlier attempt, if the provider has it after all."""
    try:
        async with asyncio.timeout(policy.timeout_s):
            found = await channel.find(delivery.outgoing)
    except Exception as error:
        log.warning("looking for an earlier attempt failed", error=error, delivery_id=delivery.id)
        return None
    return Sent(provider_delivery_id=name(found), response={"found": True}) if found is not None else None


def _broken(error: ClassifiedError, evidence: AttemptWire) -> NotSent:
    part = evidence.in_doubt
    return NotSent(
        error=error,
        certainty=Certainty.NOT_SENT if part is None else Certainty.UNCERTAIN,
        response={"phase": "before leaving" if part is None else "answer_awaited", "part": part},
    )
