"""The model is the story of one row: who was let in when, and which of them was let in last."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from butlers.errors import LeaseLost
from butlers.reliability.lease import (
    Granted,
    Held,
    Lease,
    LeasePolicy,
    claim,
    is_stale,
    may_write,
    renew,
    renewal_due,
    takeover,
)

from .moments import at

POLICY = LeasePolicy()
ANNA, BEN = UUID(int=1), UUID(int=2)


def annas_lease(seconds: float = 0) -> Lease:
    granted = claim(None, owner="anna", token=ANNA, policy=POLICY, now=at(seconds))
    assert isinstance(granted, Granted)
    return granted.lease


def bens_takeover(current: Lease, seconds: float) -> Lease:
    granted = takeover(current, owner="ben", token=BEN, policy=POLICY, now=at(seconds))
    assert isinstance(granted, Granted)
    assert granted.taken_from == current
    return granted.lease


def test_free_work_is_granted_for_ten_seconds():
    assert annas_lease() == Lease(token=ANNA, owner="anna", claimed_at=at(0), expires_at=at(10))


def test_held_work_is_refused_with_the_time_left():
    lease = annas_lease()
    refusal = claim(lease, owner="ben", token=BEN, policy=POLICY, now=at(4))
    assert refusal == Held(lease=lease, retry_after=6.0)


def test_a_lease_is_stale_from_the_moment_it_expires():
    assert not is_stale(annas_lease(), at(9.999))
    assert is_stale(annas_lease(), at(10))


def test_stale_work_is_taken_over_and_the_old_token_is_worthless():
    lease = bens_takeover(annas_lease(), 10)
    assert (lease.owner, lease.claimed_at, lease.expires_at) == ("ben", at(10), at(20))
    assert may_write(lease, BEN)
    assert not may_write(lease, ANNA)
    with pytest.raises(LeaseLost):
        renew(lease, token=ANNA, policy=POLICY, now=at(11))


def test_claiming_stale_work_is_a_takeover():
    granted = claim(annas_lease(), owner="ben", token=BEN, policy=POLICY, now=at(10))
    assert granted == Granted(lease=bens_takeover(annas_lease(), 10), taken_from=annas_lease())


def test_a_renewal_keeps_the_token_and_the_time_of_the_claim():
    lease = renew(annas_lease(), token=ANNA, policy=POLICY, now=at(3))
    assert lease == Lease(token=ANNA, owner="anna", claimed_at=at(0), expires_at=at(13))


def test_a_late_renewal_is_fine_as_long_as_nobody_came():
    assert renew(annas_lease(), token=ANNA, policy=POLICY, now=at(60)).expires_at == at(70)


def test_released_work_can_be_neither_renewed_nor_written():
    assert not may_write(None, ANNA)
    with pytest.raises(LeaseLost):
        renew(None, token=ANNA, policy=POLICY, now=at(1))


def test_a_renewal_is_due_three_seconds_after_the_last_one():
    assert renewal_due(annas_lease(), POLICY) == at(3)
    assert renewal_due(renew(annas_lease(), token=ANNA, policy=POLICY, now=at(4)), POLICY) == at(7)


def test_the_same_owner_needs_a_fresh_token_too():
    with pytest.raises(ValueError):
        takeover(annas_lease(), owner="anna", token=ANNA, policy=POLICY, now=at(10))


@pytest.mark.parametrize("wrong", [{"ttl": 3.0}, {"renew_every": 0.0}, {"ttl": 1.0, "renew_every": 2.0}])
def test_a_policy_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(ValueError):
        LeasePolicy(**wrong)


class LeaseMachine(RuleBasedStateMachine):
    """Workers claim, renew, pause for as long as they like, and try to write when they wake up."""

    @initialize(ttl=st.integers(2, 10))
    def start(self, ttl):
        self.policy = LeasePolicy(ttl=ttl, renew_every=1)
        self.row: Lease | None = None
        self.now = 0
        self.let_in: list[tuple[str, UUID]] = []
        self.signs_of_life: dict[UUID, list[int]] = {}
        self.written: list[UUID] = []

    @rule(seconds=st.integers(1, 12))
    def time_passes(self, seconds):
        self.now += seconds

    @rule(worker=st.sampled_from(["anna", "ben", "cleo"]))
    def a_worker_claims(self, worker):
        token = UUID(int=len(self.signs_of_life) + 1)
        answer = claim(self.row, owner=worker, token=token, policy=self.policy, now=at(self.now))
        silent = [self.now - max(self.signs_of_life[t]) for _, t in self.let_in[-1:]]
        assert isinstance(answer, Granted) == all(pause >= self.policy.ttl for pause in silent)
        if isinstance(answer, Held):
            assert answer.retry_after == self.policy.ttl - silent[0]
            return
        assert (answer.taken_from is None) == (not self.let_in)
        self.row = answer.lease
        self.let_in.append((worker, token))
        self.signs_of_life[token] = [self.now]

    @precondition(lambda self: self.let_in)
    @rule(data=st.data())
    def a_worker_renews(self, data):
        _, token = data.draw(st.sampled_from(self.let_in))
        if token == self.let_in[-1][1]:
            self.row = renew(self.row, token=token, policy=self.policy, now=at(self.now))
            self.signs_of_life[token].append(self.now)
        else:
            with pytest.raises(LeaseLost):
                renew(self.row, token=token, policy=self.policy, now=at(self.now))

    @precondition(lambda self: self.let_in)
    @rule(data=st.data())
    def a_worker_writes(self, data):
        _, token = data.draw(st.sampled_from(self.let_in))
        if may_write(self.row, token):
            self.written.append(token)

    @invariant()
    def nobody_wrote_after_being_replaced(self):
        order = [token for _, token in self.let_in]
        turns = [order.index(token) for token in self.written]
        assert turns == sorted(turns)

    @invariant()
    def exactly_the_last_one_let_in_may_write(self):
        allowed = [token for _, token in self.let_in if may_write(self.row, token)]
        assert allowed == [token for _, token in self.let_in[-1:]]

    @invariant()
    def the_row_names_its_owner_and_the_claim(self):
        if self.row is not None:
            assert (self.row.owner, self.row.token) == self.let_in[-1]
            assert self.row.claimed_at == at(self.signs_of_life[self.row.token][0])


TestLeaseMachine = LeaseMachine.TestCase
TestLeaseMachine.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
