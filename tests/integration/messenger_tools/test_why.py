"""The story of a delivery, from its rows."""

from __future__ import annotations

from datetime import timedelta

from tests.integration.messenger_tools.stored_state import START, StoredState


def decision(rule: str, verdict: str, detail: str = "", *, after_s: float = 0) -> dict[str, str]:
    at = (START + timedelta(seconds=after_s)).isoformat()
    return {"at": at, "rule": rule, "verdict": verdict, "detail": detail}


async def test_the_story_is_told_in_the_order_in_which_it_happened(state: StoredState):
    decisions = [
        decision("target", "resolved", "the explicit recipient"),
        decision("idempotency", "new", "key delivery-1"),
        decision("settle", "awaiting_retry", "attempt 1 of 3 failed", after_s=1),
        decision("settle", "delivered", after_s=5),
    ]
    delivery = await state.delivery(attempts=2, terminal_at=START + timedelta(seconds=5), decisions=decisions)
    await state.failed_attempt(delivery, 1, started_at=START + timedelta(milliseconds=500))
    await state.attempt(delivery, 2, started_at=START + timedelta(seconds=4))
    await state.receipt(delivery, received_at=START + timedelta(seconds=5))
    why = await state.call("delivery_why", delivery_id=delivery)
    assert (why["delivery_id"], why["status"], why["decisions"]) == (str(delivery), "delivered", decisions)
    assert why["lines"] == [
        "health asked at 2026-03-01 12:00:00 UTC to send a message by telegram as bot to 7, unasked by any request.",
        "Where it goes: resolved (the explicit recipient).",
        "Whether it is a repeat: new (key delivery-1).",
        "Attempt 1 at 2026-03-01 12:00:00 UTC was refused by the provider after 40 ms with target_unavailable: "
        "Bad Gateway. It was certainly not sent. Another attempt may help. Evidence: status code 502.",
        "What became of it: awaiting retry (attempt 1 of 3 failed).",
        "Attempt 2 at 2026-03-01 12:00:04 UTC went through after 40 ms.",
        "What became of it: delivered.",
        "The provider reported it as sent at 2026-03-01 12:00:05 UTC and calls it 42.",
        "It was delivered at 2026-03-01 12:00:05 UTC. Nothing has to be done.",
    ]


async def test_an_uncertain_delivery_names_the_two_commands(state: StoredState):
    delivery = await state.delivery(status="uncertain")
    await state.attempt(delivery, outcome="failed", certainty="uncertain", error_class="timeout", error_message="late.")
    lines = (await state.call("delivery_why", delivery_id=delivery))["lines"]
    assert any("it may or may not have arrived" in line for line in lines)
    assert lines[-2:] == [
        f"it arrived: butlers deliveries settle {delivery} confirmed_sent",
        f"it did not: butlers deliveries settle {delivery} send_again",
    ]


async def test_a_dead_letter_says_whether_and_how_it_is_sent_again(state: StoredState):
    letter = await state.dead_letter()
    delivery = (await state.row("delivery_dead_letter", letter))["delivery_id"]
    why = await state.call("delivery_why", delivery_id=delivery)
    assert why["replay_eligibility"] == {"eligible": True, "reasons": [], "replay_count": 0}
    assert why["lines"][-2:] == [
        f"To send it again: butlers dead-letters replay {letter}",
        f"To give it up: butlers dead-letters discard {letter} --reason REASON",
    ]
    replay = await state.delivery(replay_of=delivery)
    lines = (await state.call("delivery_why", delivery_id=delivery))["lines"]
    assert "It cannot be sent again: already delivered." in lines
    assert lines[-1].endswith(f"which is delivered: butlers why {replay}")
    lines = (await state.call("delivery_why", delivery_id=replay))["lines"]
    assert lines[1] == f"It is a replay of delivery {delivery}."
    await state.call("dead_letter_discard", dead_letter_id=letter, reason="enough")
    lines = (await state.call("delivery_why", delivery_id=delivery))["lines"]
    assert any("was given up" in line and "by ann: enough" in line for line in lines)
    assert not any("dead-letters" in line for line in lines)


async def test_what_stands_before_a_delivery_that_waits_is_named(state: StoredState):
    first = await state.delivery(status="awaiting_retry")
    waiting = await state.delivery(status="pending", attempts=0)
    row = {"name": "telegram.bot", "state": "open", "trip_reason": "Bad Gateway", "updated_at": START}
    await state.insert("channel_states", row)
    window = {"scope": "telegram.bot:7", "channel": "telegram.bot", "until": START + timedelta(seconds=9)}
    await state.insert("throttles", window | {"reason": "Too Many Requests", "created_at": START})
    lines = (await state.call("delivery_why", delivery_id=waiting))["lines"]
    assert f"Before it in the same conversation stands delivery {first}." in lines
    assert any("circuit is open: Bad Gateway" in line for line in lines)
    assert "The provider asked to wait until 2026-03-01 12:00:09 UTC: Too Many Requests." in lines
    assert any(f"butlers deliveries quarantine {waiting}" in line for line in lines)


async def test_every_status_has_an_end(state: StoredState):
    for status in ("in_progress", "failed", "expired", "pending_approval", "pending_missing_identifier"):
        action = state.new_id()
        delivery = await state.delivery(status=status, target_identity=None, action_id=action, contact_id=action)
        lines = (await state.call("delivery_why", delivery_id=delivery))["lines"]
        assert "somebody whose address is not known yet" in lines[0]
        said = {
            "in_progress": "with the provider right now",
            "failed": "It failed for good",
            "expired": "nothing stale is sent",
            "pending_approval": f"butlers approvals show {action}",
            "pending_missing_identifier": f"Contact {action} has no telegram address",
        }[status]
        assert any(said in line for line in lines), status
