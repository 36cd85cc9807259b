"""What a plan asks for next: examples, and what holds for every plan and every course of events."""

from __future__ import annotations

from typing import get_args

from hypothesis import given
from hypothesis import strategies as st

from butlers.contracts.route import FanoutMode
from butlers.switchboard.dispatch.plan import End, FanoutNode, FanoutPlan, RunIf, advance
from tests.unit.switchboard.fanout.parts import node, plan

NAMES = ("finance", "travel", "health", "general", "relationship")


def started(of: FanoutPlan, ended: dict[str, End], running: tuple[str, ...] = ()) -> list[str]:
    return [one.segment.segment_id for one in advance(of, ended, running)[0]]


# --- examples --------------------------------------------------------------------------------------------------------


def test_parallel_starts_everything_at_once() -> None:
    assert started(plan(node(1, "finance"), node(2, "travel")), {}) == ["s1", "s2"]


def test_ordered_starts_the_next_when_the_one_before_has_ended_however_it_ended() -> None:
    ordered = plan(node(1, "finance"), node(2, "travel"), mode="ordered")

    assert started(ordered, {}) == ["s1"]
    assert started(ordered, {}, ("s1",)) == []
    assert started(ordered, {"s1": End.FAILED}) == ["s2"]


def test_conditional_goes_on_only_when_the_condition_holds() -> None:
    def what_follows(run_if: RunIf, first: End) -> tuple[list[str], dict[str, str]]:
        start, skipped = advance(
            plan(node(1, "finance"), node(2, "travel", depends_on=("s1",), run_if=run_if), mode="conditional"),
            {"s1": first},
        )
        return [one.segment.segment_id for one in start], skipped

    assert what_follows("success", End.SUCCEEDED) == (["s2"], {})
    assert what_follows("success", End.FAILED) == ([], {"s2": "it depends on finance, which did not succeed"})
    assert what_follows("completed", End.FAILED) == (["s2"], {})


def test_what_depends_on_something_skipped_runs_only_if_it_always_runs() -> None:
    def third(run_if: RunIf) -> bool:
        chain = plan(
            node(1, "finance"),
            node(2, "travel", depends_on=("s1",)),
            node(3, "health", depends_on=("s2",), run_if=run_if),
            mode="conditional",
        )
        return "s3" in started(chain, {"s1": End.FAILED})

    assert [third(run_if) for run_if in get_args(RunIf)] == [False, False, True]


def test_an_abort_starts_nothing_more_and_lets_finish_what_runs() -> None:
    nodes = (node(1, "finance", required=False), node(2, "travel"), node(3, "health"))
    required = plan(*nodes, mode="ordered", abort="on_required_failure")
    strict = plan(*nodes, mode="ordered", abort="on_any_failure")

    assert started(required, {"s1": End.FAILED}) == ["s2"]
    assert advance(strict, {"s1": End.FAILED})[1] == {
        "s2": "stopped because finance failed",
        "s3": "stopped because finance failed",
    }
    assert advance(plan(*nodes, abort="on_any_failure"), {"s1": End.FAILED}, ("s2", "s3")) == ([], {})


def test_the_first_success_leaves_the_others_out() -> None:
    either = plan(node(1, "finance"), node(2, "travel"), node(3, "health"), mode="ordered", join="first_success")

    assert started(either, {"s1": End.FAILED}) == ["s2"]
    assert started(either, {"s1": End.AWAY}) == ["s2"]
    assert advance(either, {"s1": End.FAILED, "s2": End.SUCCEEDED}) == ([], {"s3": "travel has dealt with it"})


def test_what_comes_after_a_target_that_is_away_waits_with_it() -> None:
    ordered = plan(node(1, "finance"), node(2, "travel"), mode="ordered")
    conditional = plan(node(1, "finance"), node(2, "travel", depends_on=("s1",)), node(3, "health"), mode="conditional")

    assert (started(ordered, {"s1": End.AWAY}), advance(ordered, {"s1": End.AWAY})[1]) == ([], {})
    assert started(conditional, {"s1": End.AWAY}) == ["s3"]


# --- every plan, every course ----------------------------------------------------------------------------------------


@st.composite
def plans(draw: st.DrawFn) -> FanoutPlan:
    mode: FanoutMode = draw(st.sampled_from(get_args(FanoutMode)))
    join = draw(st.sampled_from(["wait_for_all", "first_success"]))
    abort = draw(st.sampled_from(["continue", "on_required_failure", "on_any_failure"]))
    nodes: list[FanoutNode] = []
    for number in range(1, draw(st.integers(1, 6)) + 1):
        earlier = [one.segment.segment_id for one in nodes]
        depends_on = draw(st.lists(st.sampled_from(earlier), unique=True)) if earlier and mode != "parallel" else []
        nodes.append(
            node(
                number,
                draw(st.sampled_from(NAMES)),
                depends_on=tuple(depends_on),
                run_if=draw(st.sampled_from(get_args(RunIf))),
                required=draw(st.booleans()),
            )
        )
    return plan(*nodes, mode=mode, join=join, abort=abort)


