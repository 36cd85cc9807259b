"""Every SLI against numbers worked out by hand, or by another way of counting."""

from __future__ import annotations

import random
from collections import defaultdict
from datetime import timedelta
from typing import Any

import pytest

from butlers.butler.identity import Caller
from butlers.butler.toolbox import ToolBox
from butlers.errors import ValidationError
from butlers.operations.operation import Role

from .ledger import HOUR_AGO, NOW, Ledger, ago


def of(rows: list[dict[str, Any]], **wanted: str) -> dict[str, Any]:
    (row,) = [row for row in rows if all(row[key] == value for key, value in wanted.items())]
    return row


# --- nothing known ---------------------------------------------------------------------------------------------------


async def test_what_nobody_can_know_is_null_and_never_zero_or_perfect(ledger: Ledger) -> None:
    slis = await ledger.slis()
    assert [(row["channel"], row["success_rate"]) for row in slis["success"]] == [("email", None), ("telegram", None)]
    assert slis["latency"] == []
    assert slis["duplicates"]["duplicate_rate"] is None
    assert slis["admission"]["rejection_rate"] is None
    assert slis["dead_letters"]["replay_success_rate"] is None
    assert slis["uncertain"]["settle_rate"] is None
    assert [(row["stance"], row["burn_rate"]) for row in slis["error_budget"]] == [("normal", None)] * 2
    # Counts of nothing are known: none.
    assert (slis["queue"]["in_flight"], slis["queue"]["saturation"], slis["dead_letters"]["dead_letters"]) == (0, 0, 0)


# --- success ---------------------------------------------------------------------------------------------------------


async def test_success_rate_counts_every_ending_but_the_callers_and_the_recipients(ledger: Ledger) -> None:
    for _ in range(7):
        await ledger.delivery("delivered")
    await ledger.delivery("failed", terminal_error_class="target_unavailable", terminal_retryable=True)
    await ledger.delivery("dead_lettered", terminal_error_class="timeout", terminal_retryable=True)
    await ledger.delivery("expired", terminal_error_class="timeout")
    await ledger.delivery("uncertain", terminal_error_class="timeout", terminal_retryable=False)
    # The token is refused: nobody is suppressed, so it is ours.
    await ledger.delivery("failed", terminal_error_class="target_unavailable", terminal_retryable=False)
    # None of these says how well we deliver.
    await ledger.delivery("failed", terminal_error_class="validation_error", terminal_retryable=False)
    await ledger.suppress("8")
    blocked: dict[str, Any] = {"terminal_error_class": "target_unavailable", "terminal_retryable": False}
    await ledger.delivery("failed", target_identity="8", **blocked)
    await ledger.delivery("pending")
    await ledger.delivery("pending_approval")
    # Another channel, another scope.
    await ledger.delivery("delivered", channel="email")
    await ledger.delivery("failed", channel="telegram", identity_scope="user", terminal_error_class="internal_error")

    success = (await ledger.slis())["success"]
    assert of(success, channel="telegram", identity_scope="bot") == {
        "channel": "telegram",
        "identity_scope": "bot",
        "delivered": 7,
        "failed": 2,
        "dead_lettered": 1,
        "expired": 1,
        "uncertain": 1,
        "excused": 2,
        "success_rate": pytest.approx(7 / 12),
    }
    assert of(success, channel="email")["success_rate"] == 1.0
    assert of(success, channel="telegram", identity_scope="user")["success_rate"] == 0.0


async def test_the_window_takes_its_start_and_leaves_its_end(ledger: Ledger) -> None:
    for ended in (HOUR_AGO, NOW - timedelta(microseconds=1)):
        await ledger.delivery("delivered", ended=ended)
    for ended in (HOUR_AGO - timedelta(microseconds=1), NOW):
        await ledger.delivery("failed", ended=ended, terminal_error_class="timeout")
    row = of((await ledger.slis())["success"], channel="telegram")
    assert (row["delivered"], row["failed"]) == (2, 0)


# --- latency ---------------------------------------------------------------------------------------------------------


def percentile(values: list[float], share: float) -> float:
    """By linear interpolation between the two nearest ranks."""
    ranked = sorted(values)
    position = share * (len(ranked) - 1)
    below = int(position)
    above = min(below + 1, len(ranked) - 1)
    return ranked[below] + (ranked[above] - ranked[below]) * (position - below)


async def test_p95_of_one_to_hundred_is_what_a_person_works_out(ledger: Ledger) -> None:
    for milliseconds in range(1, 101):
        await ledger.delivery(ended=ago(60), created_at=ago(60) - timedelta(milliseconds=milliseconds))
    assert (await ledger.slis())["latency"] == [
        {
            "channel": "telegram",
            "identity_scope": "bot",
            "intent": "send",
            "deliveries": 100,
            "p50_ms": pytest.approx(50.5),
            "p95_ms": pytest.approx(95.05),
        }
    ]


