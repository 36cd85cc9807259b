"""The budgets are shared among the butlers that want something."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from butlers.messenger.admission_rules import SHARE_HELD_FOR, Admitted, Refused

from .admission_door import Door, limits
from .given import START as NOW
from .given import at, request

NOISY, QUIET, ANSWER = request(origin="noisy"), request(origin="quiet"), request(origin="noisy", intent="reply")
LAYERS = pytest.mark.parametrize("layer", ["total", "channel"])


def door(layer: str = "total", size: float = 60.0) -> Door:
    return Door(limits=limits(**{layer: size}))


@LAYERS
def test_alone_a_butler_may_use_everything(layer: str) -> None:
    assert door(layer).admitted(NOISY, NOW, tries=100) == 60


@LAYERS
def test_with_another_it_may_use_what_the_other_was_not_promised(layer: str) -> None:
    shared = door(layer)
    assert shared.is_admitted(QUIET, NOW)
    assert shared.admitted(NOISY, NOW, tries=100) == 30
    verdict = shared.ask(NOISY, NOW)
    assert isinstance(verdict, Refused) and verdict.rule == "fair_share"
    assert shared.admitted(QUIET, NOW, tries=100) == 29, "its share, of which it had had one"


def test_what_the_other_has_had_is_promised_no_longer() -> None:
    shared = door()
    assert shared.admitted(QUIET, NOW, tries=40) == 40
    assert shared.admitted(NOISY, NOW, tries=100) == 20


@settings(deadline=None, max_examples=25)
@given(st.integers(2, 6), st.integers(2, 10))
def test_everybody_gets_a_share_however_loud_the_first_is(butlers: int, share: int) -> None:
    shared = door(size=float(butlers * share))
    crowd = [request(origin=f"butler{number}") for number in range(butlers)]
    for one in crowd:
        assert shared.is_admitted(one, NOW)
    had = [1 + shared.admitted(one, NOW, tries=share * 2) for one in crowd]
    assert had == [share] * butlers


def test_nothing_is_kept_back_from_answers_for_what_nobody_asked_for() -> None:
    shared = door()
    assert shared.is_admitted(QUIET, NOW)
    assert shared.admitted(NOISY, NOW, tries=100) == 30
    assert shared.admitted(ANSWER, NOW, tries=100) == 58, "all the 29 that are left, at half the price"


@LAYERS
def test_answers_are_shared_among_the_butlers_that_answer(layer: str) -> None:
    shared, quiet = door(layer), request(origin="quiet", intent="reply")
    assert shared.is_admitted(quiet, NOW)
    assert shared.admitted(ANSWER, NOW, tries=200) == 60, "half of sixty tokens, at half the price"
    verdict = shared.ask(ANSWER, NOW)
    assert isinstance(verdict, Refused) and verdict.rule == "fair_share"
    assert shared.admitted(quiet, NOW, tries=200) == 59


def test_a_newcomer_is_promised_its_share_from_its_first_refusal_on() -> None:
    shared = door()
    assert shared.admitted(NOISY, NOW, tries=100) == 60
    assert not shared.is_admitted(QUIET, NOW)
    assert not shared.is_admitted(NOISY, at(5)), "five tokens are there, and promised"
    assert shared.admitted(QUIET, at(5), tries=100) == 5


def test_a_promise_nobody_comes_back_for_is_forgotten() -> None:
    shared = door()
    assert shared.admitted(NOISY, NOW, tries=100) == 60
    assert not shared.is_admitted(QUIET, NOW)
    seconds = SHARE_HELD_FOR.total_seconds()
    assert shared.admitted(NOISY, at(seconds), tries=100) == seconds


@LAYERS
def test_a_newcomer_is_served_its_share_within_the_time_it_takes_to_refill(layer: str) -> None:
    shared = door(layer)
    shared.admitted(NOISY, NOW, tries=100)
    served = 0
    for tick in range(31 * 4):
        moment = at(tick / 4)
        shared.admitted(NOISY, moment, tries=3)
        served += shared.is_admitted(QUIET, moment)
    assert served >= 30


@LAYERS
@pytest.mark.parametrize("loud_for", [0, 120])
def test_under_lasting_load_the_quiet_one_gets_what_it_asks_for_within_its_share(layer: str, loud_for: int) -> None:
    """The noisy butler asks four times a second, first. The quiet one asks for twenty a minute, of its thirty."""
    shared = door(layer)
    for tick in range(loud_for * 4):
        shared.is_admitted(NOISY, at(tick / 4))
    asked = served = 0
    for tick in range(240 * 4):
        moment = at(loud_for + tick / 4)
        shared.is_admitted(NOISY, moment)
        if tick % 12 == 0:
            asked += 1
            served += shared.is_admitted(QUIET, moment)
    assert served >= asked - 3, f"{served} of {asked}"


def test_two_loud_ones_share_evenly_over_time() -> None:
    shared, had = door(), {"noisy": 0, "quiet": 0}
    for tick in range(300 * 4):
        for one in (NOISY, NOISY, NOISY, QUIET):
            had[one.origin] += shared.is_admitted(one, at(tick / 4))
    assert sum(had.values()) >= 300
    assert had["quiet"] >= 0.8 * had["noisy"], had


@LAYERS
@pytest.mark.parametrize("answers", [0, 100])
def test_whoever_is_refused_may_come_back_when_told(layer: str, answers: int) -> None:
    shared = door(layer)
    shared.admitted(QUIET, NOW, tries=10)
    shared.admitted(NOISY, NOW, tries=100)
    shared.admitted(ANSWER, NOW, tries=answers)
    verdict = shared.ask(NOISY, NOW)
    assert isinstance(verdict, Refused)
    assert verdict.rule == ({"total": "global"}.get(layer, layer) if answers else "fair_share")
    assert verdict.error.retry_after is not None
    assert isinstance(shared.ask(NOISY, at(verdict.error.retry_after)), Admitted)


def test_a_refusal_is_about_every_layer_that_it_has_to_pass() -> None:
    shared = Door(limits=limits(total=60.0, channel=12.0))
    shared.is_admitted(QUIET, NOW)
    assert shared.admitted(NOISY, NOW, tries=100) == 6
    assert shared.admitted(ANSWER, NOW, tries=4) == 4, "two more than its share of the channel"
    for channel in ("email.bot", "sms.bot"):
        shared.admitted(request(origin="noisy", channel=channel), NOW, tries=100)
    verdict = shared.ask(NOISY, NOW)
    assert isinstance(verdict, Refused) and "share of global" in verdict.error.message
    assert verdict.error.retry_after is not None
    assert isinstance(shared.ask(NOISY, at(verdict.error.retry_after)), Admitted)
