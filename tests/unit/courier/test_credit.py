"""Credit of subscribers whose messages are claimed elsewhere: reserved, used or given back, and never more of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from butlers.courier.credit import Held, Meter, RemoteGroup, RemoteSubscriber
from butlers.courier.errors import LeaseConflict


def subscriber(name: str, credit: int = 0) -> RemoteSubscriber:
    return RemoteSubscriber(name, "s", "default", deliver=lambda _delivery: None, credit=credit)


def test_credit_is_reserved_in_turn_and_the_next_turn_follows_the_last_delivery():
    group = RemoteGroup("1", "s", "default")
    one, two, three = (subscriber(name, credit) for name, credit in (("one", 5), ("two", 1), ("three", 2)))
    for each in (one, two, three):
        group.notice_credit(each)
    reserved = group.reserve(10)
    assert [each.id for each in reserved] == ["one", "two", "three", "one", "three", "one", "one", "one"]
    group.give_back(reserved[1:])  # one message came
    assert [each.id for each in group.takers] == ["two", "three", "one"]
    assert (one.credit, two.credit, three.credit) == (4, 1, 2)


@given(
    credits=st.lists(st.integers(0, 6), min_size=1, max_size=5),
    claims=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), max_size=12),
)
def test_what_is_reserved_is_used_or_given_back(credits: list[int], claims: list[tuple[int, int]]):
    group = RemoteGroup("1", "s", "default")
    members = [subscriber(f"s{number}", credit) for number, credit in enumerate(credits)]
    for member in members:
        group.notice_credit(member)
    got = dict.fromkeys(members, 0)
    for most, brought in claims:
        reserved = group.reserve(most)
        assert len(reserved) <= most
        for number, member in enumerate(reserved[:brought]):
            member.hold(Held("s", "1", f"m{number}", f"{number}", 0.0))
            got[member] += 1
        group.give_back(reserved[brought:])
        for member, credit in zip(members, credits, strict=True):
            assert member.reserved == 0
            assert member.credit + got[member] == credit
            assert (member in group.takers) or member.credit == 0


def test_a_subscriber_that_is_gone_gets_nothing_back():
    group = RemoteGroup("1", "s", "default")
    gone = subscriber("gone", 3)
    group.notice_credit(gone)
    reserved = group.reserve(2)
    gone.is_gone, gone.credit = True, 0
    group.leave(gone)
    group.give_back(reserved)
    assert (gone.credit, list(group.takers)) == (0, [])


def test_the_newest_lease_of_a_message_is_the_one_that_counts():
    jen = subscriber("jen")
    jen.groups["s"] = RemoteGroup("1", "s", "default")
    old, new = Held("s", "1", "a", "lease-1", 0.0), Held("s", "1", "a", "lease-2", 0.0)
    jen.hold(old)
    jen.hold(new)
    assert jen.find("a", lease=None, stream=None) == new
    for refused in ({"lease": "lease-1", "stream": None}, {"lease": None, "stream": "other"}):
        with pytest.raises(LeaseConflict):
            jen.find("a", **refused)
    jen.release(old)
    assert jen.find("a", lease="lease-2", stream=None) == new
    jen.release(new)
    with pytest.raises(LeaseConflict):
        jen.find("a", lease=None, stream=None)


def test_rates_are_those_of_the_last_seconds():
    meter = Meter()
    for second in range(20):
        meter.count(float(second), accepted=4, delivered=2)
    assert meter.rates(19.5) == pytest.approx((4.0, 2.0), rel=0.2)
    assert meter.rates(60.0) == (0.0, 0.0)
