"""Liveness as a pure judgement."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from butlers.switchboard.registry import eligibility

SEEN = datetime(2026, 1, 1, tzinfo=UTC)
ORDER = ["active", "stale", "quarantined"]


@pytest.mark.parametrize(
    ("silent", "state"),
    [(-5, "active"), (0, "active"), (300, "active"), (300.001, "stale"), (600, "stale"), (600.001, "quarantined")],
)
def test_past_its_time_stale_past_twice_that_quarantined(silent: float, state: str) -> None:
    assert eligibility(SEEN, 300, SEEN + timedelta(seconds=silent)) == state


@given(st.integers(1, 10_000), st.floats(0, 1e6), st.floats(0, 1e6))
def test_longer_silence_is_never_judged_better(ttl: int, one: float, other: float) -> None:
    shorter, longer = sorted((one, other))
    states = [eligibility(SEEN, ttl, SEEN + timedelta(seconds=silent)) for silent in (shorter, longer)]
    assert ORDER.index(states[0]) <= ORDER.index(states[1])
