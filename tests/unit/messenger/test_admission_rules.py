"""May a delivery be taken on now? The rules, one by one and in their order (seed 001 section 8)."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from butlers.errors import CircuitOpenError, ErrorClass, OverloadRejected
from butlers.messenger import admission_rules as rules
from butlers.messenger.admission import AdmissionBatch
from butlers.messenger.admission_rules import Admitted, Budgets, Refused, Throttled
from butlers.messenger.config import DeliverySection, LimitsSection
from butlers.messenger.delivery import AdmissionRequest
from butlers.reliability.circuit_breaker import Breaker, BreakerState
from butlers.reliability.error_budget import ADMISSION_RULE, BudgetMode
from butlers.reliability.token_bucket import Bucket, per_minute, refill

from .admission_door import Door, admit, limits
from .given import START as NOW
from .given import at, request


def used_up(per_minute_: float) -> Bucket:
    return replace(per_minute(per_minute_, NOW), tokens=0.0)


OPEN_CIRCUIT = Breaker(state=BreakerState.OPEN, generation=1, trip_reason="502", tripped_at=NOW, probe_at=at(60))
ONE = request()
OBJECTIONS: dict[str, dict[str, Any]] = {  # everything that can be wrong at once, in the order in which it is named
    "throttle": {"throttles": {"telegram.bot:7": Throttled(until=at(30), reason="too fast")}},
    "in_flight": {"in_flight": 5},
    "global": {"buckets": {"global": used_up(60)}},
    "channel": {"buckets": {"channel:telegram.bot": used_up(30)}},
    "recipient": {"buckets": {"recipient:telegram.bot:7": used_up(10)}},
    "fair_share": {
        "shares": {"global": {"general": used_up(60), "health": per_minute(60, NOW)}},
        "buckets": {"global": replace(used_up(60), tokens=10.0)},
    },
    "breaker": {"breakers": {"telegram.bot": OPEN_CIRCUIT}},
}
SHIPPED = DeliverySection(limits=LimitsSection(max_in_flight=5))


def state(*rules: str) -> Budgets:
    """The state to which these rules object."""
    found: dict[str, Any] = {}
    for rule in rules:
        for name, value in OBJECTIONS[rule].items():
            known = found.get(name)
            found[name] = {**value, **known} if isinstance(known, dict) else value
    return Budgets(**found)


def refused(verdict: Admitted | Refused) -> Refused:
    assert isinstance(verdict, Refused)
    return verdict


# --- which rule ----------------------------------------------------------------------------------------------


@given(st.sets(st.sampled_from(list(OBJECTIONS)), min_size=1))
def test_the_first_rule_in_the_order_names_the_refusal(rules: set[str]) -> None:
    in_order = [rule for rule in OBJECTIONS if rule in rules]
    verdict = refused(admit(ONE, NOW, limits=SHIPPED, budgets=state(*in_order)))
    assert verdict.rule == in_order[0]


def test_without_an_objection_it_is_admitted_and_pays_on_every_layer() -> None:
    verdict = admit(ONE, NOW, limits=SHIPPED)
    assert isinstance(verdict, Admitted)
    assert {name: bucket.tokens for name, bucket in verdict.buckets.items()} == {
        "global": 59,
        "channel:telegram.bot": 29,
        "recipient:telegram.bot:7": 9,
    }
    assert {layer: use.tokens for layer, use in verdict.shares.items()} == {"global": 59, "channel:telegram.bot": 29}


@pytest.mark.parametrize(
    ("rule", "error_class"),
    [
        ("throttle", ErrorClass.TARGET_UNAVAILABLE),
        ("in_flight", ErrorClass.OVERLOAD_REJECTED),
        ("global", ErrorClass.OVERLOAD_REJECTED),
        ("channel", ErrorClass.OVERLOAD_REJECTED),
        ("recipient", ErrorClass.OVERLOAD_REJECTED),
        ("fair_share", ErrorClass.OVERLOAD_REJECTED),
        ("breaker", ErrorClass.TARGET_UNAVAILABLE),
    ],
)
def test_a_refusal_is_retryable_and_says_when(rule: str, error_class: ErrorClass) -> None:
    error = refused(admit(ONE, NOW, limits=SHIPPED, budgets=state(rule))).error
    assert (error.error_class, error.retryable) == (error_class, True)
    assert error.retry_after is not None and error.retry_after > 0


@pytest.mark.parametrize(
    ("scope", "recipient", "blocked"),
    [
        ("telegram.bot", "7", True),
        ("telegram.bot:7", "7", True),
        ("telegram.bot:7", "8", False),
        ("email.bot", "7", False),
    ],
)
def test_a_window_stops_its_conversation_or_the_whole_channel(scope: str, recipient: str, blocked: bool) -> None:
    budgets = Budgets(throttles={scope: Throttled(until=at(30), reason="too fast")})
    verdict = admit(request(recipient=recipient), NOW, limits=limits(), budgets=budgets)
    assert isinstance(verdict, Refused) == blocked
    if isinstance(verdict, Refused):
        assert verdict.error.retry_after == 30
    assert isinstance(admit(request(recipient=recipient), at(30), limits=limits(), budgets=budgets), Admitted)


def test_one_below_the_limit_of_deliveries_in_flight_is_admitted() -> None:
    for in_flight, admitted in ((4, True), (5, False), (6, False)):
        verdict = admit(ONE, NOW, limits=SHIPPED, budgets=Budgets(in_flight=in_flight))
        assert isinstance(verdict, Admitted) == admitted


def test_an_open_circuit_refuses_until_it_may_be_probed() -> None:
    budgets = state("breaker")
    error = refused(admit(ONE, NOW, limits=SHIPPED, budgets=budgets)).error
    assert isinstance(error, CircuitOpenError)
    assert error.retry_after == 60 and "502" in error.message
    assert isinstance(admit(ONE, at(60), limits=SHIPPED, budgets=budgets), Admitted)
    assert isinstance(admit(request(channel="email.bot"), NOW, limits=SHIPPED, budgets=budgets), Admitted)


def test_a_channel_without_a_limit_of_its_own_takes_the_default() -> None:
    given = DeliverySection(limits=LimitsSection(channel_per_minute={"telegram.bot": 5.0, "default": 7.0}))
    left = [
        rules.headroom(request(channel=channel), policy, Budgets(), NOW)["channel"]
        for channel, policy in (("telegram.bot", given), ("sms.bot", given), ("sms.bot", DeliverySection()))
    ]
    assert left == [5, 7, 30]


# --- what it costs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("intent", "multiplier", "passes"),
    [("send", 2, 10), ("reply", 2, 20), ("react", 2, 500), ("react", 100, 1000), ("reply", 1, 10), ("reply", 4, 40)],
)
def test_an_answer_costs_a_part_of_what_a_message_costs(intent: str, multiplier: float, passes: int) -> None:
    door = Door(limits=limits(recipient=10, reply_multiplier=multiplier))
    assert door.admitted(request(intent=intent), NOW, tries=1100) == passes


@pytest.mark.parametrize(
    ("layer", "others"), [("channel", "recipient"), ("recipient", "channel"), ("total", "channel")]
)
def test_a_refused_delivery_has_paid_nothing(layer: str, others: str) -> None:
    door = Door(limits=limits(**{layer: 3.0, others: 9.0}))
    assert door.admitted(ONE, NOW, tries=50) == 3
    left = rules.headroom(ONE, door.limits, door.budgets, NOW)
    assert left[{"total": "global"}.get(layer, layer)] == 0
    assert left[others] == 6, "the fifty refusals cost nothing on the other layer"


@pytest.mark.parametrize("rule", ["fair_share", "breaker"])
def test_nothing_is_paid_either_when_a_later_rule_refuses(rule: str) -> None:
    budgets = state(rule)
    before = rules.headroom(ONE, SHIPPED, budgets, NOW)
    refused(admit(ONE, NOW, limits=SHIPPED, budgets=budgets))
    assert rules.headroom(ONE, SHIPPED, budgets, NOW) == before


def test_the_next_of_a_batch_meets_what_the_first_left() -> None:
    verdict = admit(ONE, NOW, limits=SHIPPED)
    assert isinstance(verdict, Admitted)
    budgets = Budgets(in_flight=4)
    AdmissionBatch().charge(ONE, verdict, budgets, NOW)
    assert budgets.in_flight == 5
    assert budgets.buckets == verdict.buckets
    assert budgets.shares["global"]["general"].tokens == 59
    assert refused(admit(ONE, NOW, limits=SHIPPED, budgets=budgets)).rule == "in_flight"


# --- a channel whose error budget burns ------------------------------------------------------------------------------


def test_a_burning_channel_takes_half_and_the_others_all() -> None:
    door = Door(limits=limits(channel=30.0), budgets=Budgets(modes={"telegram.bot": BudgetMode.TIGHT}))
    assert door.admitted(ONE, NOW, tries=60) == 15
    assert door.admitted(request(channel="email.bot"), NOW, tries=60) == 30


def test_the_refusal_says_that_the_budget_is_smaller() -> None:
    budgets = Budgets(modes={"telegram.bot": BudgetMode.TIGHT}, buckets={"channel:telegram.bot": used_up(15)})
    error = refused(admit(ONE, NOW, limits=SHIPPED, budgets=budgets)).error
    assert ADMISSION_RULE in error.message


def test_becoming_strict_does_not_refill_and_becoming_normal_does_not_either() -> None:
    given = limits(channel=30.0)
    for tokens, left_when_tight in ((30.0, 15), (15.0, 15), (4.0, 4), (0.5, 0)):
        stored = replace(per_minute(30.0, NOW), tokens=tokens)
        tight = Budgets(buckets={"channel:telegram.bot": stored}, modes={"telegram.bot": BudgetMode.TIGHT})
        assert Door(limits=given, budgets=tight).admitted(ONE, NOW, tries=60) == left_when_tight
    relaxed = Budgets(buckets={"channel:telegram.bot": replace(per_minute(15.0, NOW), tokens=2.0)})
    assert Door(limits=given, budgets=relaxed).admitted(ONE, NOW, tries=60) == 2


# --- properties ------------------------------------------------------------------------------------------------------

small = st.sampled_from([1.0, 2.0, 3.0, 5.0, 6.0, 10.0])
small_limits = st.builds(
    limits, total=small, channel=small, recipient=small, reply_multiplier=st.sampled_from([1.0, 2.0, 3.0])
)
requests = st.builds(
    request,
    channel=st.sampled_from(["telegram.bot", "email.bot"]),
    recipient=st.sampled_from(["7", "8"]),
    origin=st.sampled_from(["general", "health"]),
    intent=st.sampled_from(["send", "reply"]),
)
pauses = st.sampled_from([0.0, 0.0, 0.3, 1.0, 5.0, 20.0])
stories = st.lists(st.tuples(pauses, requests), min_size=1, max_size=60)


@given(small_limits, stories)
def test_no_layer_ever_lets_through_more_than_its_bucket_and_what_it_gained(
    given_limits: DeliverySection, story: list[tuple[float, AdmissionRequest]]
) -> None:
    door, moment = Door(limits=given_limits), 0.0
    paid: list[tuple[float, str, float]] = []
    for pause, one in story:
        moment += pause
        if door.is_admitted(one, at(moment)):
            paid += [(moment, layer, _cost(one, given_limits)) for layer in rules.layers(one)]
    for begin, layer, _ in paid:
        size = given_limits.limits.global_per_minute if layer == "global" else _size(layer, given_limits)
        since = [(when, cost) for when, name, cost in paid if name == layer and when >= begin]
        spent = 0.0
        for when, cost in since:
            spent += cost
            assert spent <= size + size / 60 * (when - begin) + 1e-6


def _size(layer: str, given_limits: DeliverySection) -> float:
    limits = given_limits.limits
    return limits.channel_per_minute["default"] if layer.startswith("channel:") else limits.recipient_per_minute


def _cost(one: AdmissionRequest, given_limits: DeliverySection) -> float:
    return rules.Meter(request=one, policy=given_limits, budgets=Budgets(), now=NOW).cost()


@given(small_limits, stories)
def test_what_is_stored_stays_between_empty_and_full(
    given_limits: DeliverySection, story: list[tuple[float, AdmissionRequest]]
) -> None:
    door, moment = Door(limits=given_limits), 0.0
    for pause, one in story:
        moment += pause
        door.ask(one, at(moment))
        stored = [*door.budgets.buckets.values(), *(use for of in door.budgets.shares.values() for use in of.values())]
        assert all(0 <= refill(bucket, at(moment)).tokens <= bucket.capacity for bucket in stored)


@given(small_limits, stories)
def test_coming_back_when_told_is_coming_back_in_time(
    given_limits: DeliverySection, story: list[tuple[float, AdmissionRequest]]
) -> None:
    """The wait of a refusal is enough, as long as nobody else takes anything in between."""
    door, moment = Door(limits=given_limits), 0.0
    for pause, one in story:
        moment += pause
        verdict = door.ask(one, at(moment))
        if isinstance(verdict, Refused):
            assert isinstance(verdict.error, OverloadRejected)
            assert verdict.error.retry_after is not None
            later = at(moment) + timedelta(seconds=verdict.error.retry_after)
            again = admit(one, later, limits=given_limits, budgets=door.budgets)
            assert isinstance(again, Admitted), f"{verdict} and then {again}"
