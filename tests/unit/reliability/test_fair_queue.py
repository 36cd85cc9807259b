"""The model keeps plain lists: what waits, and the record of what was taken. It counts in the record."""

from __future__ import annotations

from itertools import takewhile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from butlers.reliability.fair_queue import Accepted, FairShare, Full, Taken, Tier, TieredQueue

HIGH, INTERACTIVE, DEFAULT = Tier.HIGH_PRIORITY, Tier.INTERACTIVE, Tier.DEFAULT


def queue_of(limit: int = 10, **depths: int) -> TieredQueue[str]:
    queue: TieredQueue[str] = TieredQueue(queue_capacity=1_000, max_consecutive_same_tier=limit)
    for tier, depth in depths.items():
        for n in range(depth):
            queue.offer(f"{tier}-{n}", tier)
    return queue


def drain(queue: TieredQueue[str]) -> list[Taken[str]]:
    return list(iter(queue.take, None))


def test_tiers_are_served_in_order_of_priority():
    taken = drain(queue_of(default=2, high_priority=2, interactive=2))
    assert [t.item for t in taken] == [
        "high_priority-0",
        "high_priority-1",
        "interactive-0",
        "interactive-1",
        "default-0",
        "default-1",
    ]
    assert not any(t.starvation_override for t in taken)


def test_after_ten_in_a_row_the_next_take_is_forced_from_a_lower_tier():
    taken = drain(queue_of(high_priority=25, default=2))
    forced = [n for n, t in enumerate(taken) if t.starvation_override]
    assert forced == [10, 21]
    assert [taken[n].item for n in forced] == ["default-0", "default-1"]


def test_the_forced_take_goes_to_the_highest_lower_tier_that_has_something():
    taken = drain(queue_of(limit=2, high_priority=6, interactive=2, default=1))
    assert [t.tier for t in taken] == [HIGH, HIGH, INTERACTIVE] * 2 + [HIGH, HIGH, DEFAULT]


def test_after_a_forced_take_the_highest_tier_is_asked_first_with_a_fresh_count():
    taken = drain(queue_of(limit=3, high_priority=6, interactive=4))
    assert [t.tier for t in taken] == [HIGH] * 3 + [INTERACTIVE] + [HIGH] * 3 + [INTERACTIVE] * 3


def test_the_guard_is_silent_when_no_lower_tier_has_anything():
    taken = drain(queue_of(limit=2, default=9))
    assert [t.starvation_override for t in taken] == [False] * 9


def test_serving_an_emptied_tiers_successor_is_no_override():
    taken = drain(queue_of(limit=2, high_priority=2, default=1))
    assert taken[-1] == Taken(item="default-0", tier=DEFAULT, key="", starvation_override=False)


def test_the_guard_counts_the_tier_it_favoured_even_when_a_higher_one_wakes_up():
    queue = queue_of(limit=2, interactive=3, default=1)
    queue.take(), queue.take()
    queue.offer("urgent", "high_priority")
    assert queue.take() == Taken(item="default-0", tier=DEFAULT, key="", starvation_override=True)
    assert queue.take() == Taken(item="urgent", tier=HIGH, key="", starvation_override=False)


@pytest.mark.parametrize("name", ["bulk", "", "HIGH_PRIORITY", "high_priority "])
def test_an_unknown_tier_falls_back_to_default_and_the_answer_says_so(name):
    queue = queue_of()
    assert queue.offer("a", name) == Accepted(tier=DEFAULT, fell_back=True)
    assert queue.offer("b", "default") == Accepted(tier=DEFAULT, fell_back=False)
    assert queue.depth_by_tier() == {HIGH: 0, INTERACTIVE: 0, DEFAULT: 2}


def test_each_tier_is_bounded_by_itself():
    queue: TieredQueue[str] = TieredQueue(queue_capacity=1)
    for tier in Tier:
        assert queue.offer("a", tier) == Accepted(tier=tier, fell_back=False)
        assert queue.offer("b", tier) == Full(tier=tier, fell_back=False)
    assert queue.offer("c", "bulk") == Full(tier=DEFAULT, fell_back=True)
    assert [t.item for t in drain(queue)] == ["a", "a", "a"]
    assert queue.offer("d", DEFAULT) == Accepted(tier=DEFAULT, fell_back=False)


def test_an_empty_queue_gives_nothing():
    assert queue_of().take() is None
    assert FairShare[str](capacity=1).take() is None


def test_within_a_tier_a_noisy_key_does_not_starve_the_others():
    queue: TieredQueue[str] = TieredQueue(queue_capacity=1_000)
    for n in range(500):
        queue.offer(f"noisy-{n}", "default", key="noisy")
    queue.offer("quiet-0", "default", key="quiet")
    queue.offer("quiet-1", "default", key="quiet")
    taken = [queue.take() for _ in range(5)]
    assert [t.item for t in taken if t] == ["noisy-0", "quiet-0", "noisy-1", "quiet-1", "noisy-2"]


