"""A waiting room in which nobody is shut out and nothing overflows, whatever order they come and go in."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from butlers.switchboard.ingress.buffer import AdmissionPolicy, Outcome, Shares, decide

CHANNELS = ("telegram", "email", "api", "mcp")
moves = st.lists(st.tuples(st.sampled_from(CHANNELS), st.booleans()), max_size=300)
rooms = st.integers(min_value=8, max_value=60)


def own_places(shares: Shares) -> int:
    """Places that are one channel's own."""
    return shares.places // (2 * shares.channels)


def filled(shares: Shares, steps: list[tuple[str, bool]]) -> Counter[str]:
    """The room after these came (True) and went (False)."""
    waiting: Counter[str] = Counter()
    for channel, comes in steps:
        if comes and shares.place(channel, waiting):
            waiting[channel] += 1
        elif not comes and waiting[channel]:
            waiting[channel] -= 1
    return waiting


@given(places=rooms, steps=moves)
def test_there_are_never_more_than_places(places: int, steps: list[tuple[str, bool]]) -> None:
    shares = Shares(places=places, channels=len(CHANNELS))
    assert filled(shares, steps).total() <= places


@given(places=rooms, steps=moves, channel=st.sampled_from(CHANNELS))
def test_a_channel_below_its_share_always_has_a_place(places: int, steps: list[tuple[str, bool]], channel: str) -> None:
    shares = Shares(places=places, channels=len(CHANNELS))
    waiting = filled(shares, steps)
    waiting[channel] = min(waiting[channel], own_places(shares) - 1)
    assert shares.place(channel, waiting) == "own"


@given(places=rooms, flood=st.sampled_from(CHANNELS), guest=st.sampled_from(CHANNELS))
def test_a_flood_takes_its_share_and_the_pool_and_not_a_place_more(places: int, flood: str, guest: str) -> None:
    shares = Shares(places=places, channels=len(CHANNELS))
    waiting = filled(shares, [(flood, True)] * (places * 2))
    assert waiting[flood] == places - own_places(shares) * (len(CHANNELS) - 1)
    assert shares.place(guest, waiting) == (None if guest == flood else "own")


def policy(**overflow: str) -> AdmissionPolicy:
    return AdmissionPolicy(
        waiting=Shares(places=16, channels=4),
        stored=Shares(places=80, channels=4),
        overflow={"default": "defer", **overflow},  # type: ignore[dict-item]
        retry_after_s=1.0,
    )


@pytest.mark.parametrize(
    ("how", "outcome"), [("defer", Outcome.DEFERRED), ("shed", Outcome.SHED), ("reject", Outcome.REJECTED)]
)
def test_overflow_is_what_the_tier_says(how: str, outcome: Outcome) -> None:
    full = {"api": 10}
    asked: dict[str, Any] = {"channel": "api", "waiting": full, "queues_full": False}
    assert decide(policy(interactive=how), tier="interactive", **asked) is outcome
    assert decide(policy(interactive=how), tier="default", **asked) is Outcome.DEFERRED
    assert decide(policy(default=how), tier="a tier that nobody knows", **asked) is outcome


def test_full_queues_are_an_overflow_for_whoever_is_beyond_its_share() -> None:
    asked: dict[str, Any] = {"tier": "interactive", "waiting": {"api": 2, "email": 1}, "queues_full": True}
    assert decide(policy(interactive="reject"), channel="api", **asked) is Outcome.REJECTED
    assert decide(policy(interactive="reject"), channel="email", **asked) is Outcome.ACCEPTED


def test_deferring_ends_where_nothing_more_may_be_stored() -> None:
    asked: dict[str, Any] = {"tier": "default", "waiting": {"api": 50}, "queues_full": False}
    assert decide(policy(), channel="api", **asked) is Outcome.REJECTED
    assert decide(policy(), channel="mcp", **asked) is Outcome.ACCEPTED


@given(
    waiting=st.dictionaries(st.sampled_from(CHANNELS), st.integers(0, 90)),
    channel=st.sampled_from(CHANNELS),
    tier=st.sampled_from(["default", "interactive", "high_priority"]),
    queues_full=st.booleans(),
)
def test_within_its_share_a_channel_is_accepted_whatever_happens_elsewhere(
    waiting: dict[str, int], channel: str, tier: str, queues_full: bool
) -> None:
    waiting[channel] = min(waiting.get(channel, 0), 1)
    rejecting = policy(interactive="reject", high_priority="shed")
    outcome = decide(rejecting, channel=channel, tier=tier, waiting=waiting, queues_full=queues_full)
    assert outcome is Outcome.ACCEPTED
