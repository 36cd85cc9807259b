"""When a failed delivery is tried again: the policy's delay, and never inside quiet hours."""

from __future__ import annotations

from datetime import datetime, timedelta

from butlers.outbound.quiet_hours import QuietHours
from butlers.reliability.retry import GiveUp, RetryPolicy, next_retry


def schedule_retry(
    policy: RetryPolicy,
    *,
    attempt: int,  # 1-based: the one that has just failed
    failed_at: datetime,
    quiet: QuietHours,  # the recipient's and the policy's
    until: datetime,
    retry_after: float | None = None,  # seconds, the provider's word
) -> datetime | None:
    """The moment of the next attempt, None when there is to be none."""
    decision = next_retry(policy, attempt=attempt, retryable=True, retry_after=retry_after, random=0.0)
    if isinstance(decision, GiveUp):
        return None
    return quiet.next_delivery_window(failed_at + timedelta(seconds=decision.delay), until=until)