def test_a_key_that_leaves_and_comes_back_does_not_jump_the_line():
    share: FairShare[int] = FairShare(capacity=10)
    for key in ("a", "b", "c"):
        share.offer(0, key=key)
    assert share.take() == ("a", 0)
    share.offer(1, key="a")
    assert [share.take() for _ in range(3)] == [("b", 0), ("c", 0), ("a", 1)]


def test_keys_are_forgotten_when_they_are_empty():
    share: FairShare[int] = FairShare(capacity=2)
    for n in range(1_000):
        share.offer(n, key=str(n))
        share.take()
    assert (share._lanes, share.size) == ({}, 0)


def test_bounds_that_make_no_sense_are_refused():
    with pytest.raises(ValueError):
        TieredQueue[str](queue_capacity=0)
    with pytest.raises(ValueError):
        TieredQueue[str](queue_capacity=1, max_consecutive_same_tier=0)


@settings(max_examples=100, deadline=None)
@given(steps=st.lists(st.sampled_from("abcd") | st.none(), max_size=80))
def test_whoever_waits_is_served_after_one_of_each_other(steps):
    """None takes; a letter offers under that key."""
    share: FairShare[int] = FairShare(capacity=1_000)
    waiting: dict[str, list[int]] = {}
    passed_over: dict[str, list[str]] = {}  # who was served while this key waited
    for n, key in enumerate(steps):
        if key is not None:
            share.offer(n, key=key)
            waiting.setdefault(key, []).append(n)
            passed_over.setdefault(key, [])
            continue
        taken = share.take()
        assert (taken is None) == (not waiting)
        if taken is None:
            continue
        served, item = taken
        assert item == waiting[served].pop(0)
        del passed_over[served]
        if waiting[served]:
            passed_over[served] = []
        else:
            del waiting[served]
        for others in (others for key, others in passed_over.items() if key != served):
            others.append(served)
            assert len(others) == len(set(others))


class TieredQueueMachine(RuleBasedStateMachine):
    @initialize(capacity=st.integers(1, 6), limit=st.integers(1, 4))
    def start(self, capacity, limit):
        self.capacity, self.limit = capacity, limit
        self.queue: TieredQueue[int] = TieredQueue(queue_capacity=capacity, max_consecutive_same_tier=limit)
        self.waiting: list[tuple[str, str, int]] = []
        self.record: list[str] = []  # tiers taken since the last forced take
        self.offered = 0

    def names(self) -> list[str]:
        return ["high_priority", "interactive", "default"]

    @rule(tier=st.sampled_from(["high_priority", "interactive", "default", "bulk"]), key=st.sampled_from("ab"))
    def offer(self, tier, key):
        answer = self.queue.offer(self.offered, tier, key=key)
        lands_in = "default" if tier == "bulk" else tier
        in_tier = [k for t, k, _ in self.waiting if t == lands_in]
        assert isinstance(answer, Accepted) == (len(in_tier) < self.capacity)
        assert (answer.tier, answer.fell_back) == (lands_in, tier == "bulk")
        if isinstance(answer, Accepted):
            self.waiting.append((lands_in, key, self.offered))
        self.offered += 1

    @rule()
    def take(self):
        taken = self.queue.take()
        if not self.waiting:
            assert taken is None
            return
        assert taken is not None
        by_priority = sorted({t for t, _, _ in self.waiting}, key=self.names().index)
        below = self.tiers_below_a_long_run()
        owed = [tier for tier in by_priority if tier in below]
        assert taken.tier == (owed or by_priority)[0]
        assert taken.starvation_override == (taken.tier != by_priority[0])
        self.record = [] if owed else [*self.record, taken.tier]
        of_key = [w for w in self.waiting if w[:2] == (taken.tier, taken.key)]
        assert of_key[0][2] == taken.item
        self.waiting.remove(of_key[0])

    def tiers_below_a_long_run(self) -> list[str]:
        if not self.record:
            return []
        last = self.record[-1]
        run = list(takewhile(lambda tier: tier == last, reversed(self.record)))
        return self.names()[self.names().index(last) + 1 :] if len(run) >= self.limit else []

    @invariant()
    def nothing_is_lost_or_invented(self):
        depths = {name: sum(t == name for t, _, _ in self.waiting) for name in self.names()}
        assert self.queue.depth_by_tier() == depths
        assert len(self.queue) == len(self.waiting)


TestTieredQueueMachine = TieredQueueMachine.TestCase
TestTieredQueueMachine.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
