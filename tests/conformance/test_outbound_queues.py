"""Every adapter of the outbound queue keeps the promises of `butlers.outbound.queue`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from butlers.errors import LeaseLost, ValidationError
from butlers.outbound.memory_queue import MemoryQueue
from butlers.outbound.queue import (
    MOST_DEAD_LETTERS,
    QueueAdapter,
    QueueStats,
)
from butlers.outbound.values import Priority
from butlers.storage.embedded import EmbeddedPostgres
from tests.conformance.outbound_queues import ADAPTERS, EMPTY, LEASE_S, START, at, keys, message, opened, take, take_one
from tests.redis_server import RedisServer


@pytest.fixture(params=ADAPTERS)
async def queue(
    request: pytest.FixtureRequest, postgres_server: EmbeddedPostgres, redis_server: RedisServer
) -> AsyncIterator[QueueAdapter]:
    async with opened(request.param, postgres_server, redis_server) as queue:
        yield queue


async def everything(queue: QueueAdapter, now: float) -> tuple[Any, ...]:
    """What can be seen of a queue without changing it."""
    return await queue.stats(now=at(now)), await queue.peek(100), await queue.dead_letters(100)


# --- the contract: enqueue, dequeue, ack, nack, peek, stats ----------------------------------------------------------


@pytest.mark.scenario("D4-018")
async def test_one_contract_for_every_adapter(queue: QueueAdapter):
    first, second = message("a"), message("b", 1)
    assert await queue.enqueue([first, second]) == {"a", "b"}
    assert await queue.peek() == [first, second]
    assert await queue.stats(now=at(2)) == QueueStats(
        queued=2,
        in_flight=0,
        acknowledged=0,
        dead_lettered=0,
        oldest_scheduled_at=at(0),
        next_available_at=at(2),
    )
    a, b = await take(queue, 2)
    assert (a.message.key, a.message.payload, a.message.attempts) == ("a", {"to": "a"}, 1)
    assert (a.lease_expires_at, a.expirations) == (at(2 + LEASE_S), 0)
    assert await take(queue, 2) == []
    await queue.ack(a)
    await queue.nack(b, now=at(3), delay=timedelta(seconds=30))
    assert await queue.peek() == [message("b", 33, attempts=1)]
    assert await queue.stats(now=at(3)) == QueueStats(
        queued=1,
        in_flight=0,
        acknowledged=1,
        dead_lettered=0,
        oldest_scheduled_at=at(33),
        next_available_at=at(33),
    )


@pytest.mark.parametrize("queue", ["memory"], indirect=True)
@pytest.mark.scenario("D4-016")
async def test_the_adapter_in_memory_needs_no_store_and_shares_nothing(queue: QueueAdapter):
    """Sorted by time, what is taken is in flight, and another queue of the process sees none of it."""
    other = MemoryQueue()
    await queue.enqueue([message("late", 5), message("early", 1), message("middle", 3)])
    assert [one.key for one in await queue.peek()] == ["early", "middle", "late"]
    assert keys(await take(queue, 3)) == ["early", "middle"]
    stats = await queue.stats(now=at(3))
    assert (stats.queued, stats.in_flight) == (1, 2)
    assert await other.stats(now=at(3)) == EMPTY


# --- order -----------------------------------------------------------------------------------------------------------


async def test_entries_of_one_moment_leave_in_the_order_of_enqueueing(queue: QueueAdapter):
    names = [f"k{number}" for number in (5, 3, 9, 1, 7, 2, 8)]
    await queue.enqueue([message(name) for name in names[:4]])
    await queue.enqueue([message(name) for name in names[4:]])
    assert keys(await take(queue, limit=3)) == names[:3]
    assert keys(await take(queue)) == names[3:]


async def test_an_earlier_schedule_leaves_first_and_nothing_leaves_before_its_time(queue: QueueAdapter):
    await queue.enqueue([message("c", 3), message("a", 1), message("b", 2)])
    assert await take(queue, 0.999999) == []
    assert keys(await take(queue, 2)) == ["a", "b"]
    assert keys(await take(queue, 3)) == ["c"]


async def test_a_microsecond_counts(queue: QueueAdapter):
    soon = START + timedelta(microseconds=1)
    await queue.enqueue([message("second", scheduled_at=soon), message("first")])
    assert keys(await queue.dequeue(now=START, limit=5, worker="one")) == ["first"]
    assert keys(await queue.dequeue(now=soon, limit=5, worker="one")) == ["second"]


async def test_priority_comes_before_schedule_among_what_is_due(queue: QueueAdapter):
    await queue.enqueue(
        [
            message("low", 0, priority=Priority.LOW),
            message("normal", 1),
            message("high", 2, priority=Priority.HIGH),
            message("urgent", 3, priority=Priority.URGENT),
            message("urgent later", 50, priority=Priority.URGENT),
        ]
    )
    assert keys(await take(queue, 3, limit=2)) == ["urgent", "high"]
    assert keys(await take(queue, 3)) == ["normal", "low"]
    assert keys(await take(queue, 50 - 0.5)) == ["urgent", "high", "normal", "low"], "their leases have run out"


async def test_a_limit_of_nothing_takes_nothing(queue: QueueAdapter):
    await queue.enqueue([message("a")])
    assert await take(queue, limit=0) == []
    assert await queue.peek(0) == []
    assert await queue.dead_letters(0) == []
    assert keys(await take(queue)) == ["a"]


# --- one entry for a key ---------------------------------------------------------------------------------------------


async def test_a_key_that_is_queued_or_in_flight_is_not_taken_again(queue: QueueAdapter):
    assert await queue.enqueue([message("a"), message("a", 5), message("b")]) == {"a", "b"}
    assert await queue.enqueue([message("a", 7), message("c")]) == {"c"}
    leased = await take_one(queue)
    assert await queue.enqueue([message("a", priority=Priority.URGENT)]) == frozenset()
    assert keys(await take(queue)) == ["b", "c"]
    await queue.ack(leased)
    assert await queue.enqueue([message("a", 1)]) == {"a"}
    again = await take_one(queue, 1)
    assert (again.message.key, again.message.attempts) == ("a", 1)


async def test_the_lease_of_an_earlier_life_of_a_key_is_worth_nothing(queue: QueueAdapter):
    await queue.enqueue([message("a")])
    old = await take_one(queue)
    await queue.ack(old)
    await queue.enqueue([message("a")])
    new = await take_one(queue)
    for settled in (queue.ack(old), queue.nack(old, now=at(0)), queue.dead_letter(old, "late")):
        with pytest.raises(LeaseLost):
            await settled
    await queue.ack(new)
    assert (await queue.stats(now=at(0))).acknowledged == 2


async def test_empty_calls_do_nothing(queue: QueueAdapter):
    assert await queue.enqueue([]) == frozenset()
    assert await queue.reschedule([], scheduled_at=at(0)) == 0
    assert await queue.remove([]) == 0
    assert await queue.peek() == []
    assert await queue.dead_letters() == []
    assert await take(queue) == []
    assert await queue.stats(now=at(0)) == EMPTY


# --- leases ----------------------------------------------------------------------------------------------------------


async def test_an_entry_whose_lease_ran_out_is_handed_out_again_with_another_receipt(queue: QueueAdapter):
    await queue.enqueue([message("a")])
    dead = await take_one(queue)
    assert await take(queue, LEASE_S - 0.001, worker="two") == []
    (taken,) = await take(queue, LEASE_S, worker="two")
    assert taken.receipt != dead.receipt
    assert (taken.message.attempts, taken.expirations) == (2, 1)
    assert taken.lease_expires_at == at(2 * LEASE_S)
    assert taken.message.scheduled_at == at(0)
    (third,) = await take(queue, 2 * LEASE_S, worker="three")
    assert (third.message.attempts, third.expirations) == (3, 2)


async def test_a_worker_that_was_replaced_changes_nothing(queue: QueueAdapter):
    await queue.enqueue([message("a"), message("b", 100)])
    late = await take_one(queue)
    taken = await take_one(queue, LEASE_S)
    before = await everything(queue, LEASE_S)
    now = at(LEASE_S)
    for call in (
        lambda: queue.ack(late),
        lambda: queue.nack(late, now=now, delay=timedelta(seconds=1), counted=False),
        lambda: queue.dead_letter(late, "late"),
    ):
        with pytest.raises(LeaseLost):
            await call()
        assert await everything(queue, LEASE_S) == before
    await queue.ack(taken)


async def test_a_late_worker_that_was_not_replaced_still_settles(queue: QueueAdapter):
    await queue.enqueue([message("a"), message("b")])
    a, b = await take(queue)
    await queue.ack(a)
    await queue.nack(b, now=at(5 * LEASE_S))
    (again,) = await take(queue, 5 * LEASE_S)
    assert (again.message.key, again.message.attempts, again.expirations) == ("b", 2, 0)


async def test_a_call_that_settled_an_entry_cannot_be_repeated(queue: QueueAdapter):
    await queue.enqueue([message("a"), message("b"), message("c")])
    a, b, c = await take(queue)
    await queue.ack(a)
    await queue.nack(b, now=at(0), delay=timedelta(seconds=60))
    await queue.dead_letter(c, "no")
    before = await everything(queue, 0)
    for leased in (a, b, c):
        with pytest.raises(LeaseLost):
            await queue.ack(leased)
        with pytest.raises(LeaseLost):
            await queue.nack(leased, now=at(0))
    assert await everything(queue, 0) == before


async def test_an_entry_of_a_dead_worker_lines_up_where_its_lease_ended(queue: QueueAdapter):
    await queue.enqueue([message("poison")])
    await take_one(queue)
    await queue.enqueue([message("before", LEASE_S - 1), message("after", LEASE_S + 1)])
    assert keys(await take(queue, LEASE_S + 2)) == ["before", "poison", "after"]


async def test_many_abandoned_entries_do_not_hide_an_abandoned_one_of_higher_priority(queue: QueueAdapter):
    await queue.enqueue([message(f"low{number}", priority=Priority.LOW) for number in range(1000)])
    assert len(await take(queue, 0, limit=1000)) == 1000
    await queue.enqueue([message("urgent", priority=Priority.URGENT)])
    assert keys(await take(queue, 1)) == ["urgent"], "the last lease to run out"
    await queue.enqueue([message(f"normal{number}", 2) for number in range(50)])
    found = keys(await take(queue, 10 * LEASE_S, limit=52))
    assert found == ["urgent", *(f"normal{number}" for number in range(50)), "low0"]


@pytest.mark.parametrize("receipt", ["", "0", "018f0000-0000-7000-8000-000000000000", "' or 1=1", "\ud800"])
async def test_a_receipt_that_was_never_given_is_refused(queue: QueueAdapter, receipt: str):
    await queue.enqueue([message("a")])
    leased = await take_one(queue)
    with pytest.raises(LeaseLost):
        await queue.ack(replace(leased, receipt=receipt))
    await queue.ack(leased)


# --- nack and dead letters -------------------------------------------------------------------------------------------


async def test_nack_queues_again_now_later_or_at_a_time(queue: QueueAdapter):
    await queue.enqueue([message("a"), message("b"), message("c")])
    a, b, c = await take(queue)
    await queue.nack(a, now=at(5))
    await queue.nack(b, now=at(5), delay=timedelta(seconds=60))
    await queue.nack(c, now=at(5), scheduled_at=at(7))
    assert [(one.key, one.scheduled_at) for one in await queue.peek()] == [("a", at(5)), ("c", at(7)), ("b", at(65))]
    assert keys(await take(queue, 5)) == ["a"]
    assert keys(await take(queue, 7)) == ["c"]
    assert keys(await take(queue, 65)) == ["a", "c", "b"]


async def test_only_a_counted_attempt_stays_counted(queue: QueueAdapter):
    await queue.enqueue([message("a")])
    for expected in (1, 2):
        leased = await take_one(queue)
        assert leased.message.attempts == expected
        await queue.nack(leased, now=at(0))
    for _ in range(3):
        leased = await take_one(queue)
        assert leased.message.attempts == 3
        await queue.nack(leased, now=at(0), counted=False)
    assert [one.attempts for one in await queue.peek()] == [2]


async def test_attempts_of_before_are_carried_on(queue: QueueAdapter):
    await queue.enqueue([message("a", attempts=4)])
    assert (await take_one(queue)).message.attempts == 5


async def test_a_nack_that_contradicts_itself_is_refused_and_the_lease_stays(queue: QueueAdapter):
    await queue.enqueue([message("a")])
    leased = await take_one(queue)
    for options in (
        {"delay": timedelta(seconds=-1)},
        {"delay": timedelta(seconds=1), "scheduled_at": at(1)},
        {"scheduled_at": datetime(2026, 1, 1)},  # noqa: DTZ001 - without a zone, that is the point
    ):
        with pytest.raises(ValidationError):
            await queue.nack(leased, now=at(0), **options)
    await queue.ack(leased)


async def test_dead_letters_leave_the_queue_and_are_shown_with_their_reason(queue: QueueAdapter):
    await queue.enqueue([message("a"), message("b")])
    a, b = await take(queue)
    await queue.dead_letter(a, "no such address")
    await queue.dead_letter(b, "5 attempts \0 \ud800")
    newest, oldest = await queue.dead_letters()
    assert (oldest.message.key, oldest.message.payload, oldest.reason) == ("a", {"to": "a"}, "no such address")
    assert (newest.message.attempts, newest.reason) == (1, "5 attempts  ?")
    stats = await queue.stats(now=at(0))
    assert (stats.queued, stats.in_flight, stats.acknowledged, stats.dead_lettered) == (0, 0, 0, 2)
    assert await take(queue, 10 * LEASE_S) == []
    assert await queue.enqueue([message("a")]) == {"a"}, "its key may come again"


async def test_the_newest_dead_letters_are_shown_and_all_are_counted(queue: QueueAdapter):
    number = MOST_DEAD_LETTERS + 50
    await queue.enqueue([message(f"k{index}") for index in range(number)])
    for leased in await take(queue, limit=number):
        await queue.dead_letter(leased, "no")
    shown = await queue.dead_letters(10 * MOST_DEAD_LETTERS)
    assert [one.message.key for one in shown] == [f"k{index}" for index in reversed(range(50, number))]
    assert (await queue.stats(now=at(0))).dead_lettered == number


# --- reschedule, remove, peek ----------------------------------------------------------------------------------------


async def test_reschedule_moves_queued_entries_to_an_earlier_time_only(queue: QueueAdapter):
    await queue.enqueue([message("held"), message("early", 5), message("late", 50), message("same", 20)])
    held = await take_one(queue)
    names = ["held", "early", "late", "same", "unknown", "late", "nul\0", "\ud800", ""]
    assert await queue.reschedule(names, scheduled_at=at(20)) == 1
    assert [(one.key, one.scheduled_at) for one in await queue.peek()] == [
        ("early", at(5)),
        ("late", at(20)),
        ("same", at(20)),
    ]
    assert keys(await take(queue, LEASE_S - 1)) == ["early"]
    await queue.ack(held)
    assert keys(await take(queue, 20)) == ["early", "late", "same"]


async def test_remove_drops_queued_entries_only(queue: QueueAdapter):
    await queue.enqueue([message("held"), message("a", 5), message("b", 6)])
    held = await take_one(queue)
    assert await queue.remove(["held", "a", "unknown", "a", "nul\0", "\ud800", ""]) == 1
    assert [one.key for one in await queue.peek()] == ["b"]
    (again,) = [one for one in await take(queue, LEASE_S) if one.message.key == "held"]
    assert again.expirations == 1
    assert held.receipt != again.receipt
    assert await queue.enqueue([message("a", 5)]) == {"a"}


async def test_peek_takes_nothing_and_shows_what_is_not_due(queue: QueueAdapter):
    await queue.enqueue([message("a", 50), message("b", 20), message("c", 90, priority=Priority.HIGH)])
    for _ in range(2):
        assert [one.key for one in await queue.peek()] == ["c", "b", "a"]
    assert [one.key for one in await queue.peek(2)] == ["c", "b"]
    assert (await queue.stats(now=at(0))).queued == 3
    assert keys(await take(queue, 90)) == ["c", "b", "a"]


async def test_statistics_say_when_something_is_available(queue: QueueAdapter):
    await queue.enqueue([message("a", 40), message("b", 30, priority=Priority.LOW)])
    stats = await queue.stats(now=at(10))
    assert (stats.oldest_scheduled_at, stats.next_available_at) == (at(30), at(30))
    await take(queue, 45)
    stats = await queue.stats(now=at(46))
    assert (stats.queued, stats.in_flight) == (0, 2)
    assert (stats.oldest_scheduled_at, stats.next_available_at) == (None, at(45 + LEASE_S))
    assert (await queue.stats(now=at(500))).next_available_at == at(500)


# --- many at once ----------------------------------------------------------------------------------------------------


async def test_of_many_workers_each_entry_has_one(queue: QueueAdapter):
    names = {f"k{number}" for number in range(300)}
    await queue.enqueue([message(name) for name in names])

    async def work(worker: str) -> list[str]:
        done: list[str] = []
        while found := await take(queue, limit=3, worker=worker):
            await asyncio.gather(*(queue.ack(one) for one in found))
            done += keys(found)
        return done

    done = [name for some in await asyncio.gather(*(work(f"w{number}") for number in range(12))) for name in some]
    assert sorted(done) == sorted(names)
    stats = await queue.stats(now=at(0))
    assert (stats.queued, stats.in_flight, stats.acknowledged) == (0, 0, 300)


async def test_of_many_that_enqueue_a_key_one_does(queue: QueueAdapter):
    batches = [[message(f"k{(start + index) % 20}") for index in range(20)] for start in range(20)]
    new = await asyncio.gather(*(queue.enqueue(batch) for batch in batches))
    assert sorted(key for some in new for key in some) == sorted(f"k{number}" for number in range(20))
    assert (await queue.stats(now=at(0))).queued == 20


async def test_a_worker_that_dies_in_the_middle_of_its_batch_loses_nothing(queue: QueueAdapter):
    await queue.enqueue([message(f"k{number}") for number in range(10)])
    done: list[str] = []

    async def work() -> None:
        for leased in await take(queue, worker="dies"):
            await queue.ack(leased)
            done.append(leased.message.key)
            if len(done) == 4:
                raise RuntimeError("the worker dies")

    with pytest.raises(RuntimeError):
        await work()
    rest = await take(queue, LEASE_S, worker="two")
    assert sorted(done + keys(rest)) == sorted(f"k{number}" for number in range(10))
    assert {one.expirations for one in rest} == {1}
