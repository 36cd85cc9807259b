"""When to try again, or why not.

    none         one attempt, whatever `max_attempts` says
    linear       initial + (attempt - 1) * increment
    exponential  initial * 2 ** (attempt - 1)
    custom       schedule[attempt - 1]; the last entry repeats until the attempts are used up

Every strategy is clamped to `max_delay`. Jitter then spreads the delay evenly over

    [ delay * (1 - jitter) , min(delay * (1 + jitter), max_delay) ]

The upper end is cut before the draw and not after it: clamping afterwards would pile half of all the retries that
have reached the cap on one and the same moment.

A provider's Retry-After is a lower bound on whatever comes out, and it may exceed the cap: coming back earlier than
asked only earns the next refusal.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

LONGEST_RETRY_AFTER = 30 * 86_400.0  # seconds; keeps `now + delay` a valid date whatever a provider sends

# Beyond this many doublings every delay has long met its cap, and 2.0 ** n is still a float.
_MOST_DOUBLINGS = 1_000
_MOST_INCREMENTS = 10**15


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise ValueError(message)


class Strategy(StrEnum):
    NONE = "none"
    LINEAR = "linear"
    EXPONENTIAL = "exponential"
    CUSTOM = "custom"


class GiveUpReason(StrEnum):
    NOT_RETRYABLE = "not_retryable"
    ATTEMPTS_EXHAUSTED = "attempts_exhausted"


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often and how patiently."""

    strategy: Strategy = Strategy.EXPONENTIAL
    max_attempts: int = 3  # in all, the first one included; 0 and 1 both mean no retry
    initial_delay: float = 1.0  # seconds before the second attempt
    increment: float = 60.0  # seconds, linear only
    max_delay: float = 60.0  # seconds, the cap of every strategy
    jitter: float = 0.0  # 0..1, the share of the delay it may move by, either way
    schedule: tuple[float, ...] = ()  # seconds, custom only

    def __post_init__(self) -> None:
        _require(self.max_attempts >= 0, "max_attempts must not be negative")
        _require(0 <= self.jitter <= 1, "jitter must be between 0 and 1")
        durations = (self.initial_delay, self.increment, self.max_delay, *self.schedule)
        _require(all(math.isfinite(d) and d >= 0 for d in durations), "delays must be finite and not negative")
        _require(self.strategy is not Strategy.CUSTOM or bool(self.schedule), "custom needs a schedule")

    @property
    def attempts_allowed(self) -> int:
        """How many attempts there may be in all."""
        return 1 if self.strategy is Strategy.NONE else max(1, self.max_attempts)


MESSENGER_RETRY = RetryPolicy(max_attempts=3, initial_delay=1.0, max_delay=60.0, jitter=0.3)
RUNTIME_RETRY = RetryPolicy(max_attempts=3, initial_delay=60.0, max_delay=1_800.0)


@dataclass(frozen=True, slots=True)
class RetryAfter:
    """Try again, this many seconds from now."""

    delay: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The failure is final."""

    reason: GiveUpReason


RetryDecision = RetryAfter | GiveUp


def next_retry(
    policy: RetryPolicy,
    *,
    attempt: int,  # 1-based: the attempt that has just failed
    retryable: bool,
    retry_after: float | None = None,  # seconds, the provider's word
    random: float,  # in [0, 1)
) -> RetryDecision:
    """What follows a failed attempt."""
    _require(attempt >= 1, "attempts are counted from 1")
    _require(0 <= random < 1, "random must be in [0, 1)")
    if not retryable:
        return GiveUp(GiveUpReason.NOT_RETRYABLE)
    if attempt >= policy.attempts_allowed:
        return GiveUp(GiveUpReason.ATTEMPTS_EXHAUSTED)
    delay = _spread(backoff(policy, attempt), policy, random)
    return RetryAfter(max(delay, _lower_bound(retry_after)))


def backoff(policy: RetryPolicy, attempt: int) -> float:
    """The delay after the given failed attempt, in seconds, clamped but without jitter."""
    return min(_uncapped(policy, attempt), policy.max_delay)


def _uncapped(policy: RetryPolicy, attempt: int) -> float:
    match policy.strategy:
        case Strategy.NONE:
            return policy.initial_delay
        case Strategy.LINEAR:
            return policy.initial_delay + min(attempt - 1, _MOST_INCREMENTS) * policy.increment
        case Strategy.EXPONENTIAL:
            return policy.initial_delay * 2.0 ** min(attempt - 1, _MOST_DOUBLINGS)
        case Strategy.CUSTOM:
            return policy.schedule[min(attempt, len(policy.schedule)) - 1]
        case _:
            assert_never(policy.strategy)


def _spread(delay: float, policy: RetryPolicy, random: float) -> float:
    lowest = delay * (1 - policy.jitter)
    highest = min(delay * (1 + policy.jitter), policy.max_delay)
    return min(lowest + (highest - lowest) * random, policy.max_delay)


def _lower_bound(retry_after: float | None) -> float:
    if retry_after is None or math.isnan(retry_after):
        return 0.0
    return min(max(retry_after, 0.0), LONGEST_RETRY_AFTER)
