from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from butlers.reliability.retry import (
    LONGEST_RETRY_AFTER,
    MESSENGER_RETRY,
    RUNTIME_RETRY,
    GiveUp,
    GiveUpReason,
    RetryAfter,
    RetryDecision,
    RetryPolicy,
    Strategy,
    next_retry,
)

from .moments import START, at

MIDDLE = 0.5  # the draw that leaves a symmetric jitter at zero


def decide(policy: RetryPolicy, attempt: int, **changes) -> RetryDecision:
    return next_retry(policy, **{"attempt": attempt, "retryable": True, "random": MIDDLE, **changes})


def delays(policy: RetryPolicy) -> list[float]:
    """Every delay a policy grants, in order, until it gives up."""
    granted = []
    for attempt in range(1, 50):
        match decide(policy, attempt):
            case RetryAfter(delay):
                granted.append(delay)
            case GiveUp():
                return granted
    raise AssertionError("the policy never gives up")


policies = st.builds(
    RetryPolicy,
    strategy=st.sampled_from(Strategy),
    max_attempts=st.integers(0, 12),
    initial_delay=st.floats(0, 1e6),
    increment=st.floats(0, 1e6),
    max_delay=st.floats(0, 1e5),
    jitter=st.floats(0, 1),
    schedule=st.lists(st.floats(0, 1e6), min_size=1, max_size=5).map(tuple),
)
draws = st.floats(0, 1, exclude_max=True)


def test_none_is_one_attempt_whatever_the_limit_says():
    assert delays(RetryPolicy(strategy=Strategy.NONE, max_attempts=5)) == []


@pytest.mark.parametrize("max_attempts", [0, 1])
def test_no_attempts_left_means_no_retry(max_attempts):
    assert decide(RetryPolicy(max_attempts=max_attempts), 1) == GiveUp(GiveUpReason.ATTEMPTS_EXHAUSTED)


def test_linear_grows_by_a_minute_by_default_and_stops_at_the_cap():
    policy = RetryPolicy(strategy=Strategy.LINEAR, max_attempts=5, initial_delay=30, max_delay=160)
    assert delays(policy) == [30, 90, 150, 160]


def test_exponential_doubles_and_stops_at_the_cap():
    policy = RetryPolicy(max_attempts=6, initial_delay=10, max_delay=60)
    assert delays(policy) == [10, 20, 40, 60, 60]


def test_custom_follows_its_schedule_repeats_the_last_entry_and_is_clamped_too():
    policy = RetryPolicy(strategy=Strategy.CUSTOM, max_attempts=6, schedule=(300, 900, 7_200, 30), max_delay=3_600)
    assert delays(policy) == [300, 900, 3_600, 30, 30]


def test_messenger_and_runtime_defaults():
    assert delays(replace(MESSENGER_RETRY, jitter=0.0)) == [1, 2]
    assert (MESSENGER_RETRY.max_delay, MESSENGER_RETRY.jitter) == (60, 0.3)
    assert delays(RUNTIME_RETRY) == [60, 120]
    assert RUNTIME_RETRY.max_delay == 30 * 60


@pytest.mark.parametrize(("random", "expected"), [(0.0, 7.0), (0.5, 10.0), (0.999_999, 13.0)])
def test_jitter_moves_the_delay_either_way(random, expected):
    decision = decide(RetryPolicy(initial_delay=10, jitter=0.3), 1, random=random)
    assert isinstance(decision, RetryAfter)
    assert decision.delay == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("attempt", [1, 9])
def test_delays_at_the_cap_stay_spread_out(attempt):
    policy = RetryPolicy(max_attempts=10, initial_delay=60, max_delay=60, jitter=0.5)
    spread = {decide(policy, attempt, random=n / 100) for n in range(100)}
    assert len(spread) == 100
    assert RetryAfter(30.0) in spread


