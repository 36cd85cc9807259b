"""Who is sent next, and by whom."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from uuid import UUID

import pytest

from butlers.channels.adapter import NotSent, Sent
from butlers.errors import TargetUnavailable
from butlers.messenger.config import BreakersSection
from butlers.messenger.delivery import ClaimedDelivery

from .core import DOWN, LEASE_S, SENT, Core


def ids(claimed: list[ClaimedDelivery]) -> list[UUID]:
    return [delivery.id for delivery in claimed]


async def trip(core: Core, channel: str = "telegram.bot", *, probe_in: float = 60.0) -> None:
    """Open a channel's circuit."""
    where = f"name = '{channel}'"
    await core.set("channel_states", "state", "open", where=where)
    await core.set("channel_states", "generation", 1, where=where)
    await core.set("channel_states", "trip_reason", "502", where=where)
    await core.set("channel_states", "probe_at", core.clock.now() + timedelta(seconds=probe_in), where=where)


async def throttle(core: Core, scope: str, seconds: float = 30.0) -> None:
    now = core.clock.now()
    channel = scope.partition(":")[0]
    until = now + timedelta(seconds=seconds)
    await core.insert("throttles", scope=scope, channel=channel, until=until, reason="429", created_at=now)


# --- the claim itself ------------------------------------------------------------------------------------------------


async def test_a_claim_is_on_record_with_its_attempt_before_anything_is_sent(core: Core) -> None:
    await core.take()
    delivery = await core.claim_one()
    row = await core.row(delivery.id)
    assert (row["status"], row["attempts"], row["claimed_by"]) == ("in_progress", 1, "w1")
    assert row["claim_token"] == delivery.claim_token
    assert row["lease_expires_at"] == core.clock.now() + timedelta(seconds=LEASE_S)
    (attempt,) = await core.rows("delivery_attempts")
    assert (attempt["id"], attempt["attempt_number"], attempt["worker"]) == (delivery.attempt_id, 1, "w1")
    assert attempt["completed_at"] is attempt["outcome"] is None
    assert await core.claim() == [], "nobody claims it twice"


async def test_workers_never_get_the_same_delivery(core: Core) -> None:
    for number in range(40):
        await core.take(str(number))
    hands = [core.deliveries(), core.deliveries(database=core.second)]
    rounds = [hands[number % 2].claim_due(limit=5, worker=f"w{number % 2}", lease_s=LEASE_S) for number in range(20)]
    claimed = [one for found in await asyncio.gather(*rounds) for one in ids(found)]
    assert not [one for one, times in Counter(claimed).items() if times > 1]
    claimed += ids(await core.claim())
    assert len(set(claimed)) == len(claimed) == 40
    assert len(await core.rows("delivery_attempts")) == 40


async def test_what_is_not_due_waits(core: Core) -> None:
    await core.take()
    await core.finish(core.end(await core.claim_one(), DOWN, retry_in=5))
    assert await core.claim() == []
    assert await core.deliveries().next_due() == (core.clock.now() + timedelta(seconds=5), False)
    core.clock.advance(5)
    again = await core.claim_one()
    assert (again.attempt, again.last_error_class, again.in_doubt) == (2, "target_unavailable", False)


# --- the order -------------------------------------------------------------------------------------------------------


async def test_answers_come_first_and_then_what_is_urgent(core: Core) -> None:
    send = await core.take("1")
    low = await core.take("2", priority="low")
    urgent = await core.take("3", priority="urgent")
    answer = await core.take("4", intent="reply")
    assert [ids(await core.claim(limit=1))[0] for _ in range(4)] == [answer, urgent, send, low]


async def test_answers_of_one_butler_come_before_the_sends_of_another(core: Core) -> None:
    sends = [await core.take(str(number), origin="b") for number in range(3)]
    answers = [await core.take(str(number), origin="a", intent="reply") for number in range(10, 13)]
    assert set(ids(await core.claim(limit=3))) == set(answers)
    assert set(ids(await core.claim(limit=3))) == set(sends)


async def test_each_butler_in_turn(core: Core) -> None:
    for number in range(20):
        await core.take(str(number), origin="noisy")
    quiet = [await core.take(str(number), origin="quiet") for number in range(100, 103)]
    claimed = await core.claim(limit=6)
    assert Counter(delivery.origin_butler for delivery in claimed) == {"noisy": 3, "quiet": 3}
    assert set(quiet) <= set(ids(claimed))


async def test_a_conversation_keeps_its_order(core: Core) -> None:
    first, second, third = [await core.take("7") for _ in range(3)]
    other = await core.take("8")
    claimed = await core.claim()
    assert ids(claimed) == [first, other]
    assert await core.claim() == []
    await core.finish(core.end(claimed[0]))
    assert ids(await core.claim()) == [second]
    assert (await core.statuses())[third] == "pending"


async def test_an_answer_does_not_overtake_an_earlier_message_of_its_conversation(core: Core) -> None:
    first = await core.take("7")
    answer = await core.take("7", intent="reply")
    assert ids(await core.claim()) == [first]
    assert (await core.statuses())[answer] == "pending"


async def test_a_message_that_waits_for_its_retry_holds_its_conversation_back_and_no_other(core: Core) -> None:
    first, second = await core.take("7"), await core.take("7")
    await core.finish(core.end(await core.claim_one(), DOWN, retry_in=5))
    other = await core.take("8")
    assert ids(await core.claim()) == [other]
    core.clock.advance(5)
    assert ids(await core.claim()) == [first]
    assert (await core.statuses())[second] == "pending"


