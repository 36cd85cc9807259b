"""Plans carried out against butlers that do as they are told: what is dispatched, when, and what comes of it."""

from __future__ import annotations

import asyncio
import json

import pytest

from butlers.errors import ErrorClass, TargetUnavailable
from butlers.switchboard.dispatch.fanout import aggregate
from butlers.switchboard.dispatch.plan import End, SegmentOutcome
from tests.unit.switchboard.fanout.fixture import (
    TWO,
    Bench,
    allowing,
    ends,
    error,
    raising,
)
from tests.unit.switchboard.fanout.parts import REQUEST, away, failed, node, ok, plan, segment

# --- plans -----------------------------------------------------------------------------------------------------------


async def test_parallel_parts_are_under_way_together(bench: Bench) -> None:
    bench.butlers.hold = {"finance": asyncio.Event(), "travel": asyncio.Event()}
    running = asyncio.create_task(bench.run(TWO))
    async with asyncio.timeout(5):
        while len(bench.butlers.calls) < 2:
            await asyncio.sleep(0)
    for event in bench.butlers.hold.values():
        event.set()
    assert ends(await running) == {"s1": "ok", "s2": "ok"}
    assert frozenset({"finance"}) in bench.butlers.running


async def test_ordered_parts_go_one_after_the_other(bench: Bench) -> None:
    of = plan(node(1, "travel"), node(2, "finance"), node(3, "health"), mode="ordered")
    result = await bench.run(of)

    assert bench.butlers.called == ["travel", "finance", "health"]
    assert bench.butlers.running == [frozenset()] * 3
    assert [arguments["subrequest"]["fanout_mode"] for _, arguments in bench.butlers.calls] == ["ordered"] * 3
    assert result.error is None


async def test_a_failed_condition_leaves_the_dependent_out_and_the_request_failed(bench: Bench) -> None:
    of = plan(node(1, "finance"), node(2, "travel", depends_on=("s1",)), mode="conditional")
    bench.butlers.answers("finance", error("internal_error"))
    result = await bench.run(of)

    assert ends(result) == {"s1": "internal_error", "s2": "skipped"}
    assert bench.butlers.called == ["finance"]
    assert result.error is not None
    reply = aggregate(result.plan, result.outcomes)
    assert reply is not None
    assert reply["skipped"][0]["butler"] == "travel"


async def test_a_part_that_is_not_required_does_not_fail_the_request(bench: Bench) -> None:
    bench.butlers.answers("travel", error("internal_error"))
    result = await bench.run(plan(node(1, "finance"), node(2, "travel", required=False)))

    assert ends(result) == {"s1": "ok", "s2": "internal_error"}
    assert result.error is None
    reply = aggregate(result.plan, result.outcomes)
    assert reply is not None
    assert [told["butler"] for told in reply["failed"]] == ["travel"]


async def test_a_required_part_that_was_left_out_fails_the_request(bench: Bench) -> None:
    of = plan(
        node(1, "finance", required=False), node(2, "travel", depends_on=("s1",), required=True), mode="conditional"
    )
    bench.butlers.answers("finance", error("validation_error"))
    result = await bench.run(of)
    assert result.error is not None
    assert result.error.error_class is ErrorClass.VALIDATION_ERROR


async def test_the_next_one_steps_in_until_the_first_success(bench: Bench) -> None:
    of = plan(node(1, "finance"), node(2, "travel"), node(3, "health"), mode="ordered", join="first_success")
    bench.butlers.answers("finance", error("internal_error"))
    result = await bench.run(of, may_put_off=True)

    assert ends(result) == {"s1": "internal_error", "s2": "ok", "s3": "skipped"}
    assert (result.error, result.late) == (None, ())


async def test_an_abort_is_explicit(bench: Bench) -> None:
    of = plan(node(1, "finance"), node(2, "travel"), mode="ordered", abort="on_required_failure")
    bench.butlers.answers("finance", error("internal_error"))
    result = await bench.run(of)
    assert ends(result) == {"s1": "internal_error", "s2": "skipped"}
    assert bench.butlers.called == ["finance"]


# --- repeats ---------------------------------------------------------------------------------------------------------


async def test_what_ended_before_is_not_dispatched_again(bench: Bench) -> None:
    first = await bench.run(plan(node(1, "finance"), mode="ordered"))
    bench.butlers.calls.clear()
    stored = json.loads(json.dumps(first.outcomes[0].to_wire()))
    done = SegmentOutcome.from_wire(stored, [segment(1, "finance")], REQUEST)
    result = await bench.run(plan(node(1, "finance"), node(2, "travel"), mode="ordered"), done=[done])

    assert bench.butlers.called == ["travel"]
    assert [outcome.segment.butler for outcome in result.ended_now] == ["travel"]
    assert aggregate(result.plan, result.outcomes) == {"answers": {"finance": "yes", "travel": "yes"}}


@pytest.mark.parametrize("outcome", [ok(1, "finance", key="k", decision=3), away(1, "finance"), failed(1, "finance")])
def test_a_stored_outcome_is_the_same_outcome(outcome: SegmentOutcome) -> None:
    stored, segments = json.loads(json.dumps(outcome.to_wire())), [segment(1, "finance")]
    again = SegmentOutcome.from_wire(stored, segments, REQUEST)
    assert again.to_wire() == outcome.to_wire()
    assert again.end is outcome.end
    of_before = {"segment_id": "s1", "target_butler": "finance", "success": True, "duration_ms": 3, "attempts": 1}
    assert SegmentOutcome.from_wire(of_before, segments, REQUEST).end is End.SUCCEEDED, "an earlier version stored less"


async def test_what_comes_after_a_butler_that_is_away_waits_and_goes_on_when_the_patience_is_used_up(
    bench: Bench,
) -> None:
    of = plan(node(1, "finance"), node(2, "travel"), mode="ordered")
    bench.butlers.answers("finance", raising(TargetUnavailable("gone")))
    held = await bench.run(of, may_put_off=True, budget=allowing(attempts=1))
    assert ends(held) == {"s1": "target_unavailable"}
    assert [late.segment.butler for late in held.late] == ["finance"]
    assert held.settled == ()

    rest = await bench.run(of, done=held.ended, budget=allowing(attempts=1))
    assert ends(rest) == {"s1": "target_unavailable", "s2": "ok"}
    assert bench.butlers.called == ["finance", "travel"]


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
    bench.butlers.hold = {"finance": asyncio.Event(), "travel": asyncio.Event()}
    running = asyncio.create_task(bench.run(TWO))
    async with asyncio.timeout(5):
        while len(bench.butlers.calls) < 2:
            await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert bench.butlers._now == set()
    assert {state.consecutive_failures for state in bench.circuits.states().values()} == {0}
