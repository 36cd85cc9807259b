"""Rows in, words out."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, get_args

import pytest

from butlers.contracts.delivery_state import DeliveryStatus
from butlers.messenger.tools.why import Story, history, standing

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def delivery(**columns: Any) -> dict[str, Any]:
    return {
        "id": "D",
        "idempotency_key": "delivery-1",
        "request_id": None,
        "origin_butler": "health",
        "channel": "telegram",
        "identity_scope": "bot",
        "intent": "send",
        "target_identity": "7",
        "contact_id": None,
        "status": "pending",
        "admitted": True,
        "next_attempt_at": NOW,
        "not_after": None,
        "duplicate_detection": True,
        "replay_of": None,
        "action_id": None,
        "settled_by": None,
        "terminal_error_class": None,
        "terminal_error_message": None,
        "created_at": NOW,
        "terminal_at": None,
        "decisions": [],
    } | columns


def attempt(**columns: Any) -> dict[str, Any]:
    return {
        "attempt_number": 1,
        "started_at": NOW,
        "completed_at": NOW + timedelta(seconds=1),
        "latency_ms": 1000,
        "outcome": "sent",
        "certainty": "sent",
        "error_class": None,
        "error_message": None,
        "retryable": None,
        "provider_response": None,
    } | columns


def told(*attempts: dict[str, Any], **columns: Any) -> list[str]:
    return list(history(Story(delivery=delivery(**columns), attempts=attempts, receipts=[])))


@pytest.mark.parametrize("status", get_args(DeliveryStatus))
def test_every_status_of_the_contract_has_an_ending(status: str) -> None:
    story = Story(delivery=delivery(status=status), attempts=[], receipts=[])
    assert all(line.strip() for line in standing(story, NOW))
    assert list(standing(story, NOW))


def test_the_key_is_told_by_the_decision_or_else_by_the_row() -> None:
    assert "Its key is delivery-1." in told()
    decided = [{"at": NOW.isoformat(), "rule": "idempotency", "verdict": "new", "detail": ""}]
    assert "Its key is delivery-1." not in told(decisions=decided)


def test_a_message_without_a_key_says_what_that_means() -> None:
    lines = told(duplicate_detection=False)
    assert any("a repeat of it would be sent again" in line for line in lines)
    assert not any("Its key is" in line for line in lines)


def test_what_would_be_refused_again_is_not_offered_for_a_replay() -> None:
    for error_class, offered in (("target_unavailable", True), ("validation_error", False)):
        story = Story(delivery=delivery(status="failed", terminal_error_class=error_class), attempts=[], receipts=[])
        assert any("quarantine" in line for line in standing(story, NOW)) is offered


def test_a_suppressed_recipient_is_named_with_the_way_back() -> None:
    rule = {"channel": "telegram", "target": "7", "rule": "suppressed", "decided_by": "provider", "reason": "blocked"}
    for status, told_about in (("failed", True), ("delivered", False)):
        row = delivery(status=status, terminal_at=NOW)
        story = Story(delivery=row, attempts=[], receipts=[], recipient=rule | {"since": NOW})
        lines = list(standing(story, NOW))
        assert (lines[-1] == "To write there again: butlers deliveries unsuppress telegram 7") is told_about


def test_a_rule_nobody_has_words_for_is_shown_by_its_name() -> None:
    decided = [{"at": "2026-03-01T12:00:00Z", "rule": "weather", "verdict": "too_wet", "detail": "rain"}]
    assert told(decisions=decided)[-1] == "The rule weather: too wet (rain)."


def test_certainty_is_spelled_out() -> None:
    failed = {"outcome": "failed", "error_class": "timeout", "error_message": "no answer"}
    [*_, line] = told(attempt(**failed, certainty="not_sent", retryable=False))
    assert "It was certainly not sent. Another attempt would not help." in line
    [*_, line] = told(attempt(**failed, certainty="uncertain"))
    assert "may or may not have arrived" in line
    [*_, line] = told(attempt(completed_at=None, outcome=None, certainty=None))
    assert line.endswith("has no outcome yet.")


def test_long_evidence_is_cut() -> None:
    [*_, line] = told(attempt(provider_response={"body": "x" * 5000}))
    assert len(line) < 500


def test_an_answer_reads_as_one() -> None:
    assert "to answer 7 by telegram as bot for request R." in told(intent="reply", request_id="R")[0]
    assert "to react to a message of 7 by telegram" in told(intent="react", request_id="R")[0]
