"""Races, crashes and odd input: nothing leaves twice, too early, too late or for ever, and nothing is lost."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from butlers.butler.identity import Caller
from butlers.contracts.message_state import MessageState
from butlers.errors import Conflict, TargetUnavailable, ValidationError
from butlers.operations.messages import SomeArguments
from butlers.operations.operation import Role
from butlers.outbound import MIGRATIONS
from butlers.outbound.delivery import DeliveryReport
from butlers.outbound.digests import LONGEST_DIGEST, digest_text
from butlers.outbound.history import MessageHistory
from butlers.outbound.memory_queue import MemoryQueue
from butlers.outbound.postgres_records import PostgresRecords
from butlers.outbound.queue import QueueMessage
from butlers.outbound.throttle import Throttling
from butlers.outbound.tools import MessageTools
from butlers.outbound.values import Queued, dedupe_key
from butlers.outbound.worker import Feeder
from butlers.storage.database import Database
from butlers.storage.embedded import EmbeddedPostgres
from tests.database import cloned_database
from tests.unit.outbound.runtime import NOON, Runtime, person_id

_OPERATOR = Caller(name="operator", role=Role.OPERATOR)
_REFUSED = DeliveryReport(status="failed", error_class="target_unavailable", error="blocked by the user")
_DAY_DIGEST = {"digest_seconds": 86_400}


@pytest.fixture
async def database(postgres_server: EmbeddedPostgres) -> AsyncIterator[Database]:
    async with cloned_database(postgres_server, [MIGRATIONS]) as database:
        yield database


@pytest.fixture
async def runtime(database: Database) -> Runtime:
    runtime = Runtime(records=PostgresRecords(database))
    runtime.add("ann")
    return runtime


@pytest.fixture
def tools(runtime: Runtime, database: Database) -> MessageTools:
    people: Any = runtime
    return MessageTools(
        service=runtime.service,
        explainer=runtime.explainer,
        records=runtime.records,
        history=MessageHistory(database),
        queue=runtime.queue,
        people=people,
        clock=runtime.clock,
        new_id=uuid4,
        wake=lambda: None,
    )


async def test_an_attempt_that_began_meanwhile_counts_against_the_throttle(runtime: Runtime) -> None:
    first, second = await runtime.send("ann"), await runtime.send("ann")
    one, other = await runtime.work(first, "ann"), await runtime.work(second, "ann")
    limit = Throttling(max_per_minute=1)

    # The other process read its clock later and came first.
    begun = await runtime.records.begin_attempt(other, "telegram", limit, now=NOON + timedelta(milliseconds=20))
    late = await runtime.records.begin_attempt(one, "telegram", limit, now=NOON)

    assert begun.state is MessageState.SENDING
    assert late == NOON + timedelta(minutes=1, milliseconds=20)


async def test_throttled_messages_wait_each_at_its_own_place(runtime: Runtime, database: Database) -> None:
    for _ in range(40):
        await runtime.send("ann", delivery_policy={"throttling": {"max_per_minute": 1}})

    await runtime.run_for(hours=2)

    assert [at - NOON for _, _, at in runtime.deliveries()] == [timedelta(minutes=n) for n in range(40)]
    assert await database.fetchval("SELECT count(*) FROM outbound.message_events") <= 40 * 3


async def test_a_lost_answer_is_not_asked_for_in_quiet_hours_that_outlast_the_message(runtime: Runtime) -> None:
    runtime.clock.advance((datetime(2026, 6, 10, 21, 59, 50, tzinfo=UTC) - NOON).total_seconds())
    night = {"start_time": "22:00", "end_time": "07:00", "timezone": "UTC"}
    runtime.preferences[person_id("ann")] = {"quietHours": night}
    runtime.answer = lambda _left: DeliveryReport(status="refused", error_class="timeout", error="no answer")

    result = await runtime.send("ann", not_after="2026-06-10T23:00:00Z")
    await runtime.run_for(hours=2)

    work = await runtime.work(result, "ann")
    assert [at.hour for _, _, at in runtime.deliveries()] == [21]
    assert work.state is MessageState.EXPIRED
    assert "whether it left before is not known" in work.detail


async def test_a_passing_fault_while_rendering_is_tried_again(runtime: Runtime) -> None:
    def answer(_left: Any) -> DeliveryReport:
        if runtime.clock.now() < NOON + timedelta(minutes=1):
            raise TargetUnavailable("the database is away", retry_after=1.0)
        return DeliveryReport(status="delivered")

    runtime.answer = answer
    result = await runtime.send("ann")
    await runtime.run_for(minutes=5)

    work = await runtime.work(result, "ann")
    assert (work.state, work.sends) == (MessageState.DELIVERED, 1)


async def test_a_messenger_that_never_answers_is_asked_ever_more_rarely_and_not_for_ever(runtime: Runtime) -> None:
    runtime.answer = lambda _left: DeliveryReport(status="refused", error_class="internal_error", error="broken")
    result = await runtime.send("ann")

    await runtime.run_for(hours=6)
    assert 20 < len(runtime.left) < 120
    runtime.clock.advance(timedelta(days=40).total_seconds())
    await runtime.until_idle()

    assert (await runtime.work(result, "ann")).state is MessageState.EXPIRED


async def test_a_message_goes_alone_when_its_digest_would_be_too_late(runtime: Runtime) -> None:
    fields: dict[str, Any] = {
        "not_after": (NOON + timedelta(minutes=10)).isoformat(),
        "delivery_policy": _DAY_DIGEST,
    }
    await runtime.send("ann", **fields)
    await runtime.run_for(days=2)

    assert [(left.at, left.work.is_digest) for left in runtime.left] == [(NOON, False)]


async def test_what_a_digest_carries_can_be_cancelled_and_an_empty_one_does_not_leave(
    runtime: Runtime, tools: MessageTools
) -> None:
    result = await runtime.send("ann", delivery_policy=_DAY_DIGEST)
    await runtime.run_for(minutes=1)
    assert (await runtime.work(result, "ann")).state is MessageState.DIGESTED

    answer = await tools._cancel(_OPERATOR, SomeArguments(message_id=result.message_id))
    await runtime.run_for(days=2)

    assert answer["changed"] == 1
    assert runtime.left == []


async def test_two_senders_have_two_digests(runtime: Runtime) -> None:
    for sender in ("billing", "travel"):
        await runtime.send("ann", delivery_policy=_DAY_DIGEST, sender_id=sender)
    await runtime.run_for(days=2)

    assert sorted(left.work.document.sender_id for left in runtime.left) == ["billing", "travel"]


def test_a_long_digest_shows_the_beginning_of_each_text() -> None:
    text = digest_text("news", ["x" * 100_000, "short", "y" * 100_000])

    assert len(text) < LONGEST_DIGEST + 1_000
    assert "2. short\n" in text


async def test_a_cancel_beside_a_worker_withdraws_the_rest(runtime: Runtime, tools: MessageTools) -> None:
    names = [f"p{number}" for number in range(6)]
    for name in names:
        runtime.add(name, mutes=[{"until": (NOON + timedelta(hours=1)).isoformat()}])
    result = await runtime.send(*names)
    taken = await runtime.work(result, "p3")
    await runtime.records.begin_attempt(taken, "telegram", Throttling(), now=NOON)

    answer = await tools._cancel(_OPERATOR, SomeArguments(message_id=result.message_id))

    states = [(await runtime.work(result, name)).state for name in names]
    assert answer["changed"] == states.count(MessageState.CANCELLED) == 5
    assert (await runtime.work(result, "p3")).state is MessageState.SENDING


async def test_two_replays_at_once_send_once(runtime: Runtime, tools: MessageTools) -> None:
    runtime.answer = lambda _left: _REFUSED
    result = await runtime.send("ann")
    await runtime.run_for(minutes=1)
    dead = await runtime.work(result, "ann")
    runtime.answer = lambda _left: DeliveryReport(status="delivered")
    before = len(runtime.left)

    assert (await tools._replay(_OPERATOR, SomeArguments(message_id=result.message_id)))["changed"] == 1
    # The second one looked at the dead letter before the first changed it.
    assert await runtime.records.move(dead, MessageState.QUEUED, now=NOON) is None
    with pytest.raises(Conflict, match="no dead letter"):
        await tools._replay(_OPERATOR, SomeArguments(message_id=result.message_id))
    await runtime.until_idle()

    assert len(runtime.left) == before + 1


async def test_a_limit_that_is_null_stays_null(runtime: Runtime) -> None:
    none = {"max_per_minute": None, "max_per_hour": None, "max_per_day": None}
    message = runtime.message("ann", delivery_policy={"throttling": none})
    await runtime.service.send_message(message)

    [work] = (await runtime.records.load([dedupe_key(message.id, person_id("ann"))])).values()
    assert work.document.delivery_policy == message.delivery_policy


async def test_a_change_of_preferences_releases_neither_paced_messages_nor_digests(
    runtime: Runtime, tools: MessageTools
) -> None:
    names = [f"p{number}" for number in range(5)]
    for name in names:
        runtime.add(name)
    await runtime.send(*names, delivery_policy={"pacing": {"max_per_minute": 1}})
    await runtime.send("ann", delivery_policy=_DAY_DIGEST)
    await runtime.until_idle()
    await runtime.feeder.run_once()

    for name in (*names, "ann"):
        await tools.release_held(person_id(name))
    await runtime.until_idle()

    assert len(runtime.left) == 1


async def test_a_crash_after_the_delivery_does_not_end_the_repeats(runtime: Runtime) -> None:
    """Delivered and scheduled again are one change; the worker dies before it tells the queue."""
    await runtime.send("ann", delivery_policy={"repeat": {"every_seconds": 600, "max_times": 2}})
    [leased] = await runtime.queue.dequeue(now=NOON, worker="doomed")
    await runtime.worker._step(leased)
    assert len(runtime.left) == 1

    await runtime.run_for(hours=1)

    assert len(runtime.left) == 3


async def test_a_repeat_of_a_call_gets_its_first_answer_whatever_changed_since(runtime: Runtime) -> None:
    message = runtime.message("ann", not_after=(NOON + timedelta(minutes=10)).isoformat())
    first = await runtime.service.send_message(message)
    await runtime.run_for(hours=1)

    again = await runtime.service.send_message(message)

    assert [(q.recipient_id, q.scheduled_at) for q in again.queued] == [
        (q.recipient_id, q.scheduled_at) for q in first.queued
    ]
    assert len(runtime.left) == 1


async def test_a_recipient_that_is_no_contact_id_is_blocked_and_never_tried_again_and_again(runtime: Runtime) -> None:
    """As an audience file may have it: its own spelling of an id."""
    reference = person_id("ann").upper()
    runtime.people[reference] = runtime.people[person_id("ann")]
    message = runtime.message()
    planned = Queued(recipient_id=reference, channel="telegram", scheduled_at=NOON)
    await runtime.records.accept(message, [reference], lambda _ids, _booked: [planned], now=NOON)
    runtime.answer = lambda _left: _REFUSED

    await runtime.run_for(minutes=30)

    [work] = (await runtime.records.load([dedupe_key(message.id, reference)])).values()
    assert (runtime.left, work.state) == ([], MessageState.BLOCKED)


class _PickyQueue(MemoryQueue):
    async def enqueue(self, messages: Any) -> frozenset[str]:
        if any(message.payload["recipient_id"] == person_id("bad") for message in messages):
            raise ValidationError.of("payload", "is refused")
        return await super().enqueue(messages)


async def test_one_message_that_the_queue_refuses_does_not_hold_up_the_others(runtime: Runtime) -> None:
    runtime.add("bad")
    ids = [person_id("ann"), person_id("bad")]
    message = runtime.message("ann", "bad")
    planned = [Queued(recipient_id=id, channel="telegram", scheduled_at=NOON) for id in ids]
    await runtime.records.accept(message, ids, lambda _ids, _booked: planned, now=NOON)
    queue = _PickyQueue()

    await Feeder(records=runtime.records, queue=queue, clock=runtime.clock).run_once()

    entries: list[QueueMessage] = await queue.peek()
    assert [entry.payload["recipient_id"] for entry in entries] == [person_id("ann")]
    found = await runtime.records.load([dedupe_key(message.id, id) for id in ids])
    assert [found[dedupe_key(message.id, id)].state for id in ids] == [
        MessageState.QUEUED,
        MessageState.DEAD_LETTERED,
    ]


async def test_what_the_queue_lost_is_found_behind_many_that_take_long(runtime: Runtime, database: Database) -> None:
    names = [f"p{number}" for number in range(501)]
    for name in names:
        runtime.add(name)
    result = await runtime.send(*names)
    await database.execute(
        "UPDATE outbound.scheduled_messages SET state = 'sending', delivery_id = gen_random_uuid(),"
        " scheduled_at = $1, updated_at = $1 WHERE recipient_id <> $2",
        NOON - timedelta(hours=5),
        person_id("p500"),
    )
    await database.execute(
        "UPDATE outbound.scheduled_messages SET scheduled_at = $1, updated_at = $1 WHERE recipient_id = $2",
        NOON - timedelta(hours=4),
        person_id("p500"),
    )
    empty = MemoryQueue()
    feeder = Feeder(records=runtime.records, queue=empty, clock=runtime.clock)

    for _ in range(2):
        await feeder.run_once()

    keys = {entry.key for entry in await empty.peek(1_000)}
    assert dedupe_key(result.message_id, person_id("p500")) in keys
