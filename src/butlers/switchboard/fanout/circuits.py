"""One circuit per target butler, in this process.

A call without any answer (not reachable, no answer in time) counts against the target. An answer, whatever it says,
shows that the target is there: an error of a butler is its word and no reason to leave it alone.
"""

from __future__ import annotations

from butlers.clock import Clock
from butlers.errors import CircuitOpenError
from butlers.reliability import circuit_breaker
from butlers.reliability.circuit_breaker import Breaker, BreakerPolicy, BreakerSnapshot, BreakerState, Rejected
from butlers.telemetry import Telemetry, get_logger
from butlers.telemetry.catalogue import CIRCUIT_OPEN_TARGETS, CIRCUIT_TRANSITION

log = get_logger("butlers.circuits")


class Circuits:
    def __init__(self, *, policy: BreakerPolicy, clock: Clock, telemetry: Telemetry) -> None:
        self._policy = policy
        self._clock = clock
        self._telemetry = telemetry
        self._breakers: dict[str, Breaker] = {}
        self._count_open()

    def admit(self, butler: str) -> int:
        """The generation to report the result with, or `CircuitOpenError` with the time until a probe is possible."""
        admission, breaker = circuit_breaker.admit(self._of(butler), self._policy, self._clock.now())
        self._move(butler, breaker)
        if isinstance(admission, Rejected):
            raise CircuitOpenError(
                f"{butler} did not answer several times and is left alone for now", retry_after=admission.retry_after
            )
        return admission.generation

    def answered(self, butler: str, generation: int) -> None:
        self._move(butler, circuit_breaker.record_success(self._of(butler), self._policy, generation=generation))

    def silent(self, butler: str, generation: int, reason: str) -> None:
        """No answer came."""
        now = self._clock.now()
        failed = circuit_breaker.record_failure(
            self._of(butler), self._policy, generation=generation, reason=reason, now=now
        )
        self._move(butler, failed)

    def given_up(self, butler: str, generation: int) -> None:
        """We stopped waiting for a reason of our own, which says nothing about the target."""
        self._move(butler, circuit_breaker.record_ignored(self._of(butler), generation=generation))

    def reset(self, butler: str) -> None:
        """It has just registered, so it is there."""
        old = self._of(butler)
        self._move(butler, Breaker(generation=old.generation + 1))

    def states(self) -> dict[str, BreakerSnapshot]:
        now = self._clock.now()
        return {
            name: circuit_breaker.snapshot(breaker, self._policy, now)
            for name, breaker in sorted(self._breakers.items())
        }

    def _of(self, butler: str) -> Breaker:
        return self._breakers.get(butler, Breaker())

    def _move(self, butler: str, breaker: Breaker) -> None:
        before = self._of(butler).state
        self._breakers[butler] = breaker
        if breaker.state is before:
            return
        self._telemetry.count(CIRCUIT_TRANSITION, target_butler=butler, circuit_state=breaker.state.value)
        self._count_open()
        log.warning("circuit changed", target_butler=butler, status=breaker.state.value, reason=breaker.trip_reason)

    def _count_open(self) -> None:
        count = sum(1 for breaker in self._breakers.values() if breaker.state is not BreakerState.CLOSED)
        self._telemetry.gauge(CIRCUIT_OPEN_TARGETS, count)
