"""The model below is a log: it keeps what was admitted and what came back, and works out the present from that."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from butlers.reliability.circuit_breaker import (
    TRANSITIONS,
    Admitted,
    Breaker,
    BreakerEvent,
    BreakerPolicy,
    BreakerState,
    Rejected,
    admit,
    record_failure,
    record_ignored,
    record_success,
    snapshot,
)

from .moments import at

POLICY = BreakerPolicy()


def admitted(breaker: Breaker, seconds: float, policy: BreakerPolicy = POLICY) -> tuple[Admitted, Breaker]:
    admission, after = admit(breaker, policy, at(seconds))
    assert isinstance(admission, Admitted)
    return admission, after


def rejected(breaker: Breaker, seconds: float, policy: BreakerPolicy = POLICY) -> tuple[Rejected, Breaker]:
    admission, after = admit(breaker, policy, at(seconds))
    assert isinstance(admission, Rejected)
    return admission, after


def failed(breaker: Breaker, seconds: float, *, generation: int, policy: BreakerPolicy = POLICY) -> Breaker:
    return record_failure(breaker, policy, generation=generation, reason="503", now=at(seconds))


def tripped(policy: BreakerPolicy = POLICY) -> Breaker:
    """Open since second 0."""
    breaker = Breaker()
    for _ in range(policy.failure_threshold):
        admission, breaker = admitted(breaker, 0, policy)
        breaker = failed(breaker, 0, generation=admission.generation, policy=policy)
    assert breaker.state is BreakerState.OPEN
    return breaker


def test_the_fifth_failure_in_a_row_opens_the_circuit():
    breaker = Breaker()
    for count in range(1, 5):
        breaker = failed(breaker, count, generation=0)
        assert (breaker.state, breaker.consecutive_failures) == (BreakerState.CLOSED, count)
    breaker = failed(breaker, 5, generation=0)
    assert (breaker.state, breaker.trip_reason, breaker.tripped_at) == (BreakerState.OPEN, "503", at(5))


def test_a_success_in_between_starts_the_count_again():
    breaker = Breaker()
    for _ in range(20):
        for _ in range(4):
            breaker = failed(breaker, 0, generation=0)
        breaker = record_success(breaker, POLICY, generation=0)
    assert breaker.state is BreakerState.CLOSED


def test_validation_errors_are_never_counted():
    breaker = Breaker()
    for _ in range(4):
        breaker = failed(breaker, 0, generation=0)
    for _ in range(50):
        breaker = record_ignored(breaker, generation=0)
    assert (breaker.state, breaker.consecutive_failures) == (BreakerState.CLOSED, 4)


def test_an_open_circuit_refuses_with_the_reason_and_the_time_left():
    refusal, _ = rejected(tripped(), 20)
    assert refusal == Rejected(retry_after=40.0, reason="503")


def test_after_the_recovery_timeout_one_probe_goes_out_and_the_next_is_refused():
    probe, breaker = admitted(tripped(), 60)
    assert (probe.probe, breaker.state) == (True, BreakerState.HALF_OPEN)
    refusal, _ = rejected(breaker, 61)
    assert refusal.retry_after == 59.0


def test_two_successful_probes_close_the_circuit():
    first, breaker = admitted(tripped(), 60)
    breaker = record_success(breaker, POLICY, generation=first.generation)
    assert breaker.state is BreakerState.HALF_OPEN
    second, breaker = admitted(breaker, 61)
    breaker = record_success(breaker, POLICY, generation=second.generation)
    assert breaker.state is BreakerState.CLOSED
    assert (breaker.consecutive_failures, breaker.trip_reason, breaker.tripped_at) == (0, None, None)


def test_a_failed_probe_opens_the_circuit_for_another_recovery_timeout():
    first, breaker = admitted(tripped(), 60)
    breaker = record_success(breaker, POLICY, generation=first.generation)
    second, breaker = admitted(breaker, 61)
    breaker = failed(breaker, 70, generation=second.generation)
    assert (breaker.state, breaker.tripped_at) == (BreakerState.OPEN, at(70))
    refusal, _ = rejected(breaker, 71)
    assert refusal.retry_after == 59.0


def test_an_ignored_probe_gives_its_slot_back_and_proves_nothing():
    probe, breaker = admitted(tripped(), 60)
    breaker = record_ignored(breaker, generation=probe.generation)
    assert (breaker.state, breaker.probes_out, breaker.probe_successes) == (BreakerState.HALF_OPEN, 0, 0)
    admitted(breaker, 60)


@pytest.mark.parametrize("late", ["success", "failure", "ignored"])
@pytest.mark.parametrize("phase", ["open", "half-open", "closed again"])
def test_a_late_result_of_a_call_from_before_the_trip_changes_nothing(late, phase):
    before, _ = admitted(Breaker(), 0)
    breaker = tripped()
    if phase != "open":
        probe, breaker = admitted(breaker, 60)
    if phase == "closed again":
        for _ in range(2):
            breaker = record_success(breaker, POLICY, generation=probe.generation)
        breaker = failed(breaker, 62, generation=breaker.generation)
    after = {
        "success": record_success(breaker, POLICY, generation=before.generation),
        "failure": failed(breaker, 63, generation=before.generation),
        "ignored": record_ignored(breaker, generation=before.generation),
    }[late]
    assert after == breaker


def test_a_probe_that_never_reports_does_not_hold_its_slot_for_ever():
    lost, breaker = admitted(tripped(), 60)
    rejected(breaker, 119)
    fresh, breaker = admitted(breaker, 120)
    assert fresh.generation != lost.generation
    assert failed(breaker, 121, generation=lost.generation) == breaker


def test_a_clock_set_back_by_an_hour_delays_a_probe_by_one_recovery_timeout_only():
    refusal, breaker = rejected(tripped(), -3_600)
    assert refusal.retry_after == POLICY.recovery_timeout
    admitted(breaker, -3_600 + POLICY.recovery_timeout)


def test_the_snapshot_shows_what_an_operator_needs():
    shown = snapshot(tripped(), POLICY, at(45))
    assert (shown.state, shown.consecutive_failures, shown.trip_reason) == ("open", 5, "503")
    assert (shown.tripped_at, shown.recovery_timeout, shown.retry_after) == (at(0), 60.0, 15.0)
    assert snapshot(Breaker(), POLICY, at(0)).retry_after is None
    assert snapshot(tripped(), POLICY, at(100)).retry_after == 0.0


def test_the_states_are_spelled_as_on_the_wire_and_every_event_has_its_place():
    assert [state.value for state in BreakerState] == ["closed", "open", "half-open"]
    assert {event for _, event in TRANSITIONS} == set(BreakerEvent)


@pytest.mark.parametrize(
    "wrong", [{"failure_threshold": 0}, {"probe_limit": 0}, {"success_threshold": 0}, {"recovery_timeout": 0}]
)
def test_a_policy_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(ValueError):
        BreakerPolicy(**wrong)


@dataclass
class Epoch:
    """The time between two changes of state, with the results of the calls that were let in during it."""

    state: str
    since: float
    let_in: list[float] = field(default_factory=list)
    results: list[str] = field(default_factory=list)

    def failures_in_a_row(self) -> int:
        counted = [result for result in self.results if result != "ignored"]
        return next((n for n, r in enumerate(reversed(counted)) if r == "success"), len(counted))

    def still_out(self) -> int:
        return len(self.let_in) - len(self.results)


class BreakerMachine(RuleBasedStateMachine):
    """Calls go out, come back in any order, late or never, and the clock moves on."""

    @initialize(
        threshold=st.integers(1, 4), limit=st.integers(1, 3), successes=st.integers(1, 3), timeout=st.integers(1, 9)
    )
    def start(self, threshold, limit, successes, timeout):
        self.policy = BreakerPolicy(
            failure_threshold=threshold,
            probe_limit=limit,
            success_threshold=successes,
            recovery_timeout=timeout,
        )
        self.breaker = Breaker()
        self.now = 0.0
        self.epochs = [Epoch("closed", 0.0)]
        self.out: list[tuple[Admitted, Epoch]] = []

    @rule(seconds=st.integers(0, 10))
    def time_passes(self, seconds):
        self.now += seconds

    @rule()
    def ask(self):
        admission, self.breaker = admit(self.breaker, self.policy, at(self.now))
        wait = self.expected_wait()
        if wait > 0:
            assert isinstance(admission, Rejected)
            assert admission.retry_after == pytest.approx(wait)
            return
        assert isinstance(admission, Admitted)
        if self.expects_new_half_open():
            self.epochs.append(Epoch("half-open", self.now))
        epoch = self.epochs[-1]
        assert admission.probe == (epoch.state == "half-open")
        epoch.let_in.append(self.now)
        self.out.append((admission, epoch))

    def expected_wait(self) -> float:
        epoch, timeout = self.epochs[-1], self.policy.recovery_timeout
        if epoch.state == "open":
            return max(0.0, epoch.since + timeout - self.now)
        if epoch.state == "half-open" and epoch.still_out() >= self.policy.probe_limit:
            return max(0.0, max(epoch.let_in) + timeout - self.now)
        return 0.0

    def expects_new_half_open(self) -> bool:
        epoch = self.epochs[-1]
        all_lost = epoch.state == "half-open" and epoch.still_out() >= self.policy.probe_limit
        return epoch.state == "open" or all_lost

    @precondition(lambda self: self.out)
    @rule(data=st.data(), result=st.sampled_from(["success", "failure", "failure", "ignored"]))
    def a_result_comes_back(self, data, result):
        admission, epoch = self.out.pop(data.draw(st.integers(0, len(self.out) - 1)))
        before = self.breaker
        match result:
            case "success":
                self.breaker = record_success(before, self.policy, generation=admission.generation)
            case "failure":
                self.breaker = failed(before, self.now, generation=admission.generation, policy=self.policy)
            case "ignored":
                self.breaker = record_ignored(before, generation=admission.generation)
        epoch.results.append(result)
        if epoch is self.epochs[-1]:
            self.move_on(epoch)
        else:
            assert self.breaker == before

    def move_on(self, epoch: Epoch) -> None:
        too_many = epoch.state == "closed" and epoch.failures_in_a_row() >= self.policy.failure_threshold
        if too_many or (epoch.state == "half-open" and "failure" in epoch.results):
            self.epochs.append(Epoch("open", self.now))
        elif epoch.state == "half-open" and epoch.results.count("success") >= self.policy.success_threshold:
            self.epochs.append(Epoch("closed", self.now))

    @invariant()
    def the_state_is_the_one_the_log_implies(self):
        epoch = self.epochs[-1]
        shown = snapshot(self.breaker, self.policy, at(self.now))
        assert shown.state == epoch.state
        assert (shown.retry_after is None) == (epoch.state == "closed")
        if epoch.state == "closed":
            assert shown.consecutive_failures == epoch.failures_in_a_row()
        else:
            assert shown.retry_after == pytest.approx(self.expected_wait())
            assert shown.trip_reason == "503"
        if epoch.state == "half-open":
            assert shown.probes_out == epoch.still_out() <= self.policy.probe_limit


TestBreakerMachine = BreakerMachine.TestCase
TestBreakerMachine.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
