"""What the end of an attempt leaves behind."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from butlers.channels.adapter import AttemptResult, Certainty, NotSent, Sent, Throttle
from butlers.errors import TargetUnavailable, TimeoutExceeded
from butlers.errors import ValidationError as Invalid
from butlers.messenger.delivery import ClaimedDelivery
from butlers.messenger.evidence import lost_attempt

from .core import DOWN, LEASE_S, SCHEMA, SENT, Core

TOO_FAST = NotSent(error=TargetUnavailable("429"), throttle=Throttle(scope="target", seconds=20))


async def state(core: Core, channel: str = "telegram.bot") -> dict[str, Any]:
    (found,) = [row for row in await core.rows("channel_states") if row["name"] == channel]
    return found


async def windows(core: Core) -> dict[str, float]:
    """Scope -> seconds from now."""
    now = core.clock.now()
    return {row["scope"]: (row["until"] - now).total_seconds() for row in await core.rows("throttles")}


async def in_progress(core: Core, *targets: str) -> list[ClaimedDelivery]:
    for target in targets:
        await core.take(target)
    return await core.claim()


# --- the claim -------------------------------------------------------------------------------------------------------


async def test_a_success_ends_delivery_and_attempt_and_leaves_a_receipt(core: Core) -> None:
    (delivery,) = await in_progress(core, "7")
    core.clock.advance(1)
    assert await core.finish(core.end(delivery)) == [True]
    row = await core.row(delivery.id)
    assert (row["status"], row["terminal_at"], row["claim_token"]) == ("delivered", core.clock.now(), None)
    (attempt,) = await core.rows("delivery_attempts")
    assert (attempt["outcome"], attempt["certainty"], attempt["latency_ms"]) == ("sent", "sent", 5)
    (receipt,) = await core.rows("delivery_receipts")
    assert (receipt["provider_delivery_id"], receipt["part"], receipt["receipt_type"]) == ("m1", 1, "sent")


async def test_whoever_lost_the_claim_writes_nothing(core: Core) -> None:
    ours, theirs = await in_progress(core, "7", "8")
    stranger = replace(theirs, claim_token=UUID(int=9))
    before = await core.row(theirs.id)
    worst = NotSent(error=TargetUnavailable("429"), throttle=Throttle(scope="channel", seconds=9), recipient_gone=True)
    assert await core.finish(core.end(stranger, worst, "dead_lettered"), core.end(ours)) == [False, True]
    assert await core.row(theirs.id) == before
    attempts = {row["delivery_id"]: row["outcome"] for row in await core.rows("delivery_attempts")}
    assert attempts == {ours.id: "sent", theirs.id: None}
    for table in ("throttles", "recipient_rules", "delivery_dead_letter"):
        assert await core.rows(table) == []
    assert [row["delivery_id"] for row in await core.rows("delivery_receipts")] == [ours.id]


async def test_an_end_is_written_once(core: Core) -> None:
    (delivery,) = await in_progress(core, "7")
    assert await core.finish(core.end(delivery)) == [True]
    assert await core.finish(core.end(delivery, DOWN, "failed")) == [False]
    assert (await core.row(delivery.id))["status"] == "delivered"


# --- the dead --------------------------------------------------------------------------------------------------------


async def test_a_dead_letter_holds_the_request_and_every_attempt(core: Core) -> None:
    delivery_id = await core.take(message="hello")
    for _ in range(2):
        await core.finish(core.end(await core.claim_one(), DOWN, retry_in=5))
        core.clock.advance(5)
    last = NotSent(error=TimeoutExceeded("no answer"))
    await core.finish(core.end(await core.claim_one(), last, "dead_lettered"))
    (letter,) = await core.rows("delivery_dead_letter")
    assert (letter["delivery_id"], letter["quarantine_reason"]) == (delivery_id, "retries_exhausted")
    assert (letter["total_attempts"], letter["replay_eligible"], letter["replay_count"]) == (3, True, 0)
    assert (letter["error_class"], letter["error_summary"]) == ("timeout", "no answer")
    assert letter["original_envelope"]["delivery"]["message"] == "hello"
    outcomes = letter["all_attempt_outcomes"]
    assert [one["attempt_number"] for one in outcomes] == [1, 2, 3]
    assert [one["error_class"] for one in outcomes] == ["target_unavailable", "target_unavailable", "timeout"]
    assert all(one["outcome"] == "failed" and one["certainty"] == "not_sent" for one in outcomes)
    assert letter["last_attempt_at"] - letter["first_attempt_at"] == timedelta(seconds=10)


@pytest.mark.parametrize("status", ["failed", "uncertain", "expired", "delivered"])
async def test_only_what_used_up_its_attempts_is_buried(core: Core, status: str) -> None:
    (delivery,) = await in_progress(core, "7")
    await core.finish(core.end(delivery, DOWN, status))  # type: ignore[arg-type]
    assert await core.rows("delivery_dead_letter") == []
    assert (await core.row(delivery.id))["tell_owner"] == (status == "uncertain")


# --- windows ---------------------------------------------------------------------------------------------------------


async def test_a_throttled_chat_waits_alone_until_a_second_one_is_throttled(core: Core) -> None:
    seven, eight = await in_progress(core, "7", "8")
    await core.finish(core.end(seven, TOO_FAST))
    assert await windows(core) == {"telegram.bot:7": 20}
    await core.finish(core.end(eight, TOO_FAST))
    assert await windows(core) == {"telegram.bot:7": 20, "telegram.bot": 20}


async def test_the_same_chat_again_or_one_whose_window_closed_widens_nothing(core: Core) -> None:
    (seven,) = await in_progress(core, "7")
    await core.finish(core.end(seven, TOO_FAST, retry_in=20))
    core.clock.advance(20)
    (again,) = await core.claim()
    await core.finish(core.end(again, TOO_FAST, retry_in=20))
    assert await windows(core) == {"telegram.bot:7": 20}
    core.clock.advance(20)
    await core.take("8")
    eight = next(delivery for delivery in await core.claim() if delivery.outgoing.target == "8")
    await core.finish(core.end(eight, TOO_FAST))
    assert (await windows(core)).keys() == {"telegram.bot:7", "telegram.bot:8"}


async def test_two_messages_to_one_recipient_are_no_reason_to_make_everybody_wait(core: Core) -> None:
    for thread in ("one", "two"):
        await core.take("a@a.example", channel="email", ordering_key=f"email:a@a.example:{thread}")
    for delivery in await core.claim():
        await core.finish(core.end(delivery, TOO_FAST))
    assert await windows(core) == {"email.bot:a@a.example": 20}


async def test_a_chat_is_throttled_for_itself_also_while_everybody_waits(core: Core) -> None:
    seven, eight = await in_progress(core, "7", "8")
    asked = NotSent(error=TargetUnavailable("429"), throttle=Throttle(scope="channel", seconds=7))
    await core.finish(core.end(seven, asked))
    await core.finish(core.end(eight, TOO_FAST))
    assert await windows(core) == {"telegram.bot": 7, "telegram.bot:8": 20}


async def test_a_window_about_everybody_is_about_everybody(core: Core) -> None:
    (seven,) = await in_progress(core, "7")
    asked = NotSent(error=TargetUnavailable("429"), throttle=Throttle(scope="channel", seconds=7))
    await core.finish(core.end(seven, asked))
    assert await windows(core) == {"telegram.bot": 7}


async def test_a_shorter_window_does_not_close_a_longer_one(core: Core) -> None:
    for delivery, seconds in zip(await in_progress(core, "7", "8"), (30, 5), strict=True):
        asked = NotSent(error=TargetUnavailable("429"), throttle=Throttle(scope="channel", seconds=seconds))
        await core.finish(core.end(delivery, asked))
    assert await windows(core) == {"telegram.bot": 30}


# --- recipients ------------------------------------------------------------------------------------------------------


async def test_a_recipient_who_is_gone_is_suppressed(core: Core) -> None:
    (delivery,) = await in_progress(core, "7")
    gone = NotSent(error=TargetUnavailable("blocked", retryable=False), recipient_gone=True, answered=True)
    await core.finish(core.end(delivery, gone, "failed"))
    (rule,) = await core.rows("recipient_rules")
    assert (rule["channel"], rule["target"], rule["rule"], rule["decided_by"]) == (
        "telegram",
        "7",
        "suppressed",
        "provider",
    )
    assert (await state(core))["consecutive_failures"] == 0


@pytest.mark.parametrize(
    "result",
    [Sent(provider_delivery_id="m1", moved_to="-1007"), NotSent(error=TargetUnavailable("moved"), moved_to="-1007")],
)
async def test_a_recipient_who_moved_is_known_at_the_new_address(core: Core, result: AttemptResult) -> None:
    (delivery,) = await in_progress(core, "7")
    await core.finish(core.end(delivery, result))
    (rule,) = await core.rows("recipient_rules")
    assert (rule["target"], rule["rule"], rule["moved_to"]) == ("7", "moved", "-1007")
    assert (await core.row(delivery.id))["target_identity"] == "-1007"


# --- circuits --------------------------------------------------------------------------------------------------------


async def test_failures_in_a_row_open_the_circuit_also_when_they_come_together(core: Core) -> None:
    ends = [core.end(delivery, DOWN) for delivery in await in_progress(core, "1", "2", "3")]
    await core.finish(*ends)
    found = await state(core)
    assert (found["state"], found["generation"], found["trip_reason"]) == ("open", 1, "502 Bad Gateway")
    assert (await state(core, "email.bot"))["state"] == "closed"


async def test_an_end_counts_on_from_what_another_process_has_just_counted(core: Core) -> None:
    (delivery,) = await in_progress(core, "7")
    async with core.database.transaction() as connection:
        await connection.execute(f"UPDATE {SCHEMA}.channel_states SET consecutive_failures = 2")
        waiting = asyncio.create_task(core.deliveries(database=core.second).finish([core.end(delivery, DOWN)]))
        await core.until_a_statement_waits()
    assert await waiting == [True]
    assert ((await state(core))["state"], (await state(core))["consecutive_failures"]) == ("open", 3)


async def test_a_success_in_between_keeps_it_closed(core: Core) -> None:
    one, two, three = await in_progress(core, "1", "2", "3")
    for delivery, result in ((one, DOWN), (two, SENT), (three, DOWN)):
        await core.finish(core.end(delivery, result))
    found = await state(core)
    assert (found["state"], found["consecutive_failures"]) == ("closed", 1)


@pytest.mark.parametrize("result", [TOO_FAST, NotSent(error=Invalid("too long"))])
async def test_what_is_not_the_providers_fault_does_not_open_it(core: Core, result: NotSent) -> None:
    await core.finish(*(core.end(delivery, result, "failed") for delivery in await in_progress(core, *"12345")))
    found = await state(core)
    assert (found["state"], found["consecutive_failures"]) == ("closed", 0)


async def test_a_crash_of_ours_says_nothing_about_the_provider(core: Core) -> None:
    await in_progress(core, *"12345")
    abandoned = await core.deliveries().claim_abandoned(limit=10, worker="w2", lease_s=LEASE_S, in_hand=[], dead=["w1"])
    assert len(abandoned) == 5
    await core.finish(*(core.end(delivery, lost_attempt(1), "uncertain", lost=True) for delivery, _ in abandoned))
    found = await state(core)
    assert (found["state"], found["consecutive_failures"]) == ("closed", 0)
    assert {row["outcome"] for row in await core.rows("delivery_attempts")} == {"lost"}


# --- dead workers ----------------------------------------------------------------------------------------------------


async def abandoned_by(core: Core, *dead: str, in_hand: list[UUID] | None = None) -> list[tuple[UUID, str]]:
    found = await core.deliveries().claim_abandoned(
        limit=10, worker="w2", lease_s=LEASE_S, in_hand=in_hand or [], dead=list(dead)
    )
    return [(delivery.id, worker) for delivery, worker in found]


async def test_the_work_of_a_dead_worker_is_taken_over_at_once(core: Core) -> None:
    (delivery,) = await in_progress(core, "7")
    assert await abandoned_by(core, "w9") == []
    assert await abandoned_by(core, "w1") == [(delivery.id, "w1")]
    row = await core.row(delivery.id)
    assert (row["claimed_by"], row["attempts"], row["status"]) == ("w2", 1, "in_progress")
    assert await core.finish(core.end(delivery)) == [False], "the dead one's word does not count any more"
    assert await abandoned_by(core, "w1") == [], "nor is it taken over twice"


async def test_the_work_of_a_silent_worker_is_taken_over_when_its_lease_ends(core: Core) -> None:
    (delivery,) = await in_progress(core, "7")
    core.clock.advance(LEASE_S - 1)
    assert await abandoned_by(core) == []
    await core.deliveries().renew({delivery.id: delivery.claim_token}, LEASE_S)
    core.clock.advance(LEASE_S - 1)
    assert await abandoned_by(core) == []
    core.clock.advance(1)
    assert await abandoned_by(core, in_hand=[delivery.id]) == [], "not from itself"
    assert await abandoned_by(core) == [(delivery.id, "w1")]


async def test_whoever_rescues_and_dies_is_rescued_by_the_first_ones_evidence(core: Core) -> None:
    (delivery,) = await in_progress(core, "7")
    assert await abandoned_by(core, "w1") == [(delivery.id, "w1")]
    again = await core.deliveries().claim_abandoned(limit=9, worker="w3", lease_s=LEASE_S, in_hand=[], dead=["w2"])
    assert [(one.id, one.attempt_id, worker) for one, worker in again] == [(delivery.id, delivery.attempt_id, "w1")]


async def test_an_attempt_is_open_until_it_is_settled(core: Core) -> None:
    (delivery,) = await in_progress(core, "7")
    deliveries = core.deliveries()
    assert await deliveries.open_attempts_of("w1") == 1
    await core.finish(core.end(delivery))
    assert await deliveries.open_attempts_of("w1") == 0


async def test_the_next_attempt_knows_of_an_earlier_doubt(core: Core) -> None:
    (delivery,) = await in_progress(core, "7")
    doubt = NotSent(error=TimeoutExceeded("no answer"), certainty=Certainty.UNCERTAIN, response={"part": 1})
    await core.finish(core.end(delivery, doubt))
    core.clock.advance(5)
    assert (await core.claim_one()).in_doubt


# --- what comes too late ---------------------------------------------------------------------------------------------


async def test_what_was_not_sent_in_time_is_not_sent(core: Core) -> None:
    soon = (core.clock.now() + timedelta(seconds=10)).isoformat()
    pending, trying = await core.take("1", not_after=soon), await core.take("2", not_after=soon)
    retry, patient = await core.take("3", not_after=soon), await core.take("4")
    claimed = {delivery.id: delivery for delivery in await core.claim()}
    await core.finish(
        core.end(claimed[retry], DOWN), core.end(claimed[pending], DOWN), core.end(claimed[patient], DOWN)
    )
    core.clock.advance(10)
    assert await core.deliveries().expire() == []
    core.clock.advance(0.001)
    expired = await core.deliveries().expire()
    assert {row["id"] for row in expired} == {pending, retry}
    assert await core.statuses() == {
        pending: "expired",
        trying: "in_progress",
        retry: "expired",
        patient: "awaiting_retry",
    }
    row = await core.row(pending)
    assert (row["terminal_error_class"], row["terminal_at"]) == ("timeout", core.clock.now())
    assert row["decisions"][-1]["rule"] == "expiry"
    outcome = await core.deliveries().get(pending)
    assert outcome is not None and outcome.error is not None and not outcome.error.retryable