@pytest.mark.parametrize("status", ["delivered", "failed", "dead_lettered", "uncertain", "expired"])
async def test_a_message_that_ended_holds_nobody_back(core: Core, status: str) -> None:
    await core.take("7")
    second = await core.take("7")
    await core.finish(core.end(await core.claim_one(), SENT, status))  # type: ignore[arg-type]
    assert ids(await core.claim()) == [second]


# --- windows ---------------------------------------------------------------------------------------------------------


async def test_a_window_stops_one_conversation_or_a_whole_channel(core: Core) -> None:
    seven, eight = await core.take("7"), await core.take("8")
    mail = await core.take("a@a.example", channel="email")
    await throttle(core, "telegram.bot:7", 10)
    assert set(ids(await core.claim())) == {eight, mail}
    nine = await core.take("9")
    await throttle(core, "telegram.bot", 5)
    assert await core.claim() == []
    core.clock.advance(5)
    assert ids(await core.claim()) == [nine]
    core.clock.advance(5)
    assert ids(await core.claim()) == [seven]


# --- circuits --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["open", "half-open"])
async def test_a_channel_in_trouble_is_left_to_the_probes(core: Core, state: str) -> None:
    await core.take("7")
    mail = await core.take("a@a.example", channel="email")
    await trip(core)
    await core.set("channel_states", "state", state, where="name = 'telegram.bot'")
    assert ids(await core.claim()) == [mail]
    assert await core.deliveries().open_circuits() == ["telegram.bot"]


async def test_probes_go_out_when_it_is_time_and_no_more_than_the_limit(core: Core) -> None:
    for number in range(5):
        await core.take(str(number))
    await trip(core, probe_in=60)
    deliveries = core.deliveries(breaker=BreakersSection(recovery_timeout_s=60.0, probe_limit=2, success_threshold=2))

    async def probes() -> list[ClaimedDelivery]:
        return await deliveries.claim_probes("telegram.bot", limit=10, worker="w1", lease_s=LEASE_S)

    assert await probes() == []
    core.clock.advance(60)
    out = await probes()
    assert len(out) == 2 and {probe.generation for probe in out} == {2}
    assert await probes() == []
    await deliveries.finish([core.end(probe) for probe in out])
    assert await deliveries.open_circuits() == []
    assert len(await core.claim()) == 3


async def test_two_processes_share_the_probes(core: Core) -> None:
    for number in range(4):
        await core.take(str(number))
    await trip(core, probe_in=0)
    hands = [core.deliveries(), core.deliveries(database=core.second)]
    found = await asyncio.gather(
        *(one.claim_probes("telegram.bot", limit=5, worker="w", lease_s=LEASE_S) for one in hands)
    )
    assert sum(len(probes) for probes in found) == 1


async def test_a_probe_that_found_nothing_to_send_is_given_back(core: Core) -> None:
    await trip(core, probe_in=0)
    deliveries = core.deliveries()
    assert await deliveries.claim_probes("telegram.bot", limit=5, worker="w1", lease_s=LEASE_S) == []
    (state,) = [row for row in await core.rows("channel_states") if row["name"] == "telegram.bot"]
    assert (state["state"], state["probes_out"]) == ("half-open", 0)
    delivery = await core.take()
    assert ids(await deliveries.claim_probes("telegram.bot", limit=5, worker="w1", lease_s=LEASE_S)) == [delivery]


async def test_a_failed_probe_opens_the_circuit_again(core: Core) -> None:
    await core.take()
    await trip(core, probe_in=0)
    (probe,) = await core.deliveries().claim_probes("telegram.bot", limit=5, worker="w1", lease_s=LEASE_S)
    await core.finish(core.end(probe, NotSent(error=TargetUnavailable("still down"))))
    (state,) = [row for row in await core.rows("channel_states") if row["name"] == "telegram.bot"]
    assert (state["state"], state["trip_reason"]) == ("open", "still down")
    assert state["probe_at"] == core.clock.now() + timedelta(seconds=60)


# --- parts -----------------------------------------------------------------------------------------------------------


async def test_the_next_attempt_finds_the_parts_that_are_out(core: Core) -> None:
    delivery_id = await core.take()
    first, deliveries = await core.claim_one(), core.deliveries()
    assert first.outgoing.parts_sent == {}
    await deliveries.record_part(delivery_id, 1, "m1")
    await deliveries.record_part(delivery_id, 2, "m2")
    await deliveries.record_part(delivery_id, 2, "m2")
    assert await deliveries.parts_of(delivery_id) == {1, 2}
    await core.finish(core.end(first, DOWN))
    core.clock.advance(5)
    second = await core.claim_one()
    assert second.outgoing.parts_sent == {1: "m1", 2: "m2"}
    await core.finish(core.end(second, Sent(provider_delivery_id="m3", part=3)))
    receipts = [(row["part"], row["provider_delivery_id"]) for row in await core.rows("delivery_receipts", "part")]
    assert receipts == [(1, "m1"), (2, "m2"), (3, "m3")]
    outcome = await deliveries.get(delivery_id)
    assert outcome is not None and (outcome.status, outcome.provider_delivery_id) == ("delivered", "m1")
