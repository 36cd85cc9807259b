"""When a cron expression comes round; the scheduler itself is tried on a database."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from butlers.butler.config import next_run

CRONS = ["5 * * * *", "15 0 * * *", "30 1 * * *", "0 */6 * * *", "0 4 * * *", "*/5 * * * *"]


@pytest.mark.parametrize(
    ("cron", "expected"),
    [
        ("5 * * * *", "2026-03-01T00:05:00+00:00"),
        ("15 0 * * *", "2026-03-01T00:15:00+00:00"),
        ("30 1 * * *", "2026-03-01T01:30:00+00:00"),
        ("0 */6 * * *", "2026-03-01T06:00:00+00:00"),
        ("0 4 * * *", "2026-03-01T04:00:00+00:00"),
        ("*/5 * * * *", "2026-03-01T00:05:00+00:00"),
        ("0 0 29 2 *", "2028-02-29T00:00:00+00:00"),
    ],
)
def test_the_next_moment(cron: str, expected: str) -> None:
    assert next_run(cron, datetime(2026, 3, 1, tzinfo=UTC)).isoformat() == expected


@given(
    st.sampled_from(CRONS),
    st.integers(0, 4 * 10**9).map(lambda seconds: datetime(1990, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)),
)
def test_it_lies_strictly_ahead_on_a_full_minute_in_utc(cron: str, now: datetime) -> None:
    following = next_run(cron, now)
    assert following > now
    assert following.utcoffset() == timedelta(0)
    assert (following.second, following.microsecond) == (0, 0)
    assert following - now <= timedelta(days=1)
