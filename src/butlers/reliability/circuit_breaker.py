"""Whether a target may be tried at all.

                 failure_threshold failures in a row
       +--------+ ---------------------------------> +------+
       | closed |                                    | open | <-----------+
       +--------+ <------------+                     +------+             |
                               |                        |                 |
          success_threshold    |                        | recovery_timeout has passed
          successful probes    |                        v                 |
                               |                  +-----------+           |
                               +----------------- | half-open | ----------+
                                                  +-----------+   a probe failed
                                                    ^       |
                                                    +-------+  every probe out, none came back in time

Every arrow starts a new *generation*. An admission carries the generation it was given in, and its result hands it
back: a result from another generation says nothing about the present and changes nothing. So a call that was
admitted before the trip can neither close the circuit by succeeding late nor open it again by failing late. An open
circuit has admitted nobody, so no result can be about it.

Invariants
- closed: fewer failures in a row than the threshold;
- half-open: at most `probe_limit` probes are out, and fewer successes than the threshold;
- a refusal always says how long until a probe is possible, at most `recovery_timeout`, also when the clock has been
  set back;
- probes whose results never come (their workers died) cannot keep the circuit half-open: `recovery_timeout` after
  the last one went out every slot is free again, so that timeout must be longer than the longest call.

Each admission reports exactly one result: success, failure, or ignored (the caller's fault, such as a
`validation_error`, which says nothing about the target).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum, auto
from types import MappingProxyType


class BreakerState(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


class BreakerEvent(StrEnum):
    THRESHOLD_REACHED = auto()
    RECOVERY_DUE = auto()
    PROBE_FAILED = auto()
    PROBES_SUCCEEDED = auto()
    PROBES_LOST = auto()


TRANSITIONS: Mapping[tuple[BreakerState, BreakerEvent], BreakerState] = MappingProxyType(
    {
        (BreakerState.CLOSED, BreakerEvent.THRESHOLD_REACHED): BreakerState.OPEN,
        (BreakerState.OPEN, BreakerEvent.RECOVERY_DUE): BreakerState.HALF_OPEN,
        (BreakerState.HALF_OPEN, BreakerEvent.PROBE_FAILED): BreakerState.OPEN,
        (BreakerState.HALF_OPEN, BreakerEvent.PROBES_SUCCEEDED): BreakerState.CLOSED,
        (BreakerState.HALF_OPEN, BreakerEvent.PROBES_LOST): BreakerState.HALF_OPEN,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerPolicy:
    failure_threshold: int = 5  # the failure in a row that opens the circuit
    recovery_timeout: float = 60.0  # seconds from the trip to the first probe
    probe_limit: int = 1  # half-open probes out at the same time
    success_threshold: int = 2  # successful probes that close the circuit

    def __post_init__(self) -> None:
        if min(self.failure_threshold, self.probe_limit, self.success_threshold) < 1:
            raise ValueError("thresholds and the probe limit must be at least 1")
        if self.recovery_timeout <= 0:
            raise ValueError("recovery_timeout must be positive")


@dataclass(frozen=True, slots=True, kw_only=True)
class Breaker:
    """One circuit at one moment."""

    state: BreakerState = BreakerState.CLOSED
    generation: int = 0
    consecutive_failures: int = 0
    probes_out: int = 0  # half-open only
    probe_successes: int = 0  # half-open only
    trip_reason: str | None = None  # None while closed
    tripped_at: datetime | None = None  # None while closed
    probe_at: datetime | None = None  # when a probe is possible at the latest; None while closed


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    generation: int  # to be handed back with the result
    probe: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    retry_after: float  # seconds until a probe is possible, at the latest
    reason: str  # why the circuit tripped


Admission = Admitted | Rejected


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerSnapshot:
    """What an operator sees."""

    state: BreakerState
    consecutive_failures: int
    trip_reason: str | None
    tripped_at: datetime | None
    recovery_timeout: float  # seconds
    retry_after: float | None  # seconds until a probe is possible; None while closed
    probes_out: int
    probe_successes: int


def admit(breaker: Breaker, policy: BreakerPolicy, now: datetime) -> tuple[Admission, Breaker]:
    """May a call go out now?"""
    if breaker.state is BreakerState.CLOSED:
        return Admitted(generation=breaker.generation, probe=False), breaker
    if _has_free_slot(breaker, policy):
        return _admit_probe(breaker, policy, now)
    wait = _wait(breaker, policy, now)
    if wait > 0:
        rejected = Rejected(retry_after=wait, reason=breaker.trip_reason or "")
        return rejected, replace(breaker, probe_at=now + timedelta(seconds=wait))
    waited_for = BreakerEvent.RECOVERY_DUE if breaker.state is BreakerState.OPEN else BreakerEvent.PROBES_LOST
    return _admit_probe(_transition(breaker, waited_for), policy, now)


def record_success(breaker: Breaker, policy: BreakerPolicy, *, generation: int) -> Breaker:
    """The call came through."""
    if breaker.state is BreakerState.OPEN or generation != breaker.generation:
        return breaker
    if breaker.state is not BreakerState.HALF_OPEN:
        return replace(breaker, consecutive_failures=0)
    if breaker.probe_successes + 1 >= policy.success_threshold:
        return _closed(breaker)
    return replace(_release(breaker), consecutive_failures=0, probe_successes=breaker.probe_successes + 1)


def record_failure(breaker: Breaker, policy: BreakerPolicy, *, generation: int, reason: str, now: datetime) -> Breaker:
    """The target failed."""
    if breaker.state is BreakerState.OPEN or generation != breaker.generation:
        return breaker
    counted = replace(breaker, consecutive_failures=breaker.consecutive_failures + 1)
    if breaker.state is BreakerState.HALF_OPEN:
        return _tripped(counted, policy, BreakerEvent.PROBE_FAILED, reason, now)
    if counted.consecutive_failures >= policy.failure_threshold:
        return _tripped(counted, policy, BreakerEvent.THRESHOLD_REACHED, reason, now)
    return counted


def record_ignored(breaker: Breaker, *, generation: int) -> Breaker:
    """The call ended in a way that says nothing about the target; only its probe slot is given back."""
    if breaker.state is BreakerState.OPEN or generation != breaker.generation:
        return breaker
    return _release(breaker)


def snapshot(breaker: Breaker, policy: BreakerPolicy, now: datetime) -> BreakerSnapshot:
    return BreakerSnapshot(
        state=breaker.state,
        consecutive_failures=breaker.consecutive_failures,
        trip_reason=breaker.trip_reason,
        tripped_at=breaker.tripped_at,
        recovery_timeout=policy.recovery_timeout,
        retry_after=_retry_after(breaker, policy, now),
        probes_out=breaker.probes_out,
        probe_successes=breaker.probe_successes,
    )


def _retry_after(breaker: Breaker, policy: BreakerPolicy, now: datetime) -> float | None:
    if breaker.state is BreakerState.CLOSED:
        return None
    return 0.0 if _has_free_slot(breaker, policy) else _wait(breaker, policy, now)


def _wait(breaker: Breaker, policy: BreakerPolicy, now: datetime) -> float:
    # A clock that was set back would make the wait longer than any honest wait can be.
    remaining = (breaker.probe_at - now).total_seconds() if breaker.probe_at else 0.0
    return min(max(remaining, 0.0), policy.recovery_timeout)


def _has_free_slot(breaker: Breaker, policy: BreakerPolicy) -> bool:
    return breaker.state is BreakerState.HALF_OPEN and breaker.probes_out < policy.probe_limit


def _admit_probe(breaker: Breaker, policy: BreakerPolicy, now: datetime) -> tuple[Admission, Breaker]:
    admitted = Admitted(generation=breaker.generation, probe=True)
    lost_at = now + timedelta(seconds=policy.recovery_timeout)
    return admitted, replace(breaker, probes_out=breaker.probes_out + 1, probe_at=lost_at)


def _release(breaker: Breaker) -> Breaker:
    return replace(breaker, probes_out=max(0, breaker.probes_out - 1))


def _tripped(breaker: Breaker, policy: BreakerPolicy, event: BreakerEvent, reason: str, now: datetime) -> Breaker:
    return replace(
        _transition(breaker, event),
        trip_reason=reason,
        tripped_at=now,
        probe_at=now + timedelta(seconds=policy.recovery_timeout),
    )


def _closed(breaker: Breaker) -> Breaker:
    moved = _transition(breaker, BreakerEvent.PROBES_SUCCEEDED)
    return Breaker(state=moved.state, generation=moved.generation)


def _transition(breaker: Breaker, event: BreakerEvent) -> Breaker:
    return replace(
        breaker,
        state=TRANSITIONS[breaker.state, event],
        generation=breaker.generation + 1,
        probes_out=0,
        probe_successes=0,
    )
