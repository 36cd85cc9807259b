"""Plans carried out against butlers that do as they are told; what is dispatched, when, and what comes of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import pytest

from butlers.clock import SystemClock
from butlers.contracts.context import RequestContext
from butlers.errors import ErrorClass, OverloadRejected, TargetUnavailable, TimeoutExceeded
from butlers.reliability.circuit_breaker import BreakerPolicy, BreakerState
from butlers.reliability.retry import RetryPolicy
from butlers.switchboard.dispatch import Dispatcher
from butlers.switchboard.fanout.circuits import Circuits
from butlers.switchboard.fanout.executor import Fanout, FanoutResult
from butlers.switchboard.fanout.limits import DispatchLimits, Invocations
from butlers.switchboard.fanout.outcome import SegmentOutcome
from butlers.switchboard.fanout.plan import FanoutPlan
from butlers.switchboard.fanout.targets import TargetCard
from butlers.switchboard.inbox import ClaimedMessage
from butlers.switchboard.ingress import MessageRef
from butlers.telemetry import Telemetry
from tests.unit.switchboard.fanout.parts import REQUEST, away, failed, node, ok, plan, segment

NOW = datetime(2026, 1, 1, tzinfo=UTC)
Act = Callable[[Mapping[str, Any]], Any]


def answer(**result: Any) -> Act:
    def act(_arguments: Mapping[str, Any]) -> dict[str, Any]:
        return response(result={"answer": "yes"} | result)

    return act


def response(**fields: Any) -> dict[str, Any]:
    return {
        "schema_version": "route_response.v1",
        "request_context": {"request_id": str(REQUEST)},
        "status": "ok",
        "timing": {"duration_ms": 7},
    } | fields


def error(error_class: str, **fields: Any) -> Act:
    told = {"class": error_class, "message": "no", "retryable": False} | fields

    def act(_arguments: Mapping[str, Any]) -> dict[str, Any]:
        return response(status="error", error=told)

    return act


def raising(problem: Exception) -> Act:
    def act(_arguments: Mapping[str, Any]) -> dict[str, Any]:
        raise problem

    return act


@dataclass
class House:
    """Butlers that answer as told, one deed after the other; the last one for ever."""

    deeds: dict[str, list[Act]] = field(default_factory=dict)
    calls: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)
    running: list[frozenset[str]] = field(default_factory=list)  # who was being called when each call began
    hold: dict[str, asyncio.Event] = field(default_factory=dict)
    cards: dict[str, TargetCard] = field(default_factory=dict)
    _now: set[str] = field(default_factory=set)

    def told(self, butler: str, *deeds: Act) -> House:
        self.deeds[butler] = list(deeds)
        return self

    @property
    def called(self) -> list[str]:
        return [butler for butler, _ in self.calls]

    async def call(self, butler: str, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        assert tool == "route.execute"
        self.calls.append((butler, arguments))
        self.running.append(frozenset(self._now))
        self._now.add(butler)
        try:
            await asyncio.sleep(0)
            if butler in self.hold:
                await self.hold[butler].wait()
            deeds = self.deeds.get(butler) or [answer()]
            deed = deeds.pop(0) if len(deeds) > 1 else deeds[0]
            done: dict[str, Any] = deed(arguments)
            return done
        finally:
            self._now.discard(butler)

    async def close(self) -> None:
        """Nothing is open."""

    async def card_of(self, butler: str) -> TargetCard | None:
        return self.cards.get(butler) or card(butler)


def card(butler: str, **fields: Any) -> TargetCard:
    told: dict[str, Any] = {
        "eligibility_state": "active",
        "held": False,
        "capabilities": ("route.execute",),
        "route_contract_min": "route.v1",
        "route_contract_max": "route.v1",
    }
    return TargetCard(name=butler, **told | fields)


@dataclass
class Bench:
    house: House
    fanout: Fanout
    circuits: Circuits
    telemetry: Telemetry

    async def run(self, of: FanoutPlan, *, limits: DispatchLimits | None = None, **more: Any) -> FanoutResult:
        more = {"router": "local"} | more
        return await self.fanout.run(message(), of, limits=limits or DispatchLimits(), **more)


@pytest.fixture
def bench() -> Bench:
    clock, house = SystemClock(), House()
    telemetry = Telemetry.create("switchboard", "test", clock=clock, otlp_endpoint=None)
    circuits = Circuits(
        policy=BreakerPolicy(failure_threshold=3, recovery_timeout=60), clock=clock, telemetry=telemetry
    )
    dispatcher = Dispatcher(
        transport=house,
        timeout_of=lambda _butler: 5.0,
        retry=RetryPolicy(max_attempts=3, initial_delay=0.001, max_delay=0.01),
        circuits=circuits,
        targets=house,
        clock=clock,
        telemetry=telemetry,
    )
    return Bench(house=house, fanout=Fanout(dispatcher=dispatcher), circuits=circuits, telemetry=telemetry)


def message() -> ClaimedMessage:
    context = RequestContext(
        request_id=REQUEST,
        received_at=NOW,
        source_channel="api",
        source_endpoint_identity="tests",
        source_sender_identity="tester",
        source_thread_identity="thread",
    )
    ref = MessageRef(request_id=REQUEST, received_at=NOW, policy_tier="default")
    return ClaimedMessage(
        ref=ref,
        claim_token=uuid4(),
        context=context,
        text="pay and book",
        attachments=[],
        pinned_target=None,
        routing_output=None,
        attempts=1,
    )


def ends(result: FanoutResult) -> dict[str, str]:
    def end(outcome: SegmentOutcome) -> str:
        if outcome.skipped is not None:
            return "skipped"
        return outcome.error.error_class.value if outcome.error else "ok"

    return {outcome.segment.segment_id: end(outcome) for outcome in result.outcomes}


TWO = plan(node(1, "finance"), node(2, "travel"))


# --- plans -----------------------------------------------------------------------------------------------------------


async def test_parallel_parts_are_under_way_together(bench: Bench) -> None:
    bench.house.hold = {"finance": asyncio.Event(), "travel": asyncio.Event()}
    running = asyncio.create_task(bench.run(TWO))
    async with asyncio.timeout(5):
        while len(bench.house.calls) < 2:
            await asyncio.sleep(0)
    for event in bench.house.hold.values():
        event.set()
    assert ends(await running) == {"s1": "ok", "s2": "ok"}
    assert frozenset({"finance"}) in bench.house.running


async def test_ordered_parts_go_one_after_the_other(bench: Bench) -> None:
    of = plan(node(1, "travel"), node(2, "finance"), node(3, "health"), mode="ordered")
    result = await bench.run(of)

    assert bench.house.called == ["travel", "finance", "health"]
    assert bench.house.running == [frozenset()] * 3
    assert [arguments["subrequest"]["fanout_mode"] for _, arguments in bench.house.calls] == ["ordered"] * 3
    assert result.error is None


async def test_a_failed_condition_leaves_the_dependent_out_and_the_request_failed(bench: Bench) -> None:
    of = plan(node(1, "finance"), node(2, "travel", depends_on=("s1",)), mode="conditional")
    bench.house.told("finance", error("internal_error"))
    result = await bench.run(of)

    assert ends(result) == {"s1": "internal_error", "s2": "skipped"}
    assert bench.house.called == ["finance"]
    assert result.error is not None
    assert result.reply is not None
    assert result.reply["skipped"][0]["butler"] == "travel"


async def test_a_part_that_is_not_required_does_not_fail_the_request(bench: Bench) -> None:
    bench.house.told("travel", error("internal_error"))
    result = await bench.run(plan(node(1, "finance"), node(2, "travel", required=False)))

    assert ends(result) == {"s1": "ok", "s2": "internal_error"}
    assert result.error is None
    assert result.reply is not None
    assert [told["butler"] for told in result.reply["failed"]] == ["travel"]


async def test_a_required_part_that_was_left_out_fails_the_request(bench: Bench) -> None:
    of = plan(
        node(1, "finance", required=False), node(2, "travel", depends_on=("s1",), required=True), mode="conditional"
    )
    bench.house.told("finance", error("validation_error"))
    result = await bench.run(of)
    assert result.error is not None
    assert result.error.error_class is ErrorClass.VALIDATION_ERROR


async def test_the_next_one_steps_in_until_the_first_success(bench: Bench) -> None:
    of = plan(node(1, "finance"), node(2, "travel"), node(3, "health"), mode="ordered", join="first_success")
    bench.house.told("finance", error("internal_error"))
    result = await bench.run(of, may_put_off=True)

    assert ends(result) == {"s1": "internal_error", "s2": "ok", "s3": "skipped"}
    assert (result.error, result.late) == (None, ())


async def test_an_abort_is_explicit(bench: Bench) -> None:
    of = plan(node(1, "finance"), node(2, "travel"), mode="ordered", abort="on_required_failure")
    bench.house.told("finance", error("internal_error"))
    result = await bench.run(of)
    assert ends(result) == {"s1": "internal_error", "s2": "skipped"}
    assert bench.house.called == ["finance"]


# --- repeats ---------------------------------------------------------------------------------------------------------


async def test_what_ended_before_is_not_dispatched_again(bench: Bench) -> None:
    first = await bench.run(plan(node(1, "finance"), mode="ordered"))
    bench.house.calls.clear()
    stored = json.loads(json.dumps(first.outcomes[0].to_wire()))
    done = SegmentOutcome.from_wire(stored, [segment(1, "finance")], REQUEST)
    result = await bench.run(plan(node(1, "finance"), node(2, "travel"), mode="ordered"), done=[done])

    assert bench.house.called == ["travel"]
    assert [outcome.segment.butler for outcome in result.ended_now] == ["travel"]
    assert result.reply == {"answers": {"finance": "yes", "travel": "yes"}}


@pytest.mark.parametrize("outcome", [ok(1, "finance", key="k", decision=3), away(1, "finance"), failed(1, "finance")])
def test_a_stored_outcome_is_the_same_outcome(outcome: SegmentOutcome) -> None:
    stored, segments = json.loads(json.dumps(outcome.to_wire())), [segment(1, "finance")]
    again = SegmentOutcome.from_wire(stored, segments, REQUEST)
    assert again.to_wire() == outcome.to_wire()
    assert again.worth_repeating == outcome.worth_repeating
    of_before = {"segment_id": "s1", "target_butler": "finance", "success": True, "duration_ms": 3, "attempts": 1}
    assert SegmentOutcome.from_wire(of_before, segments, REQUEST).succeeded, "an earlier version stored less"


async def test_what_comes_after_a_butler_that_is_away_waits_and_goes_on_when_the_patience_is_used_up(
    bench: Bench,
) -> None:
    of = plan(node(1, "finance"), node(2, "travel"), mode="ordered")
    bench.house.told("finance", raising(TargetUnavailable("gone")))
    held = await bench.run(of, may_put_off=True, limits=DispatchLimits(attempts=1))
    assert ends(held) == {"s1": "target_unavailable"}
    assert [late.segment.butler for late in held.late] == ["finance"]
    assert held.settled == ()

    rest = await bench.run(of, done=held.ended, limits=DispatchLimits(attempts=1))
    assert ends(rest) == {"s1": "target_unavailable", "s2": "ok"}
    assert bench.house.called == ["finance", "travel"]


async def test_each_end_is_told_as_it_comes_one_after_the_other(bench: Bench) -> None:
    told: list[str] = []
    busy = False

    async def on_end(outcome: SegmentOutcome) -> None:
        nonlocal busy
        assert not busy
        busy = True
        await asyncio.sleep(0)
        busy = False
        told.append(outcome.segment.segment_id)

    await bench.run(TWO, on_end=on_end)
    assert sorted(told) == ["s1", "s2"]


async def test_whoever_stops_the_request_stops_its_dispatches(bench: Bench) -> None:
    bench.house.hold = {"finance": asyncio.Event(), "travel": asyncio.Event()}
    running = asyncio.create_task(bench.run(TWO))
    async with asyncio.timeout(5):
        while len(bench.house.calls) < 2:
            await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert bench.house._now == set()
    assert {state.consecutive_failures for state in bench.circuits.states().values()} == {0}


# --- answers ---------------------------------------------------------------------------------------------------------


async def test_the_context_is_the_requests_own_and_the_subrequest_its_parts(bench: Bench) -> None:
    await bench.run(TWO)
    await bench.run(TWO)
    contexts = [arguments["request_context"] for _, arguments in bench.house.calls]
    assert contexts == [contexts[0]] * 4
    ids = {(name, arguments["subrequest"]["subrequest_id"]) for name, arguments in bench.house.calls}
    assert len(ids) == 2
    assert len({UUID(one) for _, one in ids}) == 2


@pytest.mark.parametrize(
    "bad",
    [
        {"schema_version": "route_response.v2"},
        {"schema_version": None},
        {"request_context": {"request_id": "01a1e150-b5f2-768e-8f34-66c68d12a2b8"}},
        {"surprise": True},
        {"status": "fine"},
    ],
)
async def test_an_answer_that_is_none_fails_at_once_and_is_kept(bench: Bench, bad: dict[str, Any]) -> None:
    bench.house.told("finance", lambda _: response(result={}, **bad))
    [outcome] = (await bench.run(plan(node(1, "finance")))).outcomes

    assert outcome.error is not None
    assert outcome.error.error_class is ErrorClass.VALIDATION_ERROR
    assert (outcome.attempts, outcome.raw_response) == (1, response(result={}, **bad))


@pytest.mark.parametrize("unstorable", ["\x00", "\ud800", float("inf")])
async def test_an_answer_that_no_database_holds_is_kept_as_text(bench: Bench, unstorable: Any) -> None:
    bench.house.told("finance", lambda _: response(result={"answer": [unstorable]}))
    [outcome] = (await bench.run(plan(node(1, "finance")))).outcomes

    assert outcome.error is not None
    assert outcome.error.error_class is ErrorClass.VALIDATION_ERROR
    assert outcome.raw_response is not None
    assert outcome.raw_response.keys() == {"text"}
    assert json.loads(outcome.raw_response["text"])["result"] == {"answer": [unstorable]}


@pytest.mark.parametrize("word", ["coffee_spilled", "routing_error", "classification_error"])
async def test_a_class_that_is_not_a_butlers_own_is_internal_and_its_name_kept_apart(bench: Bench, word: str) -> None:
    bench.house.told("finance", error(word))
    result = await bench.run(plan(node(1, "finance")))
    [outcome] = result.outcomes

    assert outcome.error is not None
    assert outcome.error.error_class is ErrorClass.INTERNAL_ERROR
    assert outcome.to_wire()["original_class"] == word
    assert word not in json.dumps(result.reply)
    assert word not in json.dumps(outcome.to_wire()["error"])


async def test_a_known_class_needs_no_second_name(bench: Bench) -> None:
    bench.house.told("finance", error("timeout"))
    [outcome] = (await bench.run(plan(node(1, "finance")))).outcomes
    assert outcome.original_class is None


async def test_result_and_timing_are_kept(bench: Bench) -> None:
    [outcome] = (await bench.run(plan(node(1, "finance")))).outcomes
    assert (outcome.to_wire()["result"], outcome.to_wire()["timing"]) == ({"answer": "yes"}, {"duration_ms": 7})


# --- retries, time and calls -----------------------------------------------------------------------------------------


async def test_what_is_retryable_is_tried_again_with_the_same_subrequest(bench: Bench) -> None:
    bench.house.told("finance", error("overload_rejected", retryable=True), raising(TargetUnavailable("x")), answer())
    [outcome] = (await bench.run(plan(node(1, "finance")))).outcomes

    assert (outcome.attempts, outcome.error) == (3, None)
    assert len({arguments["subrequest"]["subrequest_id"] for _, arguments in bench.house.calls}) == 1


@pytest.mark.parametrize("error_class", ["validation_error", "internal_error"])
async def test_what_is_not_retryable_fails_at_once(bench: Bench, error_class: str) -> None:
    bench.house.told("finance", error(error_class))
    [outcome] = (await bench.run(plan(node(1, "finance")))).outcomes
    assert outcome.attempts == len(bench.house.calls) == 1


async def test_the_tier_says_how_often(bench: Bench) -> None:
    bench.house.told("finance", error("overload_rejected", retryable=True))
    [outcome] = (await bench.run(plan(node(1, "finance")), limits=DispatchLimits(attempts=5))).outcomes
    assert outcome.attempts == 5


async def test_no_answer_in_time_is_a_timeout(bench: Bench) -> None:
    bench.house.hold = {"finance": asyncio.Event()}
    [outcome] = (
        await bench.run(plan(node(1, "finance")), limits=DispatchLimits(attempts=1, route_timeout_s=0.01))
    ).outcomes
    assert isinstance(outcome.error, TimeoutExceeded)
    assert outcome.worth_repeating


async def test_when_the_requests_time_is_used_up_it_ends_for_good(bench: Bench) -> None:
    bench.house.hold = {"finance": asyncio.Event()}
    of = plan(node(1, "finance"), node(2, "travel"), mode="ordered")
    result = await bench.run(of, may_put_off=True, limits=DispatchLimits(deadline=SystemClock().monotonic() + 0.02))

    assert ends(result) == {"s1": "timeout", "s2": "timeout"}
    assert result.late == ()
    assert [outcome.attempts for outcome in result.outcomes] == [1, 0]
    assert bench.house.called == ["finance"]


async def test_when_the_requests_calls_are_used_up_it_ends_for_good(bench: Bench) -> None:
    invocations = Invocations(left=2)
    of = plan(node(1, "finance"), node(2, "travel"), mode="ordered")
    bench.house.told("finance", error("overload_rejected", retryable=True), answer())
    result = await bench.run(of, limits=DispatchLimits(invocations=invocations))

    assert ends(result) == {"s1": "ok", "s2": "overload_rejected"}
    assert isinstance(result.error, OverloadRejected)
    assert (result.error.retryable, invocations.left, result.late) == (False, 0, ())


async def test_an_answer_that_is_no_envelope_at_all_is_an_unavailable_target(bench: Bench) -> None:
    bench.house.told("finance", raising(RuntimeError("the wire broke")))
    [outcome] = (await bench.run(plan(node(1, "finance")), limits=DispatchLimits(attempts=1))).outcomes
    assert isinstance(outcome.error, TargetUnavailable)


# --- circuit ---------------------------------------------------------------------------------------------------------


async def test_a_target_that_does_not_answer_is_left_alone(bench: Bench) -> None:
    bench.house.told("finance", raising(TargetUnavailable("gone")))
    await bench.run(plan(node(1, "finance")))
    assert bench.circuits.states()["finance"].state is BreakerState.OPEN
    bench.house.calls.clear()
    result = await bench.run(TWO)

    assert bench.house.called == ["travel"]
    assert ends(result) == {"s1": "target_unavailable", "s2": "ok"}
    assert 0 < result.retry_after <= 60
    text = bench.telemetry.prometheus_text().decode()
    assert "butlers_switchboard_circuit_open_targets" in text
    assert _value(text, "butlers_switchboard_circuit_open_targets") == 1
    assert _value(text, "butlers_switchboard_circuit_transition_total") == 1


async def test_a_registration_closes_the_circuit(bench: Bench) -> None:
    bench.house.told("finance", raising(TargetUnavailable("gone")))
    await bench.run(plan(node(1, "finance")))
    bench.circuits.reset("finance")
    bench.house.told("finance", answer())

    assert ends(await bench.run(plan(node(1, "finance")))) == {"s1": "ok"}
    assert _value(bench.telemetry.prometheus_text().decode(), "butlers_switchboard_circuit_open_targets") == 0


async def test_an_answer_of_any_kind_keeps_the_circuit_closed(bench: Bench) -> None:
    bench.house.told("finance", error("overload_rejected", retryable=True))
    for _ in range(5):
        await bench.run(plan(node(1, "finance")))
    assert bench.circuits.states()["finance"].state is BreakerState.CLOSED


def _value(text: str, name: str) -> float:
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name))


# --- fitness ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({"capabilities": ("trace",)}, "validation_error"),
        ({"route_contract_min": "route.v2", "route_contract_max": "route.v3"}, "validation_error"),
        ({"route_contract_min": "route.v0", "route_contract_max": "route.v0"}, "validation_error"),
        ({"route_contract_min": "nonsense"}, "validation_error"),
        ({"route_contract_max": "route.v9"}, "ok"),
        ({"eligibility_state": "stale"}, "target_unavailable"),
        ({"eligibility_state": "quarantined"}, "target_unavailable"),
    ],
)
async def test_who_does_not_fit_is_not_called(bench: Bench, told: dict[str, Any], expected: str) -> None:
    bench.house.cards["finance"] = card("finance", **told)
    result = await bench.run(plan(node(1, "finance")))

    assert ends(result) == {"s1": expected}
    assert bench.house.called == (["finance"] if expected == "ok" else [])


async def test_a_rule_may_name_a_butler_without_signs_of_life(bench: Bench) -> None:
    bench.house.cards["finance"] = card("finance", eligibility_state="stale")
    assert ends(await bench.run(plan(node(1, "finance")), router="policy")) == {"s1": "ok"}
