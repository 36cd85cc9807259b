"""What an attempt means for its delivery: the decision, without any deed."""

from __future__ import annotations

from datetime import datetime, timedelta

from butlers.errors import ClassifiedError, TimeoutExceeded
from butlers.messenger.channel import AttemptResult, Certainty, Sent
from butlers.messenger.deliveries import Settlement
from butlers.reliability.retry import RetryAfter, RetryPolicy, next_retry


def settle(
    result: AttemptResult, *, attempt: int, policy: RetryPolicy, now: datetime, not_after: datetime | None, draw: float
) -> Settlement:
    """What an attempt's result means for its delivery."""
    if isinstance(result, Sent):
        return Settlement(status="delivered")
    if result.certainty is Certainty.UNCERTAIN:
        return Settlement(status="uncertain", error=uncertain(result.error))
    error = result.error
    if not_after is not None and now > not_after:
        return Settlement(status="expired", error=error)
    decision = next_retry(
        policy, attempt=attempt, retryable=error.retryable, retry_after=error.retry_after, random=draw
    )
    if not isinstance(decision, RetryAfter):
        return Settlement(status="failed", error=error)
    due = now + timedelta(seconds=decision.delay)
    if not_after is not None and due > not_after:
        return Settlement(status="expired", error=error)
    return Settlement(status="awaiting_retry", next_attempt_at=due, error=error)


def uncertain(error: ClassifiedError) -> ClassifiedError:
    """The error of a delivery that may have been sent; retrying it is exactly what must not happen by itself."""
    return TimeoutExceeded(f"the message may or may not have been sent: {error.message}", retryable=False)
