"""Dead letters over real rows: listed, inspected, discarded, made by hand."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from butlers.errors import ValidationError
from tests.integration.messenger_tools.stored_state import HEALTH, OPERATOR, START, SWITCHBOARD, StoredState


async def listed(state: StoredState, **filters: Any) -> list[str]:
    return [row["id"] for row in (await state.call("dead_letter_list", **filters))["dead_letters"]]


async def eligibility(state: StoredState, letter: Any) -> dict[str, Any]:
    inspected = await state.call("dead_letter_inspect", dead_letter_id=letter)
    assert inspected["replay_eligible"] == inspected["replay_eligibility"]["eligible"]
    [row] = [
        r
        for r in (await state.call("dead_letter_list", include_discarded=True))["dead_letters"]
        if r["id"] == str(letter)
    ]
    assert row["replay_eligible"] == inspected["replay_eligible"]
    assessed: dict[str, Any] = inspected["replay_eligibility"]
    return assessed


# --- list ------------------------------------------------------------------------------------------------------------


async def test_the_list_is_newest_first_a_page_at_a_time_also_within_one_instant(state: StoredState):
    old = await state.dead_letter()
    ties = {str(await state.dead_letter(created_at=START + timedelta(hours=1), id=uuid4())) for _ in range(5)}
    seen, cursor = [], None
    while True:
        page = await state.call("dead_letter_list", limit=2, **({"cursor": cursor} if cursor else {}))
        seen += [row["id"] for row in page["dead_letters"]]
        if (cursor := page["next_cursor"]) is None:
            break
    assert (set(seen[:5]), seen[5:]) == (ties, [str(old)])
    first = (await state.call("dead_letter_list", limit=1))["dead_letters"][0]
    assert (first["quarantine_reason"], first["error_class"]) == ("retries_exhausted", "target_unavailable")
    assert (first["total_attempts"], first["replay_eligible"], first["error_summary"]) == (3, True, "Bad Gateway")


async def test_every_filter_filters(state: StoredState):
    await state.dead_letter()
    other = await state.dead_letter(
        channel="email", origin_butler="finance", error_class="timeout", created_at=START + timedelta(days=1)
    )
    for filters in (
        {"channel": "email"},
        {"origin_butler": "finance"},
        {"error_class": "timeout"},
        {"since": "2026-03-02T00:00:00Z"},
    ):
        assert await listed(state, **filters) == [str(other)], filters
    assert await listed(state, channel="email", error_class="target_unavailable") == []
    with pytest.raises(ValidationError, match="error_class must be one of"):
        await listed(state, error_class="bad luck")


# --- inspect ---------------------------------------------------------------------------------------------------------


async def test_an_inspection_shows_the_record_the_attempts_and_the_eligibility(state: StoredState):
    letter = await state.dead_letter()
    shown = await state.call("dead_letter_inspect", dead_letter_id=letter)
    assert (shown["dead_letter_id"], shown["quarantine_reason"]) == (str(letter), "retries_exhausted")
    assert shown["original_envelope"]["delivery"] == {"message": "hello"}
    assert [attempt["attempt_number"] for attempt in shown["all_attempt_outcomes"]] == [1, 2, 3]
    assert [attempt["error_message"] for attempt in shown["attempts"]] == ["Bad Gateway"] * 3
    assert shown["replay_eligibility"] == {"eligible": True, "reasons": [], "replay_count": 0}
    with pytest.raises(ValidationError, match="no such dead letter"):
        await state.call("dead_letter_inspect", dead_letter_id=uuid4())


async def test_an_attempt_that_may_have_arrived_forbids_a_replay_until_it_is_settled(state: StoredState):
    delivery = await state.delivery(status="dead_lettered")
    await state.attempt(delivery, outcome="failed", certainty="uncertain", error_class="timeout")
    letter = await state.dead_letter(delivery)
    assert await eligibility(state, letter) == {
        "eligible": False,
        "reasons": ["uncertain_not_settled"],
        "replay_count": 0,
    }
    await state.database.execute("update messenger.delivery_requests set settled_at = now(), settled_by = 'ann'")
    assert (await eligibility(state, letter))["eligible"]


@pytest.mark.parametrize(
    ("status", "reason"),
    [("pending", "replay_in_progress"), ("awaiting_retry", "replay_in_progress"), ("delivered", "already_delivered")],
)
async def test_what_became_of_an_earlier_replay_counts(state: StoredState, status: str, reason: str):
    letter = await state.dead_letter(replay_count=1)
    original = (await state.row("delivery_dead_letter", letter))["delivery_id"]
    failed = await state.delivery(replay_of=original, status="dead_lettered")
    twin = await state.dead_letter(failed)
    assert (await eligibility(state, letter))["eligible"]
    await state.delivery(replay_of=original, status=status)
    # Also for the replay that failed itself: it would say the same thing to the same person.
    for candidate in (letter, twin):
        assert (await eligibility(state, candidate))["reasons"] == [reason]
    shown = await state.call("dead_letter_inspect", dead_letter_id=letter)
    assert [replay["status"] for replay in shown["replays"]] == ["dead_lettered", status]


async def test_every_other_obstacle_is_named(state: StoredState):
    late = await state.delivery(status="dead_lettered", not_after=START - timedelta(seconds=1))
    assert (await eligibility(state, await state.dead_letter(late)))["reasons"] == ["expired"]
    assert (await eligibility(state, await state.dead_letter(replay_count=3)))["reasons"] == ["replay_limit_reached"]
    wrong = await state.dead_letter(error_class="validation_error")
    assert (await eligibility(state, wrong))["reasons"] == ["validation_error"]
    marked = await state.dead_letter(replay_eligible=False)
    assert (await eligibility(state, marked))["reasons"] == ["marked_ineligible"]


# --- discard ---------------------------------------------------------------------------------------------------------


async def test_a_discarded_dead_letter_leaves_the_list_and_cannot_be_replayed(state: StoredState):
    letter, kept = await state.dead_letter(), await state.dead_letter()
    answer = await state.call("dead_letter_discard", dead_letter_id=letter, reason="not needed any more")
    assert (answer["status"], answer["discarded_by"]) == ("discarded", "ann")
    row = await state.row("delivery_dead_letter", letter)
    assert (row["discard_reason"], row["discarded_by"]) == ("not needed any more", "ann")
    assert (row["discarded_at"], row["replay_eligible"]) == (START, False)
    assert await listed(state) == [str(kept)]
    assert set(await listed(state, include_discarded=True)) == {str(kept), str(letter)}
    assert (await eligibility(state, letter))["reasons"] == ["discarded"]
    delivery = await state.row("delivery_requests", row["delivery_id"])
    assert [(line["rule"], line["verdict"]) for line in delivery["decisions"]] == [("discard", "discarded")]


async def test_a_dead_letter_is_discarded_once(state: StoredState):
    letter = await state.dead_letter()
    await state.call("dead_letter_discard", dead_letter_id=letter, reason="first")
    with pytest.raises(ValidationError, match="is discarded already"):
        await state.call("dead_letter_discard", dead_letter_id=letter, reason="second")
    assert (await state.row("delivery_dead_letter", letter))["discard_reason"] == "first"
    with pytest.raises(ValidationError, match="no such dead letter"):
        await state.call("dead_letter_discard", dead_letter_id=uuid4(), reason="x")
    with pytest.raises(ValidationError, match="reason must not be empty"):
        await state.call("dead_letter_discard", dead_letter_id=letter, reason="  ")


async def test_only_switchboard_may_say_for_whom_it_decides(state: StoredState):
    by_switchboard, by_ann = await state.dead_letter(), await state.dead_letter()
    said = {"reason": "x", "decided_by": "bob"}
    answer = await state.call("dead_letter_discard", SWITCHBOARD, dead_letter_id=by_switchboard, **said)
    assert answer["discarded_by"] == "bob"
    answer = await state.call("dead_letter_discard", OPERATOR, dead_letter_id=by_ann, **said)
    assert answer["discarded_by"] == "ann"


@pytest.mark.parametrize("tool", ["dead_letter_discard", "dead_letter_quarantine"])
async def test_a_butler_may_not_decide(state: StoredState, tool: str):
    named = {"dead_letter_discard": "dead_letter_id", "dead_letter_quarantine": "delivery_id"}[tool]
    letter = await state.dead_letter()
    with pytest.raises(ValidationError, match=r"'health' .* may not call"):
        await state.call(tool, HEALTH, **{named: letter}, reason="x")
    assert (await state.row("delivery_dead_letter", letter))["discarded_at"] is None


# --- quarantine ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["pending", "awaiting_retry", "failed", "uncertain"])
async def test_a_delivery_is_set_aside_by_hand_with_all_that_was_tried(state: StoredState, status: str):
    request = state.new_id()
    delivery = await state.delivery(status=status, request_id=request, tell_owner=True)
    await state.failed_attempt(delivery)
    answer = await state.call("dead_letter_quarantine", delivery_id=delivery, reason="wrong person")
    assert (answer["status"], answer["was"]) == ("dead_lettered", status)
    row = await state.row("delivery_requests", delivery)
    assert (row["status"], row["terminal_at"], row["tell_owner"]) == ("dead_lettered", START, False)
    assert [line["rule"] for line in row["decisions"]] == ["quarantine"]
    letter = await state.call("dead_letter_inspect", dead_letter_id=answer["dead_letter_id"])
    assert (letter["quarantine_reason"], letter["request_id"]) == ("manually_quarantined", str(request))
    assert (letter["error_summary"], letter["total_attempts"]) == ("quarantined by ann: wrong person", 1)
    assert letter["original_envelope"] == row["envelope"]
    [tried] = letter["all_attempt_outcomes"]
    assert (tried["attempt_number"], tried["error_class"]) == (1, "target_unavailable")
    assert state.woken == 1


@pytest.mark.parametrize("status", ["in_progress", "delivered", "expired", "dead_lettered", "pending_approval"])
async def test_what_is_with_the_provider_or_over_cannot_be_set_aside(state: StoredState, status: str):
    delivery = await state.delivery(status=status)
    with pytest.raises(ValidationError, match="provider call" if status == "in_progress" else f"is {status}"):
        await state.call("dead_letter_quarantine", delivery_id=delivery, reason="x")
    assert (await state.row("delivery_requests", delivery))["status"] == status
    assert (await listed(state), state.woken) == ([], 0)
    with pytest.raises(ValidationError, match="no such delivery"):
        await state.call("dead_letter_quarantine", delivery_id=uuid4(), reason="x")


async def test_what_ended_keeps_its_end_and_its_error(state: StoredState):
    ended = START - timedelta(hours=1)
    delivery = await state.delivery(
        status="failed", terminal_at=ended, terminal_error_class="timeout", terminal_error_message="too slow"
    )
    await state.call("dead_letter_quarantine", delivery_id=delivery, reason="try later")
    row = await state.row("delivery_requests", delivery)
    assert (row["terminal_at"], row["terminal_error_class"]) == (ended, "timeout")
    [letter] = (await state.call("dead_letter_list"))["dead_letters"]
    assert (letter["error_class"], letter["replay_eligible"]) == ("timeout", True)


async def test_a_delivery_that_was_set_aside_before_has_one_dead_letter(state: StoredState):
    delivery = await state.delivery(status="pending")
    first = await state.call("dead_letter_quarantine", delivery_id=delivery, reason="one")
    await state.call("dead_letter_discard", dead_letter_id=first["dead_letter_id"], reason="enough")
    await state.database.execute("update messenger.delivery_requests set status = 'pending'")
    second = await state.call("dead_letter_quarantine", delivery_id=delivery, reason="two")
    assert second["dead_letter_id"] == first["dead_letter_id"]
    [letter] = (await state.call("dead_letter_list"))["dead_letters"]
    assert (letter["error_summary"], letter["discarded_at"]) == ("quarantined by ann: two", None)
