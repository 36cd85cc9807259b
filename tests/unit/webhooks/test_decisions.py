"""What an answer means, when the next attempt is, and which events an endpoint wants."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from butlers.daemon.settings import Settings
from butlers.errors import ValidationError
from butlers.webhooks.deliveries import GONE_REASON, Answer, Settlement, retry_policy, settlement
from butlers.webhooks.events import MOST_PATTERNS, check_patterns, known_patterns, wants

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SCHEDULE = Settings(data_dir=Path("unused")).webhook_retries
POLICY = retry_policy(SCHEDULE)


def settled(answer: Answer, *, attempt: int = 1, random: float = 0.5) -> Settlement:
    return settlement(answer, attempt=attempt, policy=POLICY, now=NOW, random=random)


def delay(found: Settlement) -> float:
    assert found.next_attempt_at is not None
    return (found.next_attempt_at - NOW).total_seconds()


@pytest.mark.parametrize("status", [200, 202, 204, 299])
def test_every_2xx_is_taken(status):
    assert settled(Answer(status=status)).state == "delivered"


@pytest.mark.parametrize("status", [301, 308, 400, 401, 404, 429, 500, 503, None])
def test_all_else_is_tried_again(status):
    found = settled(Answer(status=status, error=None if status else "no answer"))
    assert (found.state, found.disables) == ("pending", None)
    assert found.answer.problem


def test_a_redirect_is_named_as_what_it_is():
    assert settled(Answer(status=302)).answer.problem == "the receiver answered HTTP 302; redirects are not followed"


def test_410_ends_it_and_disables_the_endpoint():
    found = settled(Answer(status=410))
    assert (found.state, found.next_attempt_at, found.disables) == ("dead_lettered", None, GONE_REASON)


def test_the_shipped_schedule_is_ten_attempts_over_about_three_days():
    assert len(SCHEDULE) + 1 == 10
    assert timedelta(days=2.9) < timedelta(seconds=sum(SCHEDULE)) < timedelta(days=3.5)
    delays = [delay(settled(Answer(status=500), attempt=number)) for number in range(1, 10)]
    assert delays == pytest.approx(list(SCHEDULE))
    assert settled(Answer(status=500), attempt=10).state == "dead_lettered"


def test_retries_are_spread_by_a_fifth_either_way_also_at_the_longest_pause():
    for number, pause in enumerate(SCHEDULE, 1):
        ends = [delay(settled(Answer(status=500), attempt=number, random=draw)) for draw in (0.0, 1 - 1e-9)]
        assert ends == pytest.approx([pause * 0.8, pause * 1.2], rel=1e-6)


@pytest.mark.parametrize(("status", "expected"), [(429, 600.0), (503, 600.0), (500, 5.0)])
def test_the_receivers_wish_to_wait_counts_where_the_status_gives_it_a_meaning(status, expected):
    assert delay(settled(Answer(status=status, retry_after=600.0))) == pytest.approx(expected)


def test_a_wish_for_less_than_the_schedule_shortens_nothing():
    assert delay(settled(Answer(status=429, retry_after=0.0))) == pytest.approx(5.0)


@pytest.mark.parametrize(
    ("patterns", "event", "expected"),
    [
        (["*"], "delivery.delivered", True),
        (["delivery.*"], "delivery.delivered", True),
        (["delivery.delivered"], "delivery.delivered", True),
        (["delivery.delivered"], "delivery.failed", False),
        (["request.*"], "delivery.delivered", False),
        (["delivery.*"], "delivery_report.delivered", False),
    ],
)
def test_patterns_choose_events(patterns, event, expected):
    assert wants(patterns, event) is expected


def test_every_known_pattern_is_accepted_and_a_repeated_one_counts_once():
    assert check_patterns(known_patterns()) == known_patterns()
    assert check_patterns(["request.*", "request.*"]) == ["request.*"]


@pytest.mark.parametrize(
    "given",
    [
        [],
        ["delivery"],
        ["delivery.sent"],
        ["Delivery.*"],
        ["webhook.ping"],
        ["**"],
        ["a.*"],
        ["message.*"],
        ["message.read"],
    ],
)
def test_what_no_event_can_match_is_refused(given):
    with pytest.raises(ValidationError) as refused:
        check_patterns(given)
    assert refused.value.fields[0].field == "event_types"


def test_so_many_patterns_and_no_more():
    with pytest.raises(ValidationError, match=str(MOST_PATTERNS)):
        check_patterns(["*"] * (MOST_PATTERNS + 1))
