"""What counts against a provider, and what a circuit makes of it."""

from __future__ import annotations

from dataclasses import asdict
from uuid import UUID

import pytest

from butlers.channels.adapter import AttemptResult, Certainty, NotSent, Sent, Throttle
from butlers.errors import ClassifiedError, InternalError, OverloadRejected, TargetUnavailable, TimeoutExceeded
from butlers.errors import ValidationError as Invalid
from butlers.messenger.attempt import Ended, Settlement
from butlers.messenger.config import BreakersSection
from butlers.messenger.deliveries import circuit_of_row, learned
from butlers.reliability.circuit_breaker import Breaker, BreakerState

from .given import START as NOW
from .given import at, claimed_delivery, row

POLICY = BreakersSection(failure_threshold=3, recovery_timeout_s=60.0)
SENT = Sent(provider_delivery_id="1")
FAULT = NotSent(error=TargetUnavailable("502 Bad Gateway"))
WAIT = NotSent(error=TargetUnavailable("429"), throttle=Throttle(scope="target", seconds=3))
GONE = NotSent(error=TargetUnavailable("blocked", retryable=False), recipient_gone=True)
HALF_OPEN = Breaker(state=BreakerState.HALF_OPEN, generation=4, probes_out=1, trip_reason="502", probe_at=at(60))


def then(breaker: Breaker, result: AttemptResult, generation: int, *, lost: bool = False) -> Breaker:
    stored = row({"name": "telegram.bot", **asdict(breaker)})
    changed = learned([stored], [ended(result, generation, lost=lost)], POLICY, NOW)
    return changed.get("telegram.bot", breaker)


def ended(result: AttemptResult, generation: int = 0, *, lost: bool = False) -> Ended:
    return Ended(
        delivery=claimed_delivery(generation=generation),
        result=result,
        settlement=Settlement(status="awaiting_retry"),
        latency_ms=1,
        receipt_id=UUID(int=1),
        lost=lost,
    )


def blames(result: AttemptResult) -> bool:
    return ended(result).blames_provider


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (TargetUnavailable("502"), True),
        (TargetUnavailable("our token is wrong", retryable=False), True),
        (TimeoutExceeded("no answer"), True),
        (Invalid("too long"), False),
        (InternalError("a mistake of ours"), False),
        (OverloadRejected("x"), False),
    ],
)
def test_the_provider_is_to_blame_for_being_away_and_for_not_answering(error: ClassifiedError, fault: bool) -> None:
    assert blames(NotSent(error=error)) == fault
    assert blames(NotSent(error=error, certainty=Certainty.UNCERTAIN)) == fault


def test_a_message_that_came_through_a_window_and_a_lost_recipient_are_no_faults() -> None:
    assert not any(blames(result) for result in (SENT, WAIT, GONE))


def test_failures_in_a_row_open_the_circuit_and_name_the_reason() -> None:
    breaker = Breaker()
    for _ in range(3):
        breaker = then(breaker, FAULT, 0)
    assert (breaker.state, breaker.generation, breaker.tripped_at) == (BreakerState.OPEN, 1, NOW)
    assert breaker.trip_reason == "502 Bad Gateway"
    assert breaker.probe_at == at(60)


def test_a_success_in_between_starts_the_count_anew() -> None:
    breaker = Breaker()
    for result in (FAULT, FAULT, SENT, FAULT, FAULT):
        breaker = then(breaker, result, 0)
    assert (breaker.state, breaker.consecutive_failures) == (BreakerState.CLOSED, 2)


@pytest.mark.parametrize("result", [WAIT, GONE, NotSent(error=Invalid("x"))])
def test_what_says_nothing_about_the_provider_counts_neither_way(result: AttemptResult) -> None:
    two = Breaker(consecutive_failures=2)
    assert then(two, result, 0) == two


@pytest.mark.parametrize("result", [WAIT, GONE])
def test_but_it_gives_its_probe_back(result: AttemptResult) -> None:
    breaker = then(HALF_OPEN, result, 4)
    assert (breaker.state, breaker.probes_out) == (BreakerState.HALF_OPEN, 0)


@pytest.mark.parametrize("result", [SENT, FAULT, WAIT])
def test_a_result_of_an_earlier_generation_changes_nothing(result: AttemptResult) -> None:
    assert then(HALF_OPEN, result, 3) == HALF_OPEN


def test_a_crash_of_ours_counts_neither_way() -> None:
    assert then(Breaker(consecutive_failures=2), FAULT, 0, lost=True) == Breaker(consecutive_failures=2)
    given_back = then(HALF_OPEN, FAULT, 4, lost=True)
    assert (given_back.state, given_back.probes_out) == (BreakerState.HALF_OPEN, 0)


def test_a_circuit_is_read_as_it_was_written() -> None:
    stored = {
        "state": "half-open",
        "generation": 4,
        "consecutive_failures": 0,
        "probes_out": 1,
        "probe_successes": 0,
        "trip_reason": "502",
        "tripped_at": None,
        "probe_at": at(60),
    }
    assert circuit_of_row(row(stored)) == HALF_OPEN