async def test_percentiles_are_taken_over_raw_latencies_per_channel_and_intent(ledger: Ledger) -> None:
    draw = random.Random(7)
    drawn: dict[tuple[str, str], list[float]] = defaultdict(list)
    for _ in range(120):
        cell = draw.choice([("telegram", "send"), ("telegram", "reply"), ("email", "send")])
        milliseconds = round(draw.lognormvariate(5, 2), 3)
        drawn[cell].append(milliseconds)
        created = ago(60) - timedelta(milliseconds=milliseconds)
        await ledger.delivery(channel=cell[0], intent=cell[1], created_at=created)

    rows = (await ledger.slis())["latency"]
    measured = {(row["channel"], row["intent"]): (row["deliveries"], row["p50_ms"], row["p95_ms"]) for row in rows}
    assert measured.keys() == drawn.keys()
    for cell, values in drawn.items():
        expected = (len(values), percentile(values, 0.5), percentile(values, 0.95))
        assert measured[cell] == pytest.approx(expected, abs=0.002), cell


async def test_waiting_for_a_person_is_not_latency_and_failures_have_none(ledger: Ledger) -> None:
    await ledger.delivery(created_at=ago(61))
    await ledger.delivery(created_at=ago(3000), settled_at=ago(60), settled_by="owner")
    await ledger.delivery(created_at=ago(3000), action_id="00000000-0000-0000-0000-000000000001")
    await ledger.delivery("failed", created_at=ago(3000))
    (row,) = (await ledger.slis())["latency"]
    assert (row["deliveries"], row["p95_ms"]) == (1, pytest.approx(1000))


# --- duplicates ------------------------------------------------------------------------------------------------------


async def test_retries_and_the_replay_of_a_dead_letter_are_no_duplicates(ledger: Ledger) -> None:
    retried = await ledger.delivery()
    await ledger.attempt(retried, "failed", error_class="target_unavailable", retryable=True)
    await ledger.attempt(retried)
    dead = await ledger.delivery("dead_lettered")
    await ledger.delivery(replay_of=await ledger.delivery("dead_lettered", replay_of=dead))
    assert (await ledger.slis())["duplicates"] == {
        "delivered": 2,
        "sent_again": 0,
        "delivered_again": 0,
        "possible": 0,
        "duplicates": 0,
        "duplicate_rate": 0.0,
    }


async def test_a_message_that_was_accepted_twice_is_found(ledger: Ledger) -> None:
    twice = await ledger.delivery()
    for _ in range(3):
        await ledger.attempt(twice)
    once = await ledger.delivery()
    await ledger.attempt(once)
    found = (await ledger.slis())["duplicates"]
    assert (found["sent_again"], found["duplicate_rate"]) == (2, 1.0)


async def test_a_family_of_replays_that_was_delivered_more_than_once_is_found(ledger: Ledger) -> None:
    first = await ledger.delivery(ended=ago(86_400))
    await ledger.delivery(replay_of=first)
    second = await ledger.delivery("dead_lettered")
    for seconds in (120, 110, 100):
        await ledger.delivery(replay_of=second, created_at=ago(seconds))
    third = await ledger.delivery("dead_lettered")
    again = await ledger.delivery("dead_lettered", replay_of=third)
    for seconds in (120, 110):  # one replay of the first delivery, one of its replay: the same family
        await ledger.delivery(replay_of=third if seconds == 120 else again, created_at=ago(seconds))
    found = (await ledger.slis())["duplicates"]
    # The first was delivered before the window; of the second, two came on top of one; of the third, one.
    assert (found["delivered"], found["delivered_again"], found["duplicate_rate"]) == (6, 4, pytest.approx(4 / 6))


async def test_a_second_send_after_a_doubt_may_be_a_duplicate_and_is_shown_apart(ledger: Ledger) -> None:
    resent = await ledger.delivery(channel="email")
    await ledger.attempt(resent, "failed", certainty="uncertain", error_class="timeout", retryable=True)
    await ledger.attempt(resent)
    found = (await ledger.slis())["duplicates"]
    assert (found["possible"], found["duplicates"], found["duplicate_rate"]) == (1, 0, 0.0)


# --- door and queue --------------------------------------------------------------------------------------------------


async def test_rejections_are_a_share_of_those_who_asked_to_be_admitted(ledger: Ledger) -> None:
    await ledger.admission("admitted", 30)
    await ledger.admission("admitted", 20, origin_butler="health")
    await ledger.admission("rejected", 6, rule="channel")
    await ledger.admission("rejected", 4, rule="recipient")
    await ledger.admission("rejected", 1000, rule="suppressed")
    await ledger.admission("deduplicated", 1000)
    await ledger.admission("parked", 1000)
    await ledger.admission("admitted", 10, channel="email")
    await ledger.admission("rejected", 1000, rule="global", minute=HOUR_AGO - timedelta(minutes=1))

    admission = (await ledger.slis())["admission"]
    assert (admission["admitted"], admission["rejected"]) == (60, 10)
    assert admission["rejection_rate"] == pytest.approx(10 / 70)
    assert admission["by_channel"] == [
        {"channel": "email", "admitted": 10, "rejected": 0, "rejection_rate": 0.0, "by_rule": {}},
        {
            "channel": "telegram",
            "admitted": 50,
            "rejected": 10,
            "rejection_rate": pytest.approx(1 / 6),
            "by_rule": {"channel": 6, "recipient": 4},
        },
    ]


