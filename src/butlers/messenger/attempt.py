"""One attempt and what it means.

    attempt   in time, within its time, with evidence of what left; the provider's text is made fit to be stored
    settle    the state of the delivery after it: delivered, tried again, ended, or in doubt

`Ended` is both, as the row is written; `Outcome` is what the caller is told.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Self
from uuid import UUID

from butlers.channels.adapter import Adapter, AttemptResult, Certainty, NotSent, Sent
from butlers.channels.channel import CertaintyPolicy
from butlers.clock import Clock
from butlers.contracts.delivery_state import OPEN, DeliveryStatus
from butlers.errors import (
    ClassifiedError,
    ErrorClass,
    InternalError,
    TargetUnavailable,
    TimeoutExceeded,
    from_wire,
)
from butlers.messenger.config import DEFAULT, DeliverySection
from butlers.messenger.delivery import ClaimedDelivery, Decision
from butlers.reliability.error_budget import RETRY_RULE, BudgetMode, tightened
from butlers.reliability.retry import GiveUp, GiveUpReason, RetryPolicy, next_retry
from butlers.storage.database import Record
from butlers.telemetry import get_logger

log = get_logger("butlers.messenger")

CONFIRMED = "confirmed by "  # and who: stands for the provider's name of a part that a person says arrived
LONGEST_NAME = 512  # characters; more does not fit an index
LONGEST_TEXT = 2_000
DEEPEST = 10  # of evidence within evidence
GRACE_S = 1.0  # an adapter keeps the time itself and can say more about it; this is for one that does not
_INSIST_S = 0.5  # between tries to record a part
_FAULTS = frozenset({ErrorClass.TARGET_UNAVAILABLE, ErrorClass.TIMEOUT})  # that may be the provider's


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """The state a delivery is in after an attempt."""

    status: DeliveryStatus
    next_attempt_at: datetime | None = None
    error: ClassifiedError | None = None
    decision: Decision | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """An attempt that is over and what it means."""

    delivery: ClaimedDelivery
    result: AttemptResult
    settlement: Settlement
    latency_ms: int
    receipt_id: UUID
    lost: bool = False  # nobody lived to report it

    @property
    def blames_provider(self) -> bool:
        """Whether the provider, and not the message, the recipient or our own process, is to blame."""
        result = self.result
        if self.lost or isinstance(result, Sent) or result.throttle is not None:
            return False
        return result.asked and not result.recipient_gone and result.error.error_class in _FAULTS

    @property
    def outcome(self) -> Outcome:
        """What the caller is told, without looking at the row again."""
        return Outcome(
            delivery_id=self.delivery.id,
            channel=self.delivery.channel,
            status=self.settlement.status,
            error=self.settlement.error,
            provider_delivery_id=self.result.provider_delivery_id if isinstance(self.result, Sent) else None,
        )

    def to_row(self) -> dict[str, Any]:
        delivery, result, settlement, error = self.delivery, self.result, self.settlement, self.settlement.error
        row = {
            "delivery_id": delivery.id,
            "claim_token": delivery.claim_token,
            "attempt_id": delivery.attempt_id,
            "latency_ms": self.latency_ms,
            "status": settlement.status,
            "next_attempt_at": settlement.next_attempt_at,
            "error_class": error.error_class.value if error else None,
            "error_message": error.message if error else None,
            "retryable": error.retryable if error else None,
            "terminal": settlement.status not in OPEN,
            "tell_owner": settlement.status == "uncertain",
            "decision": [settlement.decision.to_row()] if settlement.decision else None,
            "provider_response": dict(result.response),
            "target_identity": result.moved_to,
        }
        if isinstance(result, Sent):
            return row | {
                "outcome": "lost" if self.lost else "sent",
                "certainty": Certainty.SENT.value,
                "receipt_id": self.receipt_id,
                "part": result.part,
                "provider_delivery_id": result.provider_delivery_id,
            }
        return row | {
            "outcome": "lost" if self.lost else "rejected" if result.answered else "failed",
            "certainty": result.certainty.value,
            "attempt_error_class": result.error.error_class.value,
            "attempt_error_message": result.error.message,
            "attempt_retryable": result.error.retryable,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelPolicy:
    """How one channel is treated."""

    retry: RetryPolicy
    timeout_s: float
    certainty: CertaintyPolicy

    @classmethod
    def of(cls, delivery: DeliverySection, channel: str) -> Self:
        """`channel`: its name, without its identity scope."""
        return cls(
            retry=delivery.retry.get(channel, delivery.retry[DEFAULT]).policy(),
            timeout_s=delivery.timeout_s.get(channel, delivery.timeout_s[DEFAULT]),
            certainty=delivery.certainty.get(channel, delivery.certainty[DEFAULT]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """What, besides the result, decides what follows."""

    attempt: int
    policy: ChannelPolicy
    mode: BudgetMode
    now: datetime
    not_after: datetime | None
    in_doubt: bool  # an earlier attempt may have arrived, and nobody has said whether
    draw: float  # chance, in [0, 1)
    max_attempts: int | None = None  # the caller's own limit


def settle(result: AttemptResult, around: Circumstances) -> Settlement:
    if isinstance(result, Sent):
        return Settlement(status="delivered")
    if result.certainty is Certainty.UNCERTAIN and around.policy.certainty != "never_lose":
        return parked(result, around)
    settlement = _retry_or_end(result, around)
    open_doubt = around.in_doubt or result.certainty is Certainty.UNCERTAIN
    return parked(result, around) if open_doubt and settlement.status != "awaiting_retry" else settlement


def _retry_or_end(result: NotSent, around: Circumstances) -> Settlement:
    error, doubt = result.error, result.certainty is Certainty.UNCERTAIN
    if around.not_after is not None and around.now > around.not_after:
        return Settlement(status="expired", error=error)
    # Tried less often and more slowly while the error budget burns.
    retry = tightened(around.policy.retry, around.mode)
    # A resend that clears up a doubt is not a further attempt of the caller's.
    own_limit = around.max_attempts if not doubt else None
    if own_limit is not None:
        retry = replace(retry, max_attempts=min(own_limit, retry.max_attempts))
    decision = next_retry(
        retry,
        attempt=around.attempt,
        retryable=error.retryable or doubt,
        retry_after=error.retry_after,
        random=around.draw,
    )
    if isinstance(decision, GiveUp):
        exhausted = decision.reason is GiveUpReason.ATTEMPTS_EXHAUSTED
        status: DeliveryStatus = "dead_lettered" if exhausted and own_limit is None else "failed"
        return Settlement(status=status, error=error, decision=_tightened(around) if exhausted else None)
    due = around.now + timedelta(seconds=decision.delay)
    if around.not_after is not None and due > around.not_after:
        return Settlement(status="expired", error=error)
    decided = _resend(around) if doubt else _tightened(around)
    return Settlement(status="awaiting_retry", next_attempt_at=due, error=error, decision=decided)


def parked(result: NotSent, around: Circumstances) -> Settlement:
    """It may have arrived, by this attempt or an earlier one: somebody has to find out."""
    which = "it" if result.certainty is Certainty.UNCERTAIN else "an earlier attempt"
    detail = f"policy {around.policy.certainty}: {which} may have arrived, so it is not sent again by itself"
    decision = Decision(at=around.now, rule="certainty", verdict="uncertain", detail=detail)
    return Settlement(status="uncertain", error=uncertain(result), decision=decision)


def _resend(around: Circumstances) -> Decision:
    detail = "policy never_lose: it is sent again under the same identity, which the provider recognises"
    return Decision(at=around.now, rule="certainty", verdict="resend", detail=detail)


def _tightened(around: Circumstances) -> Decision | None:
    if around.mode is BudgetMode.NORMAL:
        return None
    detail = "the channel's error budget burns: fewer attempts, further apart"
    return Decision(at=around.now, rule=RETRY_RULE, verdict="tightened", detail=detail)


def uncertain(result: NotSent) -> ClassifiedError:
    """The error of a delivery that may have been sent; retrying it is exactly what must not happen by itself."""
    doubt = "the message may or may not have been sent"
    if result.certainty is not Certainty.UNCERTAIN:
        doubt += " by an earlier attempt, and the last one failed"
    return TimeoutExceeded(f"{doubt}: {result.error.message}", retryable=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a caller hears about a delivery."""

    delivery_id: UUID
    channel: str
    status: DeliveryStatus
    error: ClassifiedError | None = None
    provider_delivery_id: str | None = None
    action_id: UUID | None = None

    @classmethod
    def of_row(cls, row: Record) -> Self:
        error_class, message = row["terminal_error_class"], row["terminal_error_message"]
        ended_badly = error_class is not None and row["status"] not in OPEN
        return cls(
            delivery_id=row["id"],
            channel=row["channel"],
            status=row["status"],
            error=from_wire(error_class, message, retryable=bool(row["terminal_retryable"])) if ended_badly else None,
            provider_delivery_id=row["provider_delivery_id"],
            action_id=row["action_id"],
        )


