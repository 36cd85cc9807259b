"""What an attempt means for its delivery: the decision, without any deed.

sent                         -> delivered
not sent, may be tried again -> awaiting_retry, or dead_lettered when the attempts are used up
not sent, final              -> failed
uncertain   never_lose       -> like not sent: the provider can tell a repeat from a second message
            never_duplicate  -> uncertain: parked until somebody settles it
            ask              -> the same, and the owner is asked at once, not with the next notice
too late for not_after       -> expired

A doubt outlives the attempt that left it. `failed`, `dead_lettered` and `expired` say that nothing arrived, so a
delivery of which any attempt may have arrived, and about which nobody has said anything since, ends as `uncertain`.
No channel can prove that it did not arrive: `Channel.find` only ever proves that it did.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from butlers.channels.adapter import AttemptResult, Certainty, NotSent, Sent
from butlers.channels.channel import CertaintyPolicy
from butlers.contracts.delivery_state import DeliveryStatus
from butlers.errors import ClassifiedError, TimeoutExceeded
from butlers.messenger.delivery import Decision, Settlement
from butlers.reliability.error_budget import RETRY_RULE, Stance, tightened
from butlers.reliability.retry import GiveUp, GiveUpReason, RetryPolicy, next_retry


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelPolicy:
    """How one channel is treated."""

    retry: RetryPolicy
    timeout_s: float
    certainty: CertaintyPolicy

    def under(self, stance: Stance) -> RetryPolicy:
        """A channel whose error budget burns is tried less often and more slowly."""
        return tightened(self.retry, stance)


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """What, besides the result, decides what follows."""

    attempt: int
    policy: ChannelPolicy
    stance: Stance
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
        around.policy.under(around.stance),
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
    if around.stance is Stance.NORMAL:
        return None
    detail = "the channel's error budget burns: fewer attempts, further apart"
    return Decision(at=around.now, rule=RETRY_RULE, verdict="tightened", detail=detail)


def uncertain(result: NotSent) -> ClassifiedError:
    """The error of a delivery that may have been sent; retrying it is exactly what must not happen by itself."""
    doubt = "the message may or may not have been sent"
    if result.certainty is not Certainty.UNCERTAIN:
        doubt += " by an earlier attempt, and the last one failed"
    return TimeoutExceeded(f"{doubt}: {result.error.message}", retryable=False)
