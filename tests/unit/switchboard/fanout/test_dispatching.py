"""One part brought to one butler: what is sent, what counts as an answer, and when it is tried again or not at all."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from uuid import UUID

import pytest

from butlers.clock import SystemClock
from butlers.errors import ErrorClass, OverloadRejected, TargetUnavailable, TimeoutExceeded
from butlers.reliability.circuit_breaker import BreakerState
from butlers.switchboard.dispatch.fanout import aggregate
from butlers.switchboard.dispatch.plan import End
from tests.unit.switchboard.fanout.fixture import (
    TWO,
    Bench,
    allowing,
    answer,
    card,
    ends,
    error,
    raising,
    response,
)
from tests.unit.switchboard.fanout.parts import node, plan

# --- answers ---------------------------------------------------------------------------------------------------------


async def test_the_context_is_the_requests_own_and_the_subrequest_its_parts(bench: Bench) -> None:
    await bench.run(TWO)
    await bench.run(TWO)
    contexts = [arguments["request_context"] for _, arguments in bench.butlers.calls]
    assert contexts == [contexts[0]] * 4
    ids = {(name, arguments["subrequest"]["subrequest_id"]) for name, arguments in bench.butlers.calls}
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
    bench.butlers.answers("finance", lambda _: response(result={}, **bad))
    [outcome] = (await bench.run(plan(node(1, "finance")))).outcomes

    assert outcome.error is not None
    assert outcome.error.error_class is ErrorClass.VALIDATION_ERROR
    assert (outcome.attempts, outcome.raw_response) == (1, response(result={}, **bad))


@pytest.mark.parametrize("unstorable", ["\x00", "\ud800", float("inf")])
async def test_an_answer_that_no_database_holds_is_kept_as_text(bench: Bench, unstorable: Any) -> None:
    bench.butlers.answers("finance", lambda _: response(result={"answer": [unstorable]}))
    [outcome] = (await bench.run(plan(node(1, "finance")))).outcomes

    assert outcome.error is not None
    assert outcome.error.error_class is ErrorClass.VALIDATION_ERROR
    assert outcome.raw_response is not None
    assert outcome.raw_response.keys() == {"text"}
    assert json.loads(outcome.raw_response["text"])["result"] == {"answer": [unstorable]}


@pytest.mark.parametrize("word", ["coffee_spilled", "routing_error", "classification_error"])
async def test_a_class_that_is_not_a_butlers_own_is_internal_and_its_name_kept_apart(bench: Bench, word: str) -> None:
    bench.butlers.answers("finance", error(word))
    result = await bench.run(plan(node(1, "finance")))
    [outcome] = result.outcomes

    assert outcome.error is not None
    assert outcome.error.error_class is ErrorClass.INTERNAL_ERROR
    assert outcome.to_wire()["original_class"] == word
    assert word not in json.dumps(aggregate(result.plan, result.outcomes))
    assert word not in json.dumps(outcome.to_wire()["error"])


async def test_a_known_class_needs_no_second_name(bench: Bench) -> None:
    bench.butlers.answers("finance", error("timeout"))
    [outcome] = (await bench.run(plan(node(1, "finance")))).outcomes
    assert outcome.original_class is None


async def test_result_and_timing_are_kept(bench: Bench) -> None:
    [outcome] = (await bench.run(plan(node(1, "finance")))).outcomes
    assert (outcome.to_wire()["result"], outcome.to_wire()["timing"]) == ({"answer": "yes"}, {"duration_ms": 7})


# --- retries, time and calls -----------------------------------------------------------------------------------------


async def test_what_is_retryable_is_tried_again_with_the_same_subrequest(bench: Bench) -> None:
    bench.butlers.answers(
        "finance", error("overload_rejected", retryable=True), raising(TargetUnavailable("x")), answer()
    )
    [outcome] = (await bench.run(plan(node(1, "finance")))).outcomes

    assert (outcome.attempts, outcome.error) == (3, None)
    assert len({arguments["subrequest"]["subrequest_id"] for _, arguments in bench.butlers.calls}) == 1


@pytest.mark.parametrize("error_class", ["validation_error", "internal_error"])
async def test_what_is_not_retryable_fails_at_once(bench: Bench, error_class: str) -> None:
    bench.butlers.answers("finance", error(error_class))
    [outcome] = (await bench.run(plan(node(1, "finance")))).outcomes
    assert outcome.attempts == len(bench.butlers.calls) == 1


async def test_the_tier_says_how_often(bench: Bench) -> None:
    bench.butlers.answers("finance", error("overload_rejected", retryable=True))
    [outcome] = (await bench.run(plan(node(1, "finance")), budget=allowing(attempts=5))).outcomes
    assert outcome.attempts == 5


async def test_no_answer_in_time_is_a_timeout(bench: Bench) -> None:
    bench.butlers.hold = {"finance": asyncio.Event()}
    [outcome] = (await bench.run(plan(node(1, "finance")), budget=allowing(attempts=1, route_timeout_s=0.01))).outcomes
    assert isinstance(outcome.error, TimeoutExceeded)
    assert outcome.end is End.AWAY


async def test_when_the_requests_time_is_used_up_it_ends_for_good(bench: Bench) -> None:
    bench.butlers.hold = {"finance": asyncio.Event()}
    of = plan(node(1, "finance"), node(2, "travel"), mode="ordered")
    result = await bench.run(of, may_put_off=True, budget=allowing(deadline=SystemClock().monotonic() + 0.02))

    assert ends(result) == {"s1": "timeout", "s2": "timeout"}
    assert result.late == ()
    assert [outcome.attempts for outcome in result.outcomes] == [1, 0]
    assert bench.butlers.called == ["finance"]


async def test_when_the_requests_calls_are_used_up_it_ends_for_good(bench: Bench) -> None:
    budget = allowing(max_invocations=2)
    of = plan(node(1, "finance"), node(2, "travel"), mode="ordered")
    bench.butlers.answers("finance", error("overload_rejected", retryable=True), answer())
    result = await bench.run(of, budget=budget)

    assert ends(result) == {"s1": "ok", "s2": "overload_rejected"}
    assert isinstance(result.error, OverloadRejected)
    assert (result.error.retryable, budget.calls, result.late) == (False, 2, ())


async def test_an_answer_that_is_no_envelope_at_all_is_an_unavailable_target(bench: Bench) -> None:
    bench.butlers.answers("finance", raising(RuntimeError("the wire broke")))
    [outcome] = (await bench.run(plan(node(1, "finance")), budget=allowing(attempts=1))).outcomes
    assert isinstance(outcome.error, TargetUnavailable)


# --- circuit ---------------------------------------------------------------------------------------------------------


async def test_a_target_that_does_not_answer_is_left_alone(bench: Bench) -> None:
    bench.butlers.answers("finance", raising(TargetUnavailable("gone")))
    await bench.run(plan(node(1, "finance")))
    assert bench.circuits.states()["finance"].state is BreakerState.OPEN
    bench.butlers.calls.clear()
    result = await bench.run(TWO)

    assert bench.butlers.called == ["travel"]
    assert ends(result) == {"s1": "target_unavailable", "s2": "ok"}
    assert 0 < result.retry_after <= 60
    text = bench.telemetry.prometheus_text().decode()
    assert "butlers_switchboard_circuit_open_targets" in text
    assert _value(text, "butlers_switchboard_circuit_open_targets") == 1
    assert _value(text, "butlers_switchboard_circuit_transition_total") == 1


async def test_a_registration_closes_the_circuit(bench: Bench) -> None:
    bench.butlers.answers("finance", raising(TargetUnavailable("gone")))
    await bench.run(plan(node(1, "finance")))
    bench.circuits.reset("finance")
    bench.butlers.answers("finance", answer())

    assert ends(await bench.run(plan(node(1, "finance")))) == {"s1": "ok"}
    assert _value(bench.telemetry.prometheus_text().decode(), "butlers_switchboard_circuit_open_targets") == 0


async def test_an_answer_of_any_kind_keeps_the_circuit_closed(bench: Bench) -> None:
    bench.butlers.answers("finance", error("overload_rejected", retryable=True))
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
    bench.butlers.cards["finance"] = card("finance", **told)
    result = await bench.run(plan(node(1, "finance")))

    assert ends(result) == {"s1": expected}
    assert bench.butlers.called == (["finance"] if expected == "ok" else [])


async def test_a_rule_may_name_a_butler_without_signs_of_life(bench: Bench) -> None:
    bench.butlers.cards["finance"] = card("finance", eligibility_state="stale")
    assert ends(await bench.run(plan(node(1, "finance")), router="policy")) == {"s1": "ok"}
