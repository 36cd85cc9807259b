from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from butlers.errors import ErrorClass
from butlers.reliability.dead_letter import (
    DeadLetter,
    QuarantineReason,
    ReplayObstacle,
    ReplayPolicy,
    assess_replay,
    quarantine_reason,
)
from butlers.reliability.retry import (
    MESSENGER_RETRY,
    GiveUp,
    GiveUpReason,
    RetryPolicy,
    Strategy,
    next_retry,
)

from .moments import START, at

POLICY = ReplayPolicy()
LETTER = DeadLetter(error_class=ErrorClass.TIMEOUT)


def reasons(letter: DeadLetter) -> list[str]:
    return [reason.value for reason in assess_replay(letter, POLICY, START).reasons]


@pytest.mark.parametrize(("attempts", "expected"), [(1, None), (2, None), (3, "retries_exhausted")])
def test_work_is_quarantined_when_its_attempts_are_used_up(attempts, expected):
    reason = quarantine_reason(
        attempts=attempts, error_class=ErrorClass.TIMEOUT, retryable=True, policy=MESSENGER_RETRY
    )
    assert reason == expected


@pytest.mark.parametrize("error_class", ErrorClass)
def test_a_failure_that_is_final_in_itself_is_not_quarantined(error_class):
    reason = quarantine_reason(attempts=3, error_class=error_class, retryable=False, policy=MESSENGER_RETRY)
    assert reason is None


def test_wrong_input_is_not_quarantined_even_if_somebody_calls_it_retryable():
    reason = quarantine_reason(
        attempts=3, error_class=ErrorClass.VALIDATION_ERROR, retryable=True, policy=MESSENGER_RETRY
    )
    assert reason is None


@settings(max_examples=100, deadline=None)
@given(
    attempts=st.integers(1, 12),
    error_class=st.sampled_from([c for c in ErrorClass if c is not ErrorClass.VALIDATION_ERROR]),
    retryable=st.booleans(),
    strategy=st.sampled_from(Strategy),
    max_attempts=st.integers(0, 10),
)
def test_quarantine_begins_exactly_where_retrying_ends(attempts, error_class, retryable, strategy, max_attempts):
    policy = RetryPolicy(strategy=strategy, max_attempts=max_attempts, schedule=(1.0,))
    decision = next_retry(policy, attempt=attempts, retryable=retryable, random=0.5)
    reason = quarantine_reason(attempts=attempts, error_class=error_class, retryable=retryable, policy=policy)
    exhausted = decision == GiveUp(GiveUpReason.ATTEMPTS_EXHAUSTED)
    assert reason == (QuarantineReason.RETRIES_EXHAUSTED if exhausted else None)


def test_a_dead_letter_without_obstacles_may_be_replayed():
    described = assess_replay(replace(LETTER, replay_count=2), POLICY, START).describe()
    assert described == {"eligible": True, "reasons": [], "replay_count": 2}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"discarded": True}, "discarded"),
        ({"error_class": ErrorClass.VALIDATION_ERROR}, "validation_error"),
        ({"uncertain": True}, "uncertain_not_settled"),
        ({"replay_in_progress": True}, "replay_in_progress"),
        ({"delivered": True}, "already_delivered"),
        ({"not_after": at(-1)}, "expired"),
        ({"replay_count": 3}, "replay_limit_reached"),
    ],
)
def test_each_obstacle_stands_in_the_way_by_itself(change, reason):
    letter = replace(LETTER, **change)
    assert reasons(letter) == [reason]
    assert assess_replay(letter, POLICY, START).eligible is False


def test_every_obstacle_is_named_at_once():
    letter = DeadLetter(
        error_class=ErrorClass.VALIDATION_ERROR,
        replay_count=9,
        discarded=True,
        uncertain=True,
        replay_in_progress=True,
        delivered=True,
        not_after=at(-1),
    )
    assert set(reasons(letter)) == {obstacle.value for obstacle in ReplayObstacle}


def test_work_may_be_replayed_up_to_the_very_moment_it_expires():
    assert reasons(replace(LETTER, not_after=START)) == []


def test_a_policy_without_replays_allows_none():
    assert not assess_replay(LETTER, ReplayPolicy(max_replays=0), START).eligible
