"""What an attempt's result means for its delivery."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from butlers.errors import ClassifiedError, InternalError, TargetUnavailable, TimeoutExceeded, ValidationError
from butlers.messenger.channel import AttemptResult, Certainty, NotSent, Sent
from butlers.messenger.deliveries import Settlement
from butlers.messenger.settling import settle
from butlers.reliability.retry import RetryPolicy

NOW = datetime(2026, 1, 1, tzinfo=UTC)
POLICY = RetryPolicy(max_attempts=3, initial_delay=1.0, max_delay=60.0)


def settled(
    result: AttemptResult, *, attempt: int = 1, not_after: datetime | None = None, policy: RetryPolicy = POLICY
) -> Settlement:
    return settle(result, attempt=attempt, policy=policy, now=NOW, not_after=not_after, draw=0.5)


def not_sent(error: ClassifiedError) -> NotSent:
    return NotSent(error=error)


errors = st.sampled_from([TargetUnavailable("x"), TimeoutExceeded("x"), ValidationError("x"), InternalError("x")])
deadlines = st.none() | st.integers(-100, 100).map(lambda seconds: NOW + timedelta(seconds=seconds))


@given(st.integers(1, 9), deadlines)
def test_sent_is_delivered_whatever_else_holds(attempt: int, not_after: datetime | None) -> None:
    settlement = settled(Sent(provider_delivery_id="7"), attempt=attempt, not_after=not_after)
    assert settlement == Settlement(status="delivered")


@given(errors, st.integers(1, 9), deadlines)
def test_uncertain_is_parked_and_never_retried(
    error: ClassifiedError, attempt: int, not_after: datetime | None
) -> None:
    result = NotSent(error=error, certainty=Certainty.UNCERTAIN)
    settlement = settled(result, attempt=attempt, not_after=not_after)
    assert settlement.status == "uncertain"
    assert settlement.next_attempt_at is None
    assert settlement.error is not None
    assert settlement.error.retryable is False


@pytest.mark.parametrize(("attempt", "delay"), [(1, 1), (2, 2)])
def test_a_retryable_failure_is_tried_again_later(attempt: int, delay: float) -> None:
    settlement = settled(not_sent(TargetUnavailable("x")), attempt=attempt)
    assert settlement.status == "awaiting_retry"
    assert settlement.next_attempt_at == NOW + timedelta(seconds=delay)


def test_the_last_attempt_fails_for_good() -> None:
    error = TargetUnavailable("x")
    settlement = settled(not_sent(error), attempt=3)
    assert (settlement.status, settlement.error, settlement.next_attempt_at) == ("failed", error, None)


@given(st.integers(1, 9))
def test_what_is_not_retryable_fails_at_once(attempt: int) -> None:
    for error in (ValidationError("x"), InternalError("x"), TargetUnavailable("blocked", retryable=False)):
        assert settled(not_sent(error), attempt=attempt).status == "failed"


def test_the_providers_word_is_the_least_wait() -> None:
    settlement = settled(not_sent(TargetUnavailable("x", retry_after=35)))
    assert settlement.next_attempt_at == NOW + timedelta(seconds=35)


@pytest.mark.parametrize(("seconds", "status"), [(0.5, "expired"), (1, "awaiting_retry"), (5, "awaiting_retry")])
def test_what_could_only_come_too_late_expires(seconds: float, status: str) -> None:
    settlement = settled(not_sent(TargetUnavailable("x")), not_after=NOW + timedelta(seconds=seconds))
    assert settlement.status == status


@given(errors, st.integers(1, 9), deadlines, st.floats(0, 0.999), st.none() | st.floats(0, 1e4))
def test_a_retry_is_ahead_in_time_in_bounds_and_before_the_deadline(
    error: ClassifiedError, attempt: int, not_after: datetime | None, draw: float, retry_after: float | None
) -> None:
    error.retry_after = retry_after
    policy = RetryPolicy(max_attempts=3, initial_delay=1.0, max_delay=60.0, jitter=0.3)
    settlement = settle(not_sent(error), attempt=attempt, policy=policy, now=NOW, not_after=not_after, draw=draw)
    assert settlement.error is error
    if settlement.status == "awaiting_retry":
        assert attempt < 3 and error.retryable
        assert settlement.next_attempt_at is not None and settlement.next_attempt_at >= NOW
        assert not_after is None or settlement.next_attempt_at <= not_after
    else:
        assert settlement.status in ("failed", "expired")
        assert settlement.next_attempt_at is None
