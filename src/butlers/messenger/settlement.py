"""What an attempt means for its delivery: the decision, the row it leads to, and the answer the caller gets."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Self
from uuid import UUID

from butlers.channels.adapter import AttemptResult, Certainty, NotSent, Sent
from butlers.channels.channel import CertaintyPolicy
from butlers.contracts.delivery_state import OPEN, DeliveryStatus
from butlers.errors import ClassifiedError, TimeoutExceeded, from_wire
from butlers.messenger.channel_health import Report
from butlers.messenger.config import DEFAULT, DeliverySection
from butlers.messenger.delivery import ClaimedDelivery, Decision
from butlers.reliability.error_budget import RETRY_RULE, BudgetMode, tightened
from butlers.reliability.retry import GiveUp, GiveUpReason, RetryPolicy, next_retry
from butlers.storage.database import Record

CONFIRMED = "confirmed by "  # and who: stands for the provider's name of a part that a person says arrived


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """The state a delivery is in after an attempt."""

    status: DeliveryStatus
    next_attempt_at: datetime | None = None
    error: ClassifiedError | None = None
    decision: Decision | None = None

    @property
    def tells_owner(self) -> bool:
        return self.status == "uncertain"


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
    def report(self) -> Report:
        """What it says about the channel's circuit."""
        delivery = self.delivery
        return Report(
            channel=delivery.scoped_channel, generation=delivery.generation, result=self.result, lost=self.lost
        )

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
            "tell_owner": settlement.tells_owner,
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
    decision = next_retry(
        tightened(around.policy.retry, around.mode),  # tried less often and more slowly while the error budget burns
        attempt=around.attempt,
        retryable=error.retryable or doubt,
        retry_after=error.retry_after,
        random=around.draw,
    )
    if isinstance(decision, GiveUp):
        exhausted = decision.reason is GiveUpReason.ATTEMPTS_EXHAUSTED
        status: DeliveryStatus = "dead_lettered" if exhausted else "failed"
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