class EvidenceFailed(TargetUnavailable):
    """Our own disk, not the provider."""


async def attempt(
    delivery: ClaimedDelivery,
    *,
    channel: Adapter | None,
    policy: ChannelPolicy,
    leaving: Callable[[UUID, int], None],  # keeps evidence that a part of an attempt is about to leave
    record_part: Callable[[UUID, int, str], Awaitable[None]],  # delivery, part, the provider's name of it
    clock: Clock,
) -> AttemptResult:
    if channel is None:
        return NotSent(error=TargetUnavailable(f"{delivery.scoped_channel} is not served here"), asked=False)
    if delivery.not_after is not None and clock.now() > delivery.not_after:
        return NotSent(error=TimeoutExceeded("it was too late to send it", retryable=False), asked=False)
    if delivery.in_doubt and (found := await _find(delivery, channel, policy)) is not None:
        return found
    evidence = AttemptWire(evidence=leaving, record_part=record_part, delivery=delivery, clock=clock)
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

    evidence: Callable[[UUID, int], None]
    record_part: Callable[[UUID, int, str], Awaitable[None]]
    delivery: ClaimedDelivery
    clock: Clock
    in_doubt: int | None = field(default=None, init=False)  # the part that left and was not answered
    deadline: asyncio.Timeout | None = field(default=None, init=False)  # of the attempt

    def leaving(self, part: int = 1) -> None:
        try:
            self.evidence(self.delivery.attempt_id, part)
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
                    await self.record_part(self.delivery.id, part, name)
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
