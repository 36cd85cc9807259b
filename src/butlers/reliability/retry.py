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
        durations = (self.initial_delay, self.increment, self.max_delay, *self.schedule)
        if self.max_attempts < 0:
            raise ValueError("max_attempts must not be negative")
        if not 0 <= self.jitter <= 1:
            raise ValueError("jitter must be between 0 and 1")
        if not all(math.isfinite(duration) and duration >= 0 for duration in durations):
            raise ValueError("delays must be finite and not negative")
        if self.strategy is Strategy.CUSTOM and not self.schedule:
            raise ValueError("custom needs a schedule")

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
    if attempt < 1 or not 0 <= random < 1:
        raise ValueError("attempts are counted from 1, and random must be in [0, 1)")
    if not retryable:
        return GiveUp(GiveUpReason.NOT_RETRYABLE)
    if attempt >= policy.attempts_allowed:
        return GiveUp(GiveUpReason.ATTEMPTS_EXHAUSTED)
    delay = backoff(policy, attempt)
    lowest, highest = delay * (1 - policy.jitter), min(delay * (1 + policy.jitter), policy.max_delay)
    delay = min(lowest + (highest - lowest) * random, policy.max_delay)
    asked = 0.0 if retry_after is None or math.isnan(retry_after) else retry_after
    return RetryAfter(max(delay, min(asked, LONGEST_RETRY_AFTER)))


def backoff(policy: RetryPolicy, attempt: int) -> float:
    """The delay after the given failed attempt, in seconds, clamped but without jitter."""
    match policy.strategy:
        case Strategy.NONE:
            delay = policy.initial_delay
        case Strategy.LINEAR:
            delay = policy.initial_delay + min(attempt - 1, _MOST_INCREMENTS) * policy.increment
        case Strategy.EXPONENTIAL:
            delay = policy.initial_delay * 2.0 ** min(attempt - 1, _MOST_DOUBLINGS)
        case Strategy.CUSTOM:
            delay = policy.schedule[min(attempt, len(policy.schedule)) - 1]
        case _:
            assert_never(policy.strategy)
    return min(delay, policy.max_delay)