def test_what_cannot_be_retried_is_given_up_at_once():
    assert decide(MESSENGER_RETRY, 1, retryable=False) == GiveUp(GiveUpReason.NOT_RETRYABLE)
    assert decide(MESSENGER_RETRY, 3, retryable=False) == GiveUp(GiveUpReason.NOT_RETRYABLE)


def test_retry_after_is_a_lower_bound_that_may_exceed_the_cap():
    assert decide(MESSENGER_RETRY, 1, retry_after=300.0) == RetryAfter(300.0)
    assert decide(RetryPolicy(initial_delay=20), 1, retry_after=5.0) == RetryAfter(20)


def test_retry_after_grants_no_further_attempt():
    assert decide(MESSENGER_RETRY, 3, retry_after=1.0) == GiveUp(GiveUpReason.ATTEMPTS_EXHAUSTED)


@pytest.mark.parametrize(("nonsense", "expected"), [(math.nan, 1.0), (-5.0, 1.0), (math.inf, LONGEST_RETRY_AFTER)])
def test_a_nonsensical_retry_after_does_no_harm(nonsense, expected):
    assert decide(RetryPolicy(initial_delay=1), 1, retry_after=nonsense) == RetryAfter(expected)


@pytest.mark.parametrize("strategy", [Strategy.LINEAR, Strategy.EXPONENTIAL, Strategy.CUSTOM])
def test_a_huge_attempt_number_meets_the_cap_and_nothing_overflows(strategy):
    policy = RetryPolicy(strategy=strategy, max_attempts=10**401, max_delay=60, schedule=(99,))
    assert decide(policy, 10**400) == RetryAfter(60)


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_attempts": -1},
        {"jitter": 1.1},
        {"jitter": math.nan},
        {"initial_delay": -1},
        {"max_delay": math.inf},
        {"strategy": Strategy.CUSTOM},
        {"strategy": Strategy.CUSTOM, "schedule": (1.0, -1.0)},
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(ValueError):
        RetryPolicy(**wrong)


@pytest.mark.parametrize("wrong", [{"attempt": 0}, {"random": 1.0}, {"random": -0.1}])
def test_arguments_out_of_range_are_refused(wrong):
    with pytest.raises(ValueError):
        decide(MESSENGER_RETRY, **{"attempt": 1, **wrong})


@settings(max_examples=100, deadline=None)
@given(policy=policies, attempt=st.integers(1, 2_000), random=draws, asked=st.none() | st.floats(0, 1e12))
def test_no_delay_is_above_the_cap_unless_the_provider_asked(policy, attempt, random, asked):
    decision = decide(replace(policy, max_attempts=3_000), attempt, random=random, retry_after=asked)
    if isinstance(decision, GiveUp):
        assert policy.strategy is Strategy.NONE
        return
    assert 0 <= decision.delay <= max(policy.max_delay, asked or 0)
    assert decision.delay >= min(asked or 0, LONGEST_RETRY_AFTER)
    assert at(decision.delay) >= START


@settings(max_examples=100, deadline=None)
@given(policy=policies)
def test_a_policy_grants_one_delay_less_than_its_attempts(policy):
    attempts = 1 if policy.strategy is Strategy.NONE else max(1, policy.max_attempts)
    assert len(delays(policy)) == attempts - 1


@settings(max_examples=100, deadline=None)
@given(
    initial=st.integers(0, 500),
    increment=st.integers(0, 500),
    cap=st.integers(0, 5_000),
    attempt=st.integers(1, 30),
)
def test_the_formulas_hold_in_exact_arithmetic(initial, increment, cap, attempt):
    common = {"max_attempts": 99, "initial_delay": initial, "increment": increment, "max_delay": cap}
    linear = decide(RetryPolicy(strategy=Strategy.LINEAR, **common), attempt)
    exponential = decide(RetryPolicy(strategy=Strategy.EXPONENTIAL, **common), attempt)
    assert linear == RetryAfter(min(sum([initial, *[increment] * (attempt - 1)]), cap))
    assert exponential == RetryAfter(float(min(Fraction(initial) * (1 << (attempt - 1)), cap)))