class Course:
    """A plan carried out with drawn ends in a drawn order; notes what was started while what was running."""

    def __init__(self, of: FanoutPlan, data: st.DataObject, ends: tuple[End, ...]) -> None:
        self.ended: dict[str, End] = {}
        self.started: list[tuple[str, frozenset[str], frozenset[str]]] = []  # node, running, through before it
        running: set[str] = set()
        while True:
            start, self.skipped = advance(of, self.ended, running)
            through = frozenset(self.ended) | frozenset(self.skipped)
            for one in start:
                self.started.append((one.segment.segment_id, frozenset(running), through))
                running.add(one.segment.segment_id)
            if not running:
                return
            finished = data.draw(st.sampled_from(sorted(running)))
            running.remove(finished)
            self.ended[finished] = data.draw(st.sampled_from(ends))


DECIDED = (End.SUCCEEDED, End.FAILED)


@given(of=plans(), data=st.data())
def test_every_node_ends_exactly_once_as_an_outcome_or_skipped(of: FanoutPlan, data: st.DataObject) -> None:
    course = Course(of, data, DECIDED)

    names = [name for name, _, _ in course.started]
    assert len(names) == len(set(names))
    assert set(names) == course.ended.keys()
    assert course.ended.keys() | course.skipped.keys() == {one.segment.segment_id for one in of.nodes}
    assert not course.ended.keys() & course.skipped.keys()


@given(of=plans(), data=st.data())
def test_ordered_never_runs_two_at_once_and_keeps_the_order(of: FanoutPlan, data: st.DataObject) -> None:
    course = Course(of, data, tuple(End))
    if of.mode != "ordered":
        return
    assert all(not running for _, running, _ in course.started)
    positions = [int(name[1:]) for name, _, _ in course.started]
    assert positions == sorted(positions)


@given(of=plans(), data=st.data())
def test_conditional_never_starts_before_its_dependencies_are_through(of: FanoutPlan, data: st.DataObject) -> None:
    course = Course(of, data, tuple(End))
    depends_on = {one.segment.segment_id: one.depends_on for one in of.nodes}
    for name, _, through in course.started:
        assert through.issuperset(depends_on[name]), f"{name} was early"


@given(of=plans(), data=st.data())
def test_conditional_starts_nothing_whose_condition_does_not_hold(of: FanoutPlan, data: st.DataObject) -> None:
    if of.mode != "conditional":
        return
    course = Course(of, data, DECIDED)
    for one in of.nodes:
        if one.segment.segment_id in course.ended and one.run_if == "success":
            assert all(course.ended.get(other) is End.SUCCEEDED for other in one.depends_on)
        if one.segment.segment_id in course.ended and one.run_if == "completed":
            assert all(other in course.ended for other in one.depends_on)


@given(of=plans(), data=st.data())
def test_nothing_is_started_after_the_first_success_or_after_an_abort(of: FanoutPlan, data: st.DataObject) -> None:
    course = Course(of, data, DECIDED)
    required = {one.segment.segment_id for one in of.nodes if one.required}

    def stops(name: str) -> bool:
        if of.join == "first_success":
            return course.ended[name] is End.SUCCEEDED
        failed = course.ended[name] is End.FAILED
        return failed and (of.abort == "on_any_failure" or (of.abort == "on_required_failure" and name in required))

    for name, _, through in course.started:
        assert not any(stops(other) for other in through & course.ended.keys()), f"{name} was started in spite of it"


@given(of=plans(), data=st.data())
def test_taking_up_again_what_a_dead_worker_left_starts_nothing_that_ended(of: FanoutPlan, data: st.DataObject) -> None:
    course = Course(of, data, DECIDED)
    known = {name: end for name, end in course.ended.items() if data.draw(st.booleans())}
    assert not {one.segment.segment_id for one in advance(of, known)[0]} & known.keys()


@given(of=plans(), data=st.data())
def test_where_somebody_is_away_and_nobody_may_step_in_nothing_depending_on_it_has_begun(
    of: FanoutPlan, data: st.DataObject
) -> None:
    if of.mode == "parallel" or of.join == "first_success":
        return
    course = Course(of, data, tuple(End))
    away = {name for name, end in course.ended.items() if end is End.AWAY}
    for one in of.nodes:
        if away.intersection(one.depends_on):
            assert one.segment.segment_id not in course.ended
