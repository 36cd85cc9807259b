"""What becomes of a message when it is due: decided again, throttled, retried, failed over, digested, repeated."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from butlers.contracts.message_state import MessageState
from butlers.outbound import MIGRATIONS
from butlers.outbound.delivery import DeliveryReport
from butlers.outbound.postgres_records import PostgresRecords
from butlers.outbound.values import dedupe_key
from butlers.outbound.worker import MOST_EXPIRATIONS
from butlers.storage.embedded import EmbeddedPostgres
from tests.database import cloned_database
from tests.unit.outbound.runtime import NOON, Left, Runtime, person_id

_NIGHT = {"start_time": "22:00", "end_time": "07:00", "timezone": "UTC"}
_LUNCH = {"start_time": "12:00", "end_time": "14:00", "timezone": "UTC"}
_FAILS = DeliveryReport(status="failed", error_class="target_unavailable", error="away", is_retryable=True)
_REFUSED = DeliveryReport(status="failed", error_class="target_unavailable", error="blocked by the user")


@pytest.fixture(params=["memory", "postgres"])
async def runtime(request: pytest.FixtureRequest, postgres_server: EmbeddedPostgres) -> AsyncIterator[Runtime]:
    if request.param == "memory":
        runtime = Runtime()
        runtime.add("ann")
        yield runtime
        return
    async with cloned_database(postgres_server, [MIGRATIONS]) as database:
        runtime = Runtime(records=PostgresRecords(database))
        runtime.add("ann")
        yield runtime


def _on(channel: str, report: DeliveryReport) -> Any:
    """Only this channel answers so."""
    return lambda left: report if left.channel == channel else DeliveryReport(status="delivered")


async def test_what_is_due_leaves_and_what_is_not_waits(runtime: Runtime) -> None:
    runtime.add("bob", quietHours=_LUNCH)
    result = await runtime.send("ann", "bob")

    await runtime.run_for(minutes=1)
    assert runtime.deliveries() == [("ann", "telegram", NOON)]
    await runtime.run_for(hours=3)

    assert runtime.deliveries()[1:] == [("bob", "telegram", NOON + timedelta(hours=2))]
    assert (await runtime.work(result, "bob")).state is MessageState.DELIVERED


async def test_an_opt_out_after_the_call_is_honoured(runtime: Runtime) -> None:
    runtime.preferences[person_id("ann")] = {"quietHours": _LUNCH}
    result = await runtime.send("ann")
    runtime.preferences[person_id("ann")] = {"notifications": {"matrix": {"*": {"telegram": False, "email": False}}}}

    await runtime.run_for(hours=3)

    assert runtime.left == []
    work = await runtime.work(result, "ann")
    assert (work.state, work.reason) == (MessageState.BLOCKED, "no-channel")


async def test_a_permission_that_was_revoked_after_the_call_is_honoured(runtime: Runtime) -> None:
    runtime.preferences[person_id("ann")] = {"quietHours": _LUNCH}
    result = await runtime.send("ann")
    runtime.permissions["billing"] = frozenset()

    await runtime.run_for(hours=3)

    assert (runtime.left, (await runtime.work(result, "ann")).reason) == ([], "sender-permission")


async def test_quiet_hours_that_were_set_after_the_call_hold(runtime: Runtime) -> None:
    runtime.preferences[person_id("ann")] = {"quietHours": _LUNCH}
    await runtime.send("ann")
    runtime.preferences[person_id("ann")] = {
        "quietHours": [_LUNCH, _LUNCH | {"start_time": "14:00", "end_time": "16:30"}]
    }

    await runtime.run_for(hours=6)

    assert runtime.deliveries() == [("ann", "telegram", NOON + timedelta(hours=4, minutes=30))]


async def test_a_failure_is_retried_by_the_policy_in_the_payload_and_then_fails_over(runtime: Runtime) -> None:
    runtime.answer = _on("telegram", _FAILS)
    policy = {
        "retry": {"max_attempts": 3, "backoff_strategy": "linear", "initial_delay_seconds": 10},
        "metadata": {"linear_increment_seconds": 5},
    }
    result = await runtime.send("ann", delivery_policy=policy)
    [entry] = await runtime.queue.peek()
    assert entry.payload["retry_policy"]["backoff_strategy"] == "linear"

    await runtime.run_for(hours=1)

    assert [(channel, (at - NOON).total_seconds()) for _, channel, at in runtime.deliveries()] == [
        ("telegram", 0),
        ("telegram", 10),
        ("telegram", 25),
        ("email", 25),
    ]
    work = await runtime.work(result, "ann")
    assert (work.state, work.channel, work.failed_channels) == (MessageState.DELIVERED, "email", ("telegram",))


async def test_none_is_one_attempt(runtime: Runtime) -> None:
    runtime.answer = lambda _left: _FAILS
    result = await runtime.send("ann", delivery_policy={"retry": {"backoff_strategy": "none", "max_attempts": 5}})

    await runtime.run_for(hours=1)

    assert [(channel, at) for _, channel, at in runtime.deliveries()] == [("telegram", NOON), ("email", NOON)]
    work = await runtime.work(result, "ann")
    assert (work.state, work.reason) == (MessageState.DEAD_LETTERED, "undeliverable")
    assert (await runtime.queue.stats(now=runtime.clock.now())).dead_lettered == 1


async def test_a_permanent_failure_fails_over_at_once(runtime: Runtime) -> None:
    runtime.answer = _on("telegram", _REFUSED)

    await runtime.send("ann")
    await runtime.run_for(seconds=1)

    assert runtime.deliveries() == [("ann", "telegram", NOON), ("ann", "email", NOON)]


async def test_failover_goes_only_where_the_person_allows_it(runtime: Runtime) -> None:
    runtime.add("bob", notifications={"matrix": {"message": {"email": False}}})
    runtime.answer = _on("telegram", _REFUSED)

    result = await runtime.send("bob")
    await runtime.run_for(hours=1)

    assert runtime.deliveries() == [("bob", "telegram", NOON)]
    assert (await runtime.work(result, "bob")).state is MessageState.DEAD_LETTERED


@pytest.mark.parametrize("report", [_FAILS, _REFUSED], ids=["a retry", "a fallback"])
async def test_neither_a_retry_nor_a_fallback_lands_in_quiet_hours(runtime: Runtime, report: DeliveryReport) -> None:
    runtime.clock.advance(9 * 3600 + 59 * 60 + 30)  # half a minute before the night

    def answer(left: Left) -> DeliveryReport:
        if left.channel == "telegram":
            runtime.clock.advance(40)  # the provider takes its time
            return report
        return DeliveryReport(status="delivered")

    runtime.answer = answer
    runtime.add("bob", quietHours=_NIGHT)

    await runtime.send("bob")
    await runtime.run_for(hours=12)

    [first, *others] = runtime.deliveries()
    assert first[2].hour == 21
    assert others
    assert all(at >= datetime(2026, 6, 11, 7, 0, tzinfo=UTC) for _, _, at in others)


async def test_the_throttle_reschedules_instead_of_dropping(runtime: Runtime) -> None:
    policy = {"throttling": {"max_per_minute": 2, "max_per_hour": 3, "max_per_day": 4}}
    for _ in range(5):
        await runtime.send("ann", delivery_policy=policy)

    await runtime.run_for(hours=30)

    waits = [at - NOON for _, _, at in runtime.deliveries()]
    assert waits == [timedelta(0), timedelta(0), timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)]


async def test_each_channel_has_its_own_throttle(runtime: Runtime) -> None:
    policy = {"throttling": {"max_per_minute": 1}}
    await runtime.send("ann", delivery_policy=policy)
    runtime.preferences[person_id("ann")] = {"notifications": {"matrix": {"other": {"email": True}}}}
    await runtime.send("ann", delivery_policy=policy, event_type="other")

    await runtime.until_idle()

    assert {channel for _, channel, _ in runtime.deliveries()} == {"telegram", "email"}


async def test_nothing_leaves_after_not_after(runtime: Runtime) -> None:
    runtime.answer = lambda _left: _FAILS
    result = await runtime.send("ann", not_after=(NOON + timedelta(minutes=2)).isoformat())

    await runtime.run_for(hours=1)

    assert all(at < NOON + timedelta(minutes=2) for _, _, at in runtime.deliveries())
    assert (await runtime.work(result, "ann")).state in (MessageState.EXPIRED, MessageState.DEAD_LETTERED)


async def test_a_delivery_that_messenger_goes_on_with_is_asked_for_and_not_sent_again(runtime: Runtime) -> None:
    delivery = uuid4()
    runtime.answer = lambda _left: DeliveryReport(status="awaiting_retry", delivery_id=delivery)
    runtime.standing = DeliveryReport(status="in_progress", delivery_id=delivery)
    result = await runtime.send("ann")
    await runtime.run_for(minutes=1)
    assert (await runtime.work(result, "ann")).state is MessageState.SENDING

    runtime.standing = DeliveryReport(status="delivered", delivery_id=delivery)
    await runtime.run_for(minutes=5)

    assert len(runtime.left) == 1
    assert set(runtime.asked) == {delivery}
    assert (await runtime.work(result, "ann")).state is MessageState.DELIVERED


@pytest.mark.parametrize("error", ["timeout", "target_unavailable", "internal_error"])
async def test_a_lost_answer_is_asked_for_under_the_same_key_and_on_the_same_channel(
    runtime: Runtime, error: str
) -> None:
    lost = DeliveryReport(status="refused", error_class=error, error="no answer")
    runtime.answer = lambda _left: lost if len(runtime.left) < 2 else DeliveryReport(status="delivered")
    result = await runtime.send("ann")
    await runtime.run_for(seconds=1)
    # Another channel is preferred now; it could bring the message a second time.
    runtime.preferences[person_id("ann")] = {"notifications": {"matrix": {"message": {"email": True}}}}

    await runtime.run_for(minutes=5)

    assert {(left.channel, left.work.sends) for left in runtime.left} == {("telegram", 1)}
    assert (await runtime.work(result, "ann")).state is MessageState.DELIVERED


async def test_a_lost_answer_is_not_asked_for_in_quiet_hours_nor_after_an_opt_out(runtime: Runtime) -> None:
    lost = DeliveryReport(status="refused", error_class="timeout", error="no answer")
    runtime.answer = lambda left: lost if left.at == NOON else DeliveryReport(status="delivered")
    runtime.add("bob")
    quiet, out = await runtime.send("ann"), await runtime.send("bob")
    await runtime.until_idle()
    runtime.preferences[person_id("ann")] = {"quietHours": _LUNCH}
    runtime.preferences[person_id("bob")] = {"notifications": {"matrix": {"message": {"telegram": False}}}}

    await runtime.run_for(hours=3)

    assert [(name, at) for name, _, at in runtime.deliveries()[2:]] == [("ann", NOON + timedelta(hours=2))]
    assert (await runtime.work(quiet, "ann")).state is MessageState.DELIVERED
    assert (await runtime.work(out, "bob")).state is MessageState.BLOCKED


async def test_an_overloaded_messenger_costs_no_attempt(runtime: Runtime) -> None:
    busy = DeliveryReport(status="refused", error_class="overload_rejected", error="busy", retry_after=30.0)
    runtime.answer = lambda _left: busy if len(runtime.left) < 5 else DeliveryReport(status="delivered")

    result = await runtime.send("ann")
    await runtime.run_for(minutes=5)

    assert [(at - NOON).total_seconds() for _, _, at in runtime.deliveries()] == [0, 30, 60, 90, 120, 150]
    assert (await runtime.work(result, "ann")).state is MessageState.DELIVERED


async def test_a_message_whose_workers_die_becomes_a_dead_letter(runtime: Runtime) -> None:
    result = await runtime.send("ann")
    for _ in range(MOST_EXPIRATIONS):
        assert await runtime.queue.dequeue(now=runtime.clock.now(), worker="doomed")
        runtime.clock.advance(121)

    await runtime.until_idle()

    assert (runtime.left, (await runtime.work(result, "ann")).reason) == ([], "quarantined")


async def test_urgent_goes_before_low(runtime: Runtime) -> None:
    for priority in ("low", "normal", "urgent", "high"):
        await runtime.send("ann", priority=priority)

    for _ in range(4):
        [leased] = await runtime.queue.dequeue(now=runtime.clock.now(), worker="x")
        await runtime.worker._work_on(leased)

    assert [left.work.document.priority for left in runtime.left] == ["urgent", "high", "normal", "low"]


async def test_a_mute_holds_and_an_early_end_releases(runtime: Runtime) -> None:
    id = person_id("ann")
    runtime.preferences[id] = {"mutes": [{"until": (NOON + timedelta(hours=5)).isoformat()}]}
    await runtime.send("ann")
    await runtime.run_for(hours=1)
    assert runtime.left == []

    runtime.preferences[id] = {}
    held = await runtime.records.held(id, now=runtime.clock.now())
    await runtime.queue.reschedule(held, scheduled_at=runtime.clock.now())
    await runtime.until_idle()

    assert [at for _, _, at in runtime.deliveries()] == [NOON + timedelta(hours=1)]


async def test_a_snooze_of_one_event_type_holds_no_other(runtime: Runtime) -> None:
    until = (NOON + timedelta(hours=5)).isoformat()
    runtime.preferences[person_id("ann")] = {"mutes": [{"until": until, "event": "invoice"}]}
    await runtime.send("ann", event_type="invoice")
    await runtime.send("ann", event_type="alarm")

    await runtime.until_idle()

    assert [left.work.document.event for left in runtime.left] == ["alarm"]


async def test_a_critical_event_type_passes_quiet_hours_and_mutes_but_no_opt_out(runtime: Runtime) -> None:
    runtime.defaults["critical_events"] = ["fire"]
    runtime.preferences[person_id("ann")] = {
        "quietHours": _LUNCH,
        "mutes": [{"until": (NOON + timedelta(hours=5)).isoformat()}],
        "notifications": {"matrix": {"fire": {"telegram": False}}},
    }

    result = await runtime.send("ann", event_type="fire")
    await runtime.until_idle()

    assert runtime.deliveries() == [("ann", "email", NOON)]
    assert "fire is a critical event type" in result.queued[0].detail


async def test_a_digest_carries_its_messages_once(runtime: Runtime) -> None:
    runtime.preferences[person_id("ann")] = {"notifications": {"digests": {"news": 3600}}}
    results = []
    for number in range(3):
        results.append(await runtime.send("ann", event_type="news", body=f"News {number}"))
        await runtime.run_for(minutes=10)
    alone = await runtime.send("ann", body="not news")
    await runtime.run_for(hours=3)

    assert [(left.at - NOON, left.work.is_digest) for left in runtime.left] == [
        (timedelta(minutes=30), False),
        (timedelta(hours=1), True),
    ]
    members = await runtime.records.members(runtime.left[1].work.message_id)
    assert [work.document.body for work in members] == ["News 0", "News 1", "News 2"]
    assert {(await runtime.work(result, "ann")).state for result in results} == {MessageState.DIGESTED}
    assert (await runtime.work(alone, "ann")).state is MessageState.DELIVERED


async def test_a_message_after_its_digest_left_goes_into_the_next(runtime: Runtime) -> None:
    runtime.preferences[person_id("ann")] = {"notifications": {"digests": {"news": 3600}}}
    await runtime.send("ann", event_type="news", body="first")
    await runtime.run_for(minutes=60)
    await runtime.send("ann", event_type="news", body="second")
    await runtime.run_for(hours=3)

    assert [left.at - NOON for left in runtime.left] == [timedelta(hours=1), timedelta(hours=2)]


async def test_an_urgent_message_waits_for_no_digest(runtime: Runtime) -> None:
    runtime.preferences[person_id("ann")] = {"notifications": {"digests": {"news": 3600}}}
    await runtime.send("ann", event_type="news", priority="urgent")
    await runtime.until_idle()

    assert [left.work.is_digest for left in runtime.left] == [False]


async def test_an_important_message_is_repeated_until_it_is_acknowledged(runtime: Runtime) -> None:
    policy = {"repeat": {"every_seconds": 600, "max_times": 5}}
    result = await runtime.send("ann", delivery_policy=policy)
    await runtime.run_for(minutes=25)
    assert len(runtime.left) == 3

    key = (await runtime.work(result, "ann")).key
    await runtime.records.acknowledge(person_id("ann"), None, now=runtime.clock.now())
    await runtime.run_for(hours=5)

    assert len(runtime.left) == 3
    assert (await runtime.records.load([key]))[key].state is MessageState.DELIVERED
    assert {left.work.sends for left in runtime.left} == {1, 2, 3}


async def test_repeats_end_by_themselves(runtime: Runtime) -> None:
    result = await runtime.send("ann", delivery_policy={"repeat": {"every_seconds": 600, "max_times": 2}})

    await runtime.run_for(hours=5)

    assert len(runtime.left) == 3
    assert (await runtime.work(result, "ann")).state is MessageState.DELIVERED


async def test_rows_that_another_process_planned_are_fed_into_the_queue(runtime: Runtime) -> None:
    document = runtime.message("ann")
    _, recipients, given = await runtime.service.prepare(document)

    from butlers.outbound.planning import plan

    await runtime.records.accept(
        document, [recipients[0].id], lambda _ids, booked: plan(recipients, given, booked=booked), now=NOON
    )
    assert (await runtime.queue.stats(now=NOON)).queued == 0

    await runtime.run_for(minutes=1)

    assert runtime.deliveries() == [("ann", "telegram", NOON)]
    key = dedupe_key(UUID(str(document.id)), person_id("ann"))
    assert (await runtime.records.load([key]))[key].state is MessageState.DELIVERED
