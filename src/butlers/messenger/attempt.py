"""One attempt: in time, within its time, with evidence of what left; the provider's text is made fit to be stored."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from butlers.channels.adapter import Adapter, AttemptResult, Certainty, NotSent, Sent
from butlers.clock import Clock
from butlers.errors import ClassifiedError, InternalError, TargetUnavailable, TimeoutExceeded, from_wire
from butlers.messenger.deliveries import Deliveries
from butlers.messenger.delivery import ClaimedDelivery
from butlers.messenger.evidence import WireLog
from butlers.messenger.settlement import ChannelPolicy
from butlers.telemetry import get_logger

log = get_logger("butlers.messenger")

LONGEST_NAME = 512  # characters; more does not fit an index
LONGEST_TEXT = 2_000
DEEPEST = 10  # of evidence within evidence
GRACE_S = 1.0  # an adapter keeps the time itself and can say more about it; this is for one that does not
_INSIST_S = 0.5  # between tries to record a part


class EvidenceFailed(TargetUnavailable):
    """Our own disk, not the provider."""


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
    if found is None:
        return None
    return Sent(provider_delivery_id=text(found)[:LONGEST_NAME], response={"found": True})


def _broken(error: ClassifiedError, evidence: AttemptWire) -> NotSent:
    part = evidence.in_doubt
    return NotSent(
        error=error,
        certainty=Certainty.NOT_SENT if part is None else Certainty.UNCERTAIN,
        response={"phase": "before leaving" if part is None else "answer_awaited", "part": part},
    )


@dataclass(slots=True, kw_only=True)
class AttemptWire:
    """Where an adapter reports what leaves and what came through."""

    evidence: WireLog
    deliveries: Deliveries
    delivery: ClaimedDelivery
    clock: Clock
    in_doubt: int | None = field(default=None, init=False)  # the part that left and was not answered
    deadline: asyncio.Timeout | None = field(default=None, init=False)  # of the attempt

    def leaving(self, part: int = 1) -> None:
        try:
            self.evidence.leaving(self.delivery.attempt_id, part)
        except OSError as error:  # a full disk, a worker that has let go: without evidence nothing leaves
            raise EvidenceFailed(f"no evidence could be written ({type(error).__name__})") from error
        self.in_doubt = part

    async def part_sent(self, part: int, provider_delivery_id: str) -> None:
        """Tries until it is recorded: what came through and is not on record would be sent twice."""
        name = text(provider_delivery_id)[:LONGEST_NAME]
        self.in_doubt = None  # it was answered, whether or not our own database is there
        with _standing_still(self.deadline):
            while True:
                try:
                    await self.deliveries.record_part(self.delivery.id, part, name)
                except Exception as error:
                    log.error("a sent part was not recorded", error=error, delivery_id=self.delivery.id)
                    await self.clock.sleep(_INSIST_S)
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


def storable(result: AttemptResult) -> AttemptResult:
    """The same result in words that can be stored."""
    response, moved_to = _storable(dict(result.response), DEEPEST + 1), result.moved_to
    # A new address that had to be mended would be that of another recipient.
    if moved_to is not None and not (moved_to == text(moved_to) and 0 < len(moved_to) <= LONGEST_NAME):
        moved_to = None
    if isinstance(result, Sent):
        name = text(result.provider_delivery_id)[:LONGEST_NAME]
        return replace(result, provider_delivery_id=name, response=response, moved_to=moved_to)
    error, throttle = result.error, result.throttle
    message, wait = text(error.message)[:LONGEST_TEXT], error.retry_after if _is_wait(error.retry_after) else None
    if (message, wait) != (error.message, error.retry_after):
        error = from_wire(error.error_class.value, message, retryable=error.retryable, retry_after=wait)
    if throttle is not None and not _is_wait(throttle.seconds):
        throttle = None
    return replace(result, error=error, throttle=throttle, response=response, moved_to=moved_to)


def text(given: str) -> str:
    return given.replace("\0", "").encode("utf-8", "replace").decode()


def _is_wait(seconds: float | None) -> bool:
    """Whether it is a time to wait; what is none counts as not said."""
    return seconds is not None and 0 <= seconds < math.inf


def _storable(value: Any, depth: int) -> Any:
    match value:
        case None | bool() | int():
            return value
        case float():
            return value if math.isfinite(value) else None
        case Mapping() if depth:
            return {text(str(key)): _storable(inner, depth - 1) for key, inner in value.items()}
        case list() | tuple() if depth:
            return [_storable(inner, depth - 1) for inner in value]
    return text(str(value))[:LONGEST_TEXT]
