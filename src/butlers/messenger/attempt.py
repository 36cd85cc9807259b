"""One attempt: in time, within its time, with evidence of what left; the provider's text is made fit to be stored."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from butlers.channels.adapter import Adapter, AttemptResult, Certainty, NotSent, Sent, Throttle
from butlers.clock import Clock
from butlers.errors import ClassifiedError, InternalError, TargetUnavailable, TimeoutExceeded, from_wire
from butlers.messenger.deliveries import Deliveries
from butlers.messenger.delivery import ClaimedDelivery
from butlers.messenger.evidence import WireLog
from butlers.messenger.settlement import ChannelPolicy
from butlers.telemetry import get_logger

LONGEST_NAME = 512  # characters; more does not fit an index
LONGEST_TEXT = 2_000
DEEPEST = 10  # of evidence within evidence


def storable(result: AttemptResult) -> AttemptResult:
    """The same result in words that can be kept."""
    response, moved_to = evidence(result.response), _address(result.moved_to)
    if isinstance(result, Sent):
        return replace(
            result, provider_delivery_id=name(result.provider_delivery_id), response=response, moved_to=moved_to
        )
    error, throttle = _error(result.error), _throttle(result)
    return replace(result, error=error, throttle=throttle, response=response, moved_to=moved_to)


def name(given: str) -> str:
    """What the provider calls a message."""
    return text(given)[:LONGEST_NAME]


def text(given: str) -> str:
    return given.replace("\0", "").encode("utf-8", "replace").decode()


def evidence(given: Mapping[str, Any]) -> dict[str, Any]:
    return {text(str(key)): _kept(value, DEEPEST) for key, value in given.items()}


def _kept(value: Any, depth: int) -> Any:
    match value:
        case None | bool() | int():
            return value
        case float():
            return value if math.isfinite(value) else None
        case Mapping() if depth:
            return {text(str(key)): _kept(inner, depth - 1) for key, inner in value.items()}
        case list() | tuple() if depth:
            return [_kept(inner, depth - 1) for inner in value]
    return text(str(value))[:LONGEST_TEXT]


def _error(error: ClassifiedError) -> ClassifiedError:
    message, wait = text(error.message)[:LONGEST_TEXT], _seconds(error.retry_after)
    if (message, wait) == (error.message, error.retry_after):
        return error
    return from_wire(error.error_class.value, message, retryable=error.retryable, retry_after=wait)


def _throttle(result: NotSent) -> Throttle | None:
    seconds = _seconds(result.throttle.seconds) if result.throttle is not None else None
    return None if result.throttle is None or seconds is None else replace(result.throttle, seconds=seconds)


def _seconds(given: float | None) -> float | None:
    """A time to wait; what is none counts as not said."""
    return given if given is not None and 0 <= given < math.inf else None


def _address(given: str | None) -> str | None:
    """A new address, or nothing: one that had to be mended would be somebody else's."""
    fits = given is not None and given == text(given) and 0 < len(given) <= LONGEST_NAME
    return given if fits else None


log = get_logger("butlers.messenger")

GRACE_S = 1.0  # an adapter keeps the time itself and can say more about it; this is for one that does not
_INSIST_S = 0.5


class EvidenceFailed(TargetUnavailable):
    """Our own disk, not the provider."""


class AttemptWire:
    """Where an adapter says what leaves and what came through."""

    def __init__(self, *, evidence: WireLog, deliveries: Deliveries, delivery: ClaimedDelivery, clock: Clock) -> None:
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
    wire: WireLog,
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
