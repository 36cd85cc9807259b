"""Between values and rows: what is written, and what comes back."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from butlers.channels.adapter import AttemptResult, Certainty, NotSent, Sent
from butlers.contracts.delivery_state import OPEN, PARKED, DeliveryState, DeliveryStatus
from butlers.errors import TargetUnavailable, TimeoutExceeded
from butlers.messenger.attempt import Ended, Outcome, Settlement
from butlers.messenger.delivery import Decision, NewDelivery, channel_tool, claimed, restored
from butlers.reliability.error_budget import BudgetMode

from .given import START, at, claimed_delivery, new_delivery, notify, row

PRIORITIES = ["urgent", "high", "normal", "low"]
RECEIPT = UUID(int=400)


def ended(result: AttemptResult, settlement: Settlement, *, lost: bool = False) -> Ended:
    return Ended(
        delivery=claimed_delivery(), result=result, settlement=settlement, latency_ms=12, receipt_id=RECEIPT, lost=lost
    )


# --- a new delivery --------------------------------------------------------------------------------------------------


def test_answers_come_before_everything_and_then_the_priorities_in_order() -> None:
    ranks = [
        new_delivery(intent=intent, priority=name).to_row()["rank"]
        for intent in ("reply", "send")
        for name in PRIORITIES
    ]
    assert ranks == list(range(8))
    assert new_delivery(intent="react").to_row()["rank"] == new_delivery(intent="reply").to_row()["rank"]


@pytest.mark.parametrize("status", DeliveryState)
def test_the_owner_is_told_of_what_is_parked(status: DeliveryStatus) -> None:
    assert new_delivery(status=status).to_row()["tell_owner"] == (status in PARKED)


def test_a_row_holds_the_request_as_it_came_and_the_message_as_it_goes() -> None:
    decision = Decision(at=START, rule="target", verdict="resolved", detail="named")
    new = new_delivery(message="hello", recipient="7").decided(decision)
    stored = new.to_row()
    assert stored["envelope"] == notify(message="hello", recipient="7").to_wire()
    assert stored["decisions"] == [
        {"at": START.isoformat(), "rule": "target", "verdict": "resolved", "detail": "named"}
    ]
    assert (stored["status"], stored["admitted"], stored["replay_of"]) == ("pending", True, None)


words = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=30).filter(str.strip)


@given(words, st.sampled_from(PRIORITIES), st.sampled_from(["send", "reply", "react"]))
def test_what_was_written_down_comes_back(message: str, priority: str, intent: str) -> None:
    new = new_delivery(message=message, priority=priority, intent=intent, address="As@Given.example")
    assert restored(row(new.to_row())) == new


def test_it_comes_back_without_what_belongs_to_its_first_life() -> None:
    first = new_delivery(status="pending_approval", admitted=False, action_id=UUID(int=5), replay_of=UUID(int=6))
    again: NewDelivery = restored(row(first.decided(Decision(at=START, rule="r", verdict="v")).to_row()))
    assert (again.status, again.admitted, again.action_id, again.replay_of, again.decisions) == (
        "pending",
        True,
        None,
        None,
        (),
    )


@pytest.mark.parametrize(
    ("channel", "intent", "tool"),
    [
        ("telegram", "send", "telegram_send_message"),
        ("telegram", "reply", "telegram_reply_to_message"),
        ("telegram", "react", "telegram_react_to_message"),
        ("email", "send", "email_send_message"),
        ("email", "reply", "email_reply_to_thread"),
    ],
)
def test_a_delivery_is_known_to_the_approvals_by_its_tool(channel: str, intent: str, tool: str) -> None:
    assert channel_tool(notify(channel=channel, intent=intent)) == tool


# --- a claimed one ---------------------------------------------------------------------------------------------------

CLAIMED: dict[str, Any] = new_delivery(intent="react").to_row() | {
    "attempt_id": UUID(int=300),
    "attempts": 2,
    "created_at": START,
    "generation": 3,
    "stance": "tight",
    "in_doubt": True,
    "terminal_error_class": "timeout",
    "parts_sent": {"1": "m1", "2": "m2"},
    "settled_at": None,
}


def test_a_claim_brings_all_that_an_attempt_needs() -> None:
    found = claimed(row(CLAIMED), UUID(int=200))
    assert (found.scoped_channel, found.attempt, found.generation) == ("telegram.bot", 2, 3)
    assert (found.mode, found.in_doubt, found.last_error_class) == (BudgetMode.TIGHT, True, "timeout")
    assert found.outgoing.parts_sent == {1: "m1", 2: "m2"}
    assert (found.outgoing.emoji, found.outgoing.source_event) == ("👍", {})


def test_a_first_attempt_has_no_parts_behind_it() -> None:
    assert claimed(row(CLAIMED, parts_sent=None), UUID(int=200)).outgoing.parts_sent == {}


# --- an end ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", DeliveryState)
def test_an_end_is_terminal_unless_it_goes_on(status: DeliveryStatus) -> None:
    stored = ended(Sent(provider_delivery_id="m1"), Settlement(status=status)).to_row()
    assert stored["terminal"] == (status not in OPEN)
    assert stored["tell_owner"] == (status == "uncertain")


def test_a_message_that_was_sent_leaves_a_receipt_of_its_last_part() -> None:
    result = Sent(provider_delivery_id="m3", part=3, moved_to="-1007")
    stored = ended(result, Settlement(status="delivered")).to_row()
    assert (stored["part"], stored["provider_delivery_id"], stored["receipt_id"]) == (3, "m3", RECEIPT)
    assert (stored["outcome"], stored["certainty"], stored["target_identity"]) == ("sent", "sent", "-1007")
    assert stored["error_class"] is None


@pytest.mark.parametrize(
    ("answered", "lost", "outcome"), [(True, False, "rejected"), (False, False, "failed"), (False, True, "lost")]
)
def test_a_failure_says_whether_somebody_answered_and_whether_anybody_lived_to_tell(
    answered: bool, lost: bool, outcome: str
) -> None:
    error = TargetUnavailable("502")
    result = NotSent(error=error, answered=answered, response={"status_code": 502})
    settlement = Settlement(status="awaiting_retry", next_attempt_at=at(5), error=error)
    stored = ended(result, settlement, lost=lost).to_row()
    assert stored["outcome"] == outcome
    assert (stored["attempt_error_class"], stored["attempt_retryable"]) == ("target_unavailable", True)
    assert (stored["next_attempt_at"], stored["terminal"]) == (at(5), False)
    assert "provider_delivery_id" not in stored, "no receipt"


def test_the_delivery_and_its_attempt_may_have_different_errors() -> None:
    result = NotSent(error=TargetUnavailable("reset"), certainty=Certainty.UNCERTAIN)
    settlement = Settlement(status="uncertain", error=TimeoutExceeded("who knows", retryable=False))
    stored = ended(result, settlement).to_row()
    assert (stored["error_class"], stored["retryable"]) == ("timeout", False)
    assert (stored["attempt_error_class"], stored["certainty"]) == ("target_unavailable", "uncertain")


# --- an outcome ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", DeliveryState)
def test_an_error_is_told_when_it_is_final(status: DeliveryStatus) -> None:
    stored = {
        "id": UUID(int=100),
        "channel": "telegram",
        "status": status,
        "provider_delivery_id": None,
        "duplicate_detection": True,
        "action_id": None,
        "terminal_error_class": "timeout",
        "terminal_error_message": "no answer",
        "terminal_retryable": False,
    }
    error = Outcome.of_row(row(stored)).error
    assert (error is None) == (status in OPEN)
    assert error is None or (error.message, error.retryable) == ("no answer", False)


def test_what_the_worker_says_is_what_the_row_would_say() -> None:
    outcome = ended(Sent(provider_delivery_id="m1"), Settlement(status="delivered")).outcome
    assert (outcome.status, outcome.provider_delivery_id, outcome.error) == ("delivered", "m1", None)
