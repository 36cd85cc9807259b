"""How sure a memory still is, and which comes first."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from butlers.butler.memory.facts import DECAY_RATES
from butlers.butler.memory.recall import RECENCY_FLOOR, Maturity, effective_confidence, maturity_after, recency, score

NOW = datetime(2026, 6, 1, tzinfo=UTC)
SHARES = st.floats(min_value=0, max_value=1)
RATES = st.sampled_from(sorted(DECAY_RATES.values()))
DAYS = st.floats(min_value=0, max_value=10_000)


def test_the_rates_are_those_of_the_design() -> None:
    assert DECAY_RATES == {
        "permanent": 0,
        "stable": 0.002,
        "standard": 0.008,
        "volatile": 0.03,
        "ephemeral": 0.1,
    }


@pytest.mark.parametrize(
    ("rate", "days", "left"),
    [(0.0, 5000, 0.8), (0.1, 10, 0.8 / math.e), (0.008, 125, 0.8 / math.e), (0.03, 0, 0.8), (0.03, -3, 0.8)],
)
def test_confidence_fades_by_its_rate(rate: float, days: float, left: float) -> None:
    assert effective_confidence(0.8, rate, NOW - timedelta(days=days), NOW) == pytest.approx(left)


@given(confidence=SHARES, rate=RATES, days=DAYS, more=DAYS)
def test_confidence_never_grows_by_waiting(confidence: float, rate: float, days: float, more: float) -> None:
    sooner = effective_confidence(confidence, rate, NOW - timedelta(days=days), NOW)
    later = effective_confidence(confidence, rate, NOW - timedelta(days=days + more), NOW)
    assert 0 <= later <= sooner <= confidence


@given(rate=st.sampled_from(sorted(DECAY_RATES.values())[1:]), days=st.floats(min_value=1, max_value=3650))
def test_a_confirmed_fact_is_surer_than_one_left_alone(rate: float, days: float) -> None:
    alone = effective_confidence(0.9, rate, NOW - timedelta(days=days), NOW)
    assert effective_confidence(0.9, rate, NOW, NOW) > alone


@given(matched=st.integers(0, 20), more=st.integers(0, 20), confidence=SHARES, days=DAYS)
def test_a_score_is_a_share_and_grows_with_each_factor(matched: int, more: int, confidence: float, days: float) -> None:
    asked, since = max(1, matched + more), NOW - timedelta(days=days)
    value = score(matched=matched, asked=asked, confidence=confidence, since=since, now=NOW)
    assert 0 <= value <= 1
    assert score(matched=asked, asked=asked, confidence=confidence, since=since, now=NOW) >= value
    assert score(matched=matched, asked=asked, confidence=1.0, since=since, now=NOW) >= value
    assert score(matched=matched, asked=asked, confidence=confidence, since=NOW, now=NOW) >= value


def test_nothing_asked_matches_nothing() -> None:
    assert score(matched=0, asked=0, confidence=1, since=NOW, now=NOW) == 0


def test_an_old_memory_keeps_half_its_weight() -> None:
    assert recency(NOW, NOW) == 1
    assert recency(NOW - timedelta(days=36_500), NOW) == pytest.approx(RECENCY_FLOOR)


@pytest.mark.parametrize(
    ("current", "helpful", "harmful", "reached"),
    [
        ("candidate", 0, 0, "candidate"),
        ("candidate", 2, 0, "candidate"),
        ("candidate", 3, 0, "established"),
        ("established", 9, 0, "established"),
        ("established", 10, 2, "proven"),
        ("established", 10, 3, "established"),  # helps often, and harms too often
        ("proven", 0, 0, "proven"),  # stored as proven: it does not fall for want of uses
        ("proven", 0, 2, "proven"),
        ("proven", 2, 3, "anti_pattern"),
        ("candidate", 3, 3, "candidate"),
        ("anti_pattern", 1, 3, "anti_pattern"),
        ("anti_pattern", 4, 3, "established"),
    ],
)
def test_a_rule_ripens_by_use(current: Maturity, helpful: int, harmful: int, reached: Maturity) -> None:
    assert maturity_after(current, helpful, harmful) == reached