async def test_saturation_is_what_was_taken_on_and_has_not_ended(ledger: Ledger) -> None:
    for status in ("pending", "pending", "in_progress", "awaiting_retry", "pending_approval", "uncertain", "delivered"):
        await ledger.delivery(status)
    await ledger.delivery("pending", admitted=False)
    queue = (await ledger.slis())["queue"]
    assert (queue["in_flight"], queue["saturation"]) == (4, pytest.approx(0.04))
    assert queue["by_status"] == {
        "pending": 3,
        "in_progress": 1,
        "awaiting_retry": 1,
        "uncertain": 1,
        "pending_approval": 1,
        "pending_missing_identifier": 0,
    }


# --- dead letters and doubts -----------------------------------------------------------------------------------------


async def test_dead_letters_and_how_their_replays_ended(ledger: Ledger) -> None:
    dead = await ledger.dead_letter()
    await ledger.dead_letter(discarded_at=NOW, discard_reason="stale", discarded_by="owner")
    await ledger.dead_letter(channel="email")
    await ledger.dead_letter(created=ago(7200))
    for status in ("delivered", "delivered", "dead_lettered", "pending"):
        await ledger.delivery(status, replay_of=dead)
    await ledger.delivery("delivered", replay_of=dead, ended=ago(7200))
    assert (await ledger.slis())["dead_letters"] == {
        "dead_letters": 3,
        "by_channel": [
            {"channel": "email", "dead_letters": 1, "discarded": 0},
            {"channel": "telegram", "dead_letters": 2, "discarded": 1},
        ],
        "replays_ended": 3,
        "replays_delivered": 2,
        "replay_success_rate": pytest.approx(2 / 3),
    }


async def test_doubts_and_how_many_of_them_were_settled(ledger: Ledger) -> None:
    settled: dict[str, Any] = {"settled_by": "owner", "settled_at": NOW}
    for status, said in (("uncertain", {}), ("delivered", {}), ("failed", settled), ("delivered", {})):
        delivery = await ledger.delivery(status, **said)
        await ledger.attempt(delivery, "failed", certainty="uncertain", error_class="timeout")
    await ledger.attempt(
        delivery, "failed", certainty="uncertain", error_class="timeout"
    )  # twice in doubt, once counted
    early = await ledger.delivery("uncertain")
    await ledger.attempt(early, "failed", certainty="uncertain", started=ago(7200))
    doubts = (await ledger.slis())["uncertain"]
    assert (doubts["uncertain"], doubts["unsettled"], doubts["settle_rate"]) == (4, 1, 0.75)
    assert of(doubts["by_channel"], channel="telegram")["settle_rate"] == 0.75


@pytest.mark.parametrize("status", ["failed", "expired", "dead_lettered", "awaiting_retry"])
async def test_a_doubt_that_nobody_settled_is_not_settled_by_another_end(ledger: Ledger, status: str) -> None:
    delivery = await ledger.delivery(status)
    await ledger.attempt(delivery, "failed", certainty="uncertain", error_class="timeout")
    doubts = (await ledger.slis())["uncertain"]
    assert (doubts["uncertain"], doubts["unsettled"], doubts["settle_rate"]) == (1, 1, 0.0)


# --- the tool --------------------------------------------------------------------------------------------------------


async def test_the_tool_answers_for_the_last_day_and_refuses_windows_without_sense(ledger: Ledger) -> None:
    await ledger.delivery("delivered", ended=ago(23 * 3600))
    box = ToolBox(ledger.levels().tools())
    operator = Caller(name="operator", role=Role.OPERATOR)

    async def ask(**arguments: Any) -> dict[str, Any]:
        return await box.call("messenger_service_levels", operator, arguments)

    answer = await ask()
    assert answer["window"] == {"since": "2026-02-28T12:00:00Z", "until": "2026-03-01T12:00:00Z"}
    assert of(answer["success"], channel="telegram")["success_rate"] == 1.0
    hour = await ask(since="2026-03-01T11:00:00Z")
    assert of(hour["success"], channel="telegram")["success_rate"] is None

    for wrong in (
        {"since": "2026-03-01T12:00:00Z"},
        {"since": "2026-01-01T00:00:00Z"},
        {"until": "0001-01-01T00:00:00Z"},
        {"since": "yesterday"},
    ):
        with pytest.raises(ValidationError):
            await ask(**wrong)
