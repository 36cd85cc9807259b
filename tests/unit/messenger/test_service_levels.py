"""Rows to rates, and what of a judgement is worth writing."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from butlers.errors import ValidationError
from butlers.messenger import service_levels
from butlers.messenger.error_budget import BURN_MOVED, Standing, Windows, decide_mode
from butlers.operations.operation import LONGEST, TimeRangeArguments
from butlers.reliability.error_budget import BudgetMode, BudgetPolicy, Window

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
POLICY = BudgetPolicy()
BURNING = Windows(short=Window(bad=30), long=Window(bad=30))
CLEAN = Windows(short=Window(good=30), long=Window(good=30))

# --- rates -----------------------------------------------------------------------------------------------------------


def test_a_rate_over_nothing_is_unknown() -> None:
    assert service_levels.rate(0, 0) is None
    assert service_levels.rate(0, 4) == 0.0


@pytest.mark.parametrize(
    ("name", "parts"), [("telegram.bot", ("telegram", "bot")), ("a.chat.user", ("a.chat", "user"))]
)
def test_a_channel_s_name_is_channel_and_scope(name: str, parts: tuple[str, str]) -> None:
    assert service_levels.split_name(name) == parts


endings = st.fixed_dictionaries(
    dict.fromkeys(("delivered", "failed", "dead_lettered", "expired", "uncertain", "excused"), st.integers(0, 50))
)


@given(endings)
def test_success_is_a_share_of_what_ended_and_nothing_excused_moves_it(counts: dict[str, int]) -> None:
    row = {"channel": "telegram", "identity_scope": "bot", **counts}
    (shown,) = service_levels.describe_success([row], ["telegram.bot"])
    (without,) = service_levels.describe_success([row | {"excused": 0}], ["telegram.bot"])
    assert shown["success_rate"] == without["success_rate"]
    bad = sum(counts[ending] for ending in ("failed", "dead_lettered", "expired", "uncertain"))
    if counts["delivered"] + bad == 0:
        assert shown["success_rate"] is None
    else:
        assert shown["success_rate"] * (counts["delivered"] + bad) == pytest.approx(counts["delivered"])


def test_channels_in_use_are_shown_even_when_silent_and_others_when_they_are_not() -> None:
    row = {"channel": "sms", "identity_scope": "bot", "delivered": 1}
    shown = service_levels.describe_success([row], ["telegram.bot"])
    assert [(s["channel"], s["delivered"], s["success_rate"]) for s in shown] == [
        ("sms", 1, 1.0),
        ("telegram", 0, None),
    ]


def test_rejection_rates_are_not_averaged_over_channels() -> None:
    rows = [{"channel": "a", "admitted": 99, "rejected": 1}, {"channel": "b", "admitted": 0, "rejected": 1}]
    assert service_levels.describe_admission(rows, [])["rejection_rate"] == pytest.approx(2 / 101)


# --- judging ---------------------------------------------------------------------------------------------------------


def test_a_change_of_stance_begins_now_and_a_kept_one_began_when_it_did() -> None:
    tight = decide_mode("telegram.bot", BURNING, Standing(), POLICY, NOW)
    assert (tight.changes_mode, tight.is_news, tight.since) == (True, True, NOW)
    standing = Standing(mode=BudgetMode.TIGHT, burn_rate=100.0, since=NOW)
    kept = decide_mode("telegram.bot", BURNING, standing, POLICY, NOW + timedelta(hours=1))
    assert (kept.changes_mode, kept.is_news, kept.since) == (False, False, NOW)


@pytest.mark.parametrize(
    ("before", "news"), [(0.0, False), (BURN_MOVED / 2, False), (BURN_MOVED * 2, True), (None, True)]
)
def test_only_a_burn_that_moved_is_news(before: float | None, news: bool) -> None:
    assert decide_mode("telegram.bot", CLEAN, Standing(burn_rate=before), POLICY, NOW).is_news is news


def test_a_burn_that_became_unknown_is_news_and_one_that_stays_unknown_is_not() -> None:
    assert decide_mode("telegram.bot", Windows(), Standing(burn_rate=0.0), POLICY, NOW).is_news
    assert not decide_mode("telegram.bot", Windows(), Standing(), POLICY, NOW).is_news


# --- the window that is asked for ------------------------------------------------------------------------------------


def test_the_usual_window_is_the_last_day() -> None:
    assert TimeRangeArguments().between(NOW) == (NOW - timedelta(days=1), NOW)
    until = NOW - timedelta(days=7)
    assert TimeRangeArguments(until=until).between(NOW) == (until - timedelta(days=1), until)


@pytest.mark.parametrize(
    ("since", "until"),
    [
        (NOW, NOW),
        (NOW + timedelta(seconds=1), None),
        (NOW - LONGEST - timedelta(seconds=1), None),
        (None, datetime(1, 1, 1, tzinfo=UTC)),
    ],
)
def test_a_window_without_sense_is_refused(since: datetime | None, until: datetime | None) -> None:
    with pytest.raises(ValidationError):
        TimeRangeArguments(since=since, until=until).between(NOW)
