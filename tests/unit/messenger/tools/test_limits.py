"""Budgets as an operator reads them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from butlers.messenger.tools.health import in_flight_layer, layer
from butlers.reliability.token_bucket import Bucket, refill

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


@given(
    limit=st.floats(1, 1000),
    tokens=st.floats(0, 1),
    ago=st.floats(0, 300),
)
def test_consumed_and_remaining_make_up_the_total_and_it_is_whole_when_it_says(
    limit: float, tokens: float, ago: float
) -> None:
    bucket = Bucket(
        capacity=limit, refill_per_second=limit / 60, tokens=tokens * limit, updated_at=NOW - timedelta(seconds=ago)
    )
    shown = layer(bucket, limit, NOW)
    assert abs(shown["consumed"] + shown["remaining"] - limit) < 0.002
    whole_at = shown["resets_at"] or NOW
    assert limit - refill(bucket, whole_at).tokens < limit * 1e-4
    assert whole_at - NOW <= timedelta(seconds=60.001)


def test_an_unknown_limit_is_not_shown_as_zero() -> None:
    assert in_flight_layer(3, {}) == {"consumed": 3, "total": None, "remaining": None}
    assert in_flight_layer(7, {"in_flight": 5.0})["remaining"] == 0
