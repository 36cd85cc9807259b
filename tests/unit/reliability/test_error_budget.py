"""How fast the budget burns, when that makes strict, and that it never flaps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from butlers.reliability.error_budget import (
    ADMISSION_FACTORS,
    Assessment,
    BudgetMode,
    BudgetPolicy,
    Reason,
    Window,
    assess,
    burn_rate,
    tightened,
)
from butlers.reliability.retry import RetryPolicy, Strategy, backoff

from .moments import at

POLICY = BudgetPolicy()
CLEAN = Window(good=100)
BURNING = Window(good=94, bad=6)  # exactly six times the budget of 1 %
SMOULDERING = Window(good=97, bad=3)
SILENCE = Window(good=19)

windows = st.builds(Window, good=st.integers(0, 60), bad=st.integers(0, 60))


def assessed(
    short: Window, long: Window, *, mode: BudgetMode = BudgetMode.NORMAL, since: datetime | None = None, now: float = 0
) -> Assessment:
    return assess(short, long, POLICY, mode=mode, since=since, now=at(now))


# --- burn rate -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("window", "rate"),
    [
        (Window(good=99, bad=1), 1.0),
        (Window(good=94, bad=6), 6.0),
        (Window(good=0, bad=20), 100.0),
        (Window(good=20), 0.0),
        (Window(good=19), None),
        (Window(good=0, bad=19), None),
        (Window(), None),
    ],
)
def test_burn_rate_is_the_share_of_failures_over_the_share_allowed(window: Window, rate: float | None) -> None:
    assert burn_rate(window, POLICY) == (None if rate is None else pytest.approx(rate))


def test_a_looser_objective_burns_more_slowly() -> None:
    assert burn_rate(Window(good=90, bad=10), replace(POLICY, objective=0.9)) == pytest.approx(1.0)


# --- one decision ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("short", "long", "mode", "reason"),
    [
        (BURNING, BURNING, BudgetMode.TIGHT, Reason.BUDGET_BURNING),
        (BURNING, CLEAN, BudgetMode.NORMAL, Reason.WITHIN_BUDGET),  # a hiccup
        (CLEAN, BURNING, BudgetMode.NORMAL, Reason.WITHIN_BUDGET),  # over already
        (BURNING, SILENCE, BudgetMode.NORMAL, Reason.WITHIN_BUDGET),
        (SMOULDERING, SMOULDERING, BudgetMode.NORMAL, Reason.WITHIN_BUDGET),
        (SILENCE, BURNING, BudgetMode.NORMAL, Reason.TOO_FEW_EVENTS),
    ],
)
def test_from_normal_only_both_windows_tighten(short: Window, long: Window, mode: BudgetMode, reason: Reason) -> None:
    assessment = assessed(short, long)
    assert (assessment.mode, assessment.reason) == (mode, reason)
    assert assessment.burn_rate == burn_rate(short, POLICY)


@pytest.mark.parametrize(
    ("short", "mode", "reason"),
    [
        (CLEAN, BudgetMode.NORMAL, Reason.RECOVERED),
        (Window(good=99, bad=1), BudgetMode.TIGHT, Reason.STILL_BURNING),  # at 1, not below
        (SMOULDERING, BudgetMode.TIGHT, Reason.STILL_BURNING),  # would not tighten, but does not relax either
        (SILENCE, BudgetMode.NORMAL, Reason.TOO_FEW_EVENTS),
    ],
)
def test_from_tight_the_short_window_alone_relaxes(short: Window, mode: BudgetMode, reason: Reason) -> None:
    assessment = assessed(short, BURNING, mode=BudgetMode.TIGHT, since=at(0), now=120)
    assert (assessment.mode, assessment.reason) == (mode, reason)


@pytest.mark.parametrize("short", [CLEAN, SILENCE])
def test_a_young_stance_is_held(short: Window) -> None:
    held = assessed(short, BURNING, mode=BudgetMode.TIGHT, since=at(0), now=119.9)
    assert (held.mode, held.reason) == (BudgetMode.TIGHT, Reason.HELD)
    relaxed = assessed(BURNING, BURNING, since=at(0), now=119.9)
    assert (relaxed.mode, relaxed.reason) == (BudgetMode.NORMAL, Reason.HELD)


def test_a_clock_that_was_set_back_does_not_hold_a_stance_for_ever() -> None:
    yesterday = at(0) - timedelta(days=1)
    assert assess(CLEAN, CLEAN, POLICY, mode=BudgetMode.TIGHT, since=at(0), now=yesterday).mode is BudgetMode.NORMAL


# --- a course of decisions -------------------------------------------------------------------------------------------

steps = st.lists(st.tuples(st.floats(0, 200), windows, windows), min_size=1, max_size=60)


def course(course_of: list[tuple[float, Window, Window]]) -> Iterator[tuple[datetime, BudgetMode, Assessment]]:
    """Every round as (when, stance before, assessment), the stance kept as a caller keeps it."""
    mode, since, now = BudgetMode.NORMAL, None, at(0)
    for pause, short, long in course_of:
        now += timedelta(seconds=pause)
        assessment = assess(short, long, POLICY, mode=mode, since=since, now=now)
        yield now, mode, assessment
        since = now if assessment.mode is not mode else since
        mode = assessment.mode


@given(steps)
def test_two_changes_are_never_closer_than_the_hold(drawn: list[tuple[float, Window, Window]]) -> None:
    changes = [now for now, before, after in course(drawn) if after.mode is not before]
    gaps = [later - earlier for earlier, later in pairwise(changes)]
    assert all(gap >= timedelta(seconds=POLICY.hold_s) for gap in gaps)


@given(st.sampled_from(BudgetMode), windows, windows, st.lists(st.floats(0, 400), min_size=1, max_size=30))
def test_the_same_measurements_change_the_stance_once_at_most(
    mode: BudgetMode, short: Window, long: Window, pauses: list[float]
) -> None:
    seen, since, now = [mode], at(0), at(0)
    for pause in pauses:
        now += timedelta(seconds=pause)
        taken = assess(short, long, POLICY, mode=seen[-1], since=since, now=now).mode
        since = since if taken is seen[-1] else now
        seen.append(taken)
    assert sum(before is not after for before, after in pairwise(seen)) <= 1


@given(steps)
def test_every_change_has_a_measured_cause_or_none_to_measure(drawn: list[tuple[float, Window, Window]]) -> None:
    for (_, short, long), (_, before, after) in zip(drawn, course(drawn), strict=True):
        rates = burn_rate(short, POLICY), burn_rate(long, POLICY)
        if (before, after.mode) == (BudgetMode.NORMAL, BudgetMode.TIGHT):
            assert all(rate is not None and rate >= POLICY.tighten_at for rate in rates)
        if (before, after.mode) == (BudgetMode.TIGHT, BudgetMode.NORMAL):
            assert rates[0] is None or rates[0] < POLICY.relax_below


@given(steps)
def test_good_news_always_ends_in_normal(drawn: list[tuple[float, Window, Window]]) -> None:
    better = [*drawn, (POLICY.hold_s, CLEAN, BURNING), (POLICY.hold_s, CLEAN, BURNING)]
    assert [after.mode for _, _, after in course(better)][-1] is BudgetMode.NORMAL


# --- what being strict means -----------------------------------------------------------------------------------------


def test_a_tight_stance_retries_less_often_and_more_patiently() -> None:
    usual = RetryPolicy(max_attempts=3, initial_delay=1.0, max_delay=60.0)
    strict = tightened(usual, BudgetMode.TIGHT)
    assert (strict.attempts_allowed, backoff(strict, 1), backoff(strict, 2)) == (2, 2.0, 4.0)
    assert tightened(usual, BudgetMode.NORMAL) == usual


def test_a_schedule_is_stretched_and_the_cap_still_holds() -> None:
    usual = RetryPolicy(strategy=Strategy.CUSTOM, max_attempts=4, schedule=(60, 300), max_delay=400)
    strict = tightened(usual, BudgetMode.TIGHT)
    assert (strict.attempts_allowed, backoff(strict, 1), backoff(strict, 2)) == (3, 120, 400)


@pytest.mark.parametrize("attempts", [0, 1])
def test_the_first_attempt_is_always_made(attempts: int) -> None:
    assert tightened(RetryPolicy(max_attempts=attempts), BudgetMode.TIGHT).attempts_allowed == 1


def test_a_tight_stance_halves_what_is_admitted() -> None:
    assert ADMISSION_FACTORS == {BudgetMode.NORMAL: 1.0, BudgetMode.TIGHT: 0.5}


@pytest.mark.parametrize(
    "wrong",
    [
        {"objective": 1.0},
        {"objective": 0.0},
        {"relax_below": 6.0},
        {"relax_below": 0.0},
        {"short_window_s": 7200.0},
        {"min_events": 0},
        {"hold_s": -1.0},
    ],
)
def test_a_policy_that_could_flap_or_never_judge_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"objective|relax_below|window|min_events|hold_s"):
        replace(POLICY, **wrong)
