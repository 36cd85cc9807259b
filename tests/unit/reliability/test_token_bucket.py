"""The model ticks: it adds a whole number of grains for every second that passes and never divides."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from butlers.reliability.token_bucket import (
    AllTaken,
    Bucket,
    Draw,
    Refused,
    RefusedBy,
    Taken,
    full,
    per_minute,
    refill,
    take,
    take_all,
)

from .moments import START, at


def bucket(tokens: float, *, capacity: float = 10, rate: float = 1.0) -> Bucket:
    return Bucket(capacity=capacity, refill_per_second=rate, tokens=tokens, updated_at=START)


def test_a_full_bucket_allows_a_burst_and_then_says_when_to_come_back():
    current = per_minute(60, START)
    for _ in range(60):
        taken = take(current, 1, START)
        assert isinstance(taken, Taken)
        current = taken.bucket
    refused = take(current, 1, START)
    assert isinstance(refused, Refused)
    assert refused.retry_after == pytest.approx(1.0, abs=1e-5)


def test_a_reply_that_costs_half_gets_through_twice_as_often():
    current, replies = per_minute(30, START), 0
    while isinstance(taken := take(current, 1 / 2.0, START), Taken):
        current, replies = taken.bucket, replies + 1
    assert replies == 60


def test_tokens_come_back_with_time_but_never_above_capacity():
    assert refill(bucket(0), at(4)).tokens == 4
    assert refill(bucket(0), at(4_000)).tokens == 10


def test_a_cost_above_capacity_can_never_be_paid():
    refused = take(bucket(10), 11, START)
    assert isinstance(refused, Refused)
    assert refused.retry_after is None


def test_a_clock_that_steps_back_and_forth_adds_nothing():
    current = bucket(3)
    for seconds in (-5, 0, -9, 0, -1, 0):
        current = refill(current, at(seconds))
        assert current.tokens == 3


def test_a_clock_set_back_by_an_hour_costs_no_more_than_two_fillings():
    refused = take(bucket(0), 10, at(-3_600))
    assert isinstance(refused, Refused)
    assert refused.retry_after == 20
    assert isinstance(take(refused.bucket, 10, at(-3_600 + 20)), Taken)


def test_one_refusal_among_several_layers_costs_nobody_anything():
    draws = [Draw("global", bucket(5)), Draw("channel", bucket(0.5)), Draw("recipient", bucket(0))]
    assert take_all(draws, START) == RefusedBy("channel", 1.0)
    assert take_all(draws, at(1)) == AllTaken(
        {
            "global": Bucket(capacity=10, refill_per_second=1, tokens=5, updated_at=at(1)),
            "channel": Bucket(capacity=10, refill_per_second=1, tokens=0.5, updated_at=at(1)),
            "recipient": Bucket(capacity=10, refill_per_second=1, tokens=0, updated_at=at(1)),
        }
    )


def test_a_layer_that_can_never_pay_makes_the_whole_hint_never():
    draws = [Draw("global", bucket(0)), Draw("channel", bucket(10), 11)]
    assert take_all(draws, START) == RefusedBy("global", None)


def test_no_layers_refuse_nothing():
    assert take_all([], START) == AllTaken({})


def test_misuse_is_refused():
    with pytest.raises(ValueError):
        take(bucket(1), -1, START)
    with pytest.raises(ValueError):
        take(bucket(1), float("nan"), START)
    with pytest.raises(ValueError):
        full(capacity=0, refill_per_second=1, now=START)
    with pytest.raises(ValueError):
        full(capacity=1, refill_per_second=0, now=START)
    with pytest.raises(ValueError):
        take_all([Draw("global", bucket(1)), Draw("global", bucket(1))], START)


@settings(max_examples=100, deadline=None)
@given(
    capacity=st.floats(0.5, 1e4),
    rate=st.floats(1e-2, 1e4),
    filled=st.floats(0, 1),
    share=st.floats(0, 1),
    offset=st.floats(-1e5, 1e5),
)
def test_coming_back_after_the_hint_is_never_too_early(capacity, rate, filled, share, offset):
    result = take(bucket(filled * capacity, capacity=capacity, rate=rate), share * capacity, at(offset))
    if isinstance(result, Refused):
        assert result.retry_after is not None
        assert 0 < result.retry_after <= 2 * capacity / rate + 1e-5
        assert isinstance(take(result.bucket, share * capacity, at(offset + result.retry_after)), Taken)


@settings(max_examples=100, deadline=None)
@given(
    rates=st.lists(st.integers(1, 50), min_size=1, max_size=4),
    costs=st.lists(st.integers(0, 12), min_size=4, max_size=4),
    seconds=st.integers(0, 20),
)
def test_layers_agree_with_asking_each_bucket_alone(rates, costs, seconds):
    draws = [Draw(str(n), bucket(n, rate=rate / 10), costs[n]) for n, rate in enumerate(rates)]
    alone = {draw.name: take(draw.bucket, draw.cost, at(seconds)) for draw in draws}
    refusals = [name for name, result in alone.items() if isinstance(result, Refused)]
    match take_all(draws, at(seconds)):
        case AllTaken(buckets):
            assert not refusals
            assert buckets == {name: result.bucket for name, result in alone.items()}
        case RefusedBy(name, _):
            assert name == refusals[0]


GRAINS = 64  # grains in a token; every number below is a whole number of them, so floats are exact too


class BucketMachine(RuleBasedStateMachine):
    @initialize(capacity=st.integers(1, 20), rate=st.integers(1, 4 * GRAINS))
    def start(self, capacity, rate):
        self.capacity, self.rate = capacity * GRAINS, rate
        self.grains = self.capacity
        self.now = self.latest = 0
        self.bucket = full(capacity=capacity, refill_per_second=rate / GRAINS, now=START)
        self.paid: list[tuple[int, int]] = []

    @rule(seconds=st.integers(0, 30))
    def time_passes(self, seconds):
        for _ in range(seconds):
            self.now += 1
            if self.now > self.latest:
                self.latest = self.now
                self.grains = min(self.capacity, self.grains + self.rate)

    @rule(data=st.data())
    def the_clock_steps_back(self, data):
        fill_seconds = self.capacity // self.rate
        furthest = fill_seconds - (self.latest - self.now)
        self.bucket = refill(self.bucket, at(self.now))  # a step nobody saw coming is no step to the bucket
        self.now -= data.draw(st.integers(0, max(0, furthest)))

    @rule(cost=st.integers(0, 25 * GRAINS))
    def somebody_takes(self, cost):
        result = take(self.bucket, cost / GRAINS, at(self.now))
        self.bucket = result.bucket
        assert isinstance(result, Taken) == (cost <= self.grains)
        if isinstance(result, Taken):
            self.grains -= cost
            self.paid.append((self.latest, cost))

    @invariant()
    def the_levels_agree(self):
        assert refill(self.bucket, at(self.now)).tokens * GRAINS == self.grains

    @invariant()
    def no_stretch_of_time_saw_more_than_the_limit(self):
        assert all(earlier[0] <= later[0] for earlier, later in pairwise(self.paid))
        for first in range(len(self.paid)):
            elapsed = self.latest - self.paid[first][0]
            spent = sum(cost for _, cost in self.paid[first:])
            assert spent <= self.capacity + elapsed * self.rate


TestBucketMachine = BucketMachine.TestCase
TestBucketMachine.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
