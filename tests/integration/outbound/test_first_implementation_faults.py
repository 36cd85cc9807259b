"""What the first implementation of the runtime got wrong. A test is named after the fault, and shows what is right.

On PostgreSQL records, with the queue on a real Redis where the fault was the queue's.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from uuid import uuid4

import pytest

from butlers.contracts.message_state import MessageState
from butlers.errors import LeaseLost
from butlers.outbound import MIGRATIONS
from butlers.outbound.delivery import DeliveryReport
from butlers.outbound.postgres_records import PostgresRecords
from butlers.outbound.redis_queue import RedisQueue
from butlers.storage.embedded import EmbeddedPostgres
from tests.database import cloned_database
from tests.redis_server import RedisServer
from tests.unit.outbound.runtime import NOON, Runtime, person_id

_LUNCH = {"start_time": "12:00", "end_time": "14:00", "timezone": "UTC"}
_FAILS = DeliveryReport(status="failed", error_class="timeout", error="away", is_retryable=True)


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
async def runtime(postgres_server: EmbeddedPostgres, redis: RedisServer) -> AsyncIterator[Runtime]:
    queue = RedisQueue(redis.url, new_id=uuid4, prefix=f"faults-{uuid4().hex}")
    async with cloned_database(postgres_server, [MIGRATIONS]) as database:
        runtime = Runtime(records=PostgresRecords(database), queue=queue)
        runtime.add("ann")
        yield runtime
    await queue.close()


async def test_no_worker_existed(runtime: Runtime) -> None:
    result = await runtime.send("ann")
    assert runtime.left == []

    await runtime.until_idle()

    assert [(left.name, left.channel) for left in runtime.left] == [("ann", "telegram")]
    assert (await runtime.work(result, "ann")).state is MessageState.DELIVERED


async def test_in_flight_entries_never_expired(runtime: Runtime) -> None:
    result = await runtime.send("ann")
    [dead] = await runtime.queue.dequeue(now=runtime.clock.now(), worker="died")
    assert await runtime.queue.dequeue(now=runtime.clock.now(), worker="other") == []

    runtime.clock.advance(121)
    await runtime.until_idle()

    assert (await runtime.work(result, "ann")).state is MessageState.DELIVERED
    with pytest.raises(LeaseLost):
        await runtime.queue.ack(dead)


async def test_the_redis_dequeue_raced(runtime: Runtime) -> None:
    for number in range(100):
        runtime.add(f"p{number}")
    await runtime.send(*(f"p{number}" for number in range(100)))

    batches = await asyncio.gather(
        *(runtime.queue.dequeue(now=runtime.clock.now(), limit=7, worker=f"w{n}") for n in range(30))
    )

    taken = [leased.message.key for batch in batches for leased in batch]
    assert (len(taken), len(set(taken))) == (100, 100)


async def test_priority_was_ignored(runtime: Runtime) -> None:
    for priority in ("low", "urgent", "normal", "high"):
        await runtime.send("ann", priority=priority)

    await runtime.until_idle()

    assert [left.work.document.priority for left in runtime.left] == ["urgent", "high", "normal", "low"]


async def test_the_dedupe_key_was_ignored(runtime: Runtime) -> None:
    message = runtime.message("ann")
    first = await runtime.service.send_message(message)
    again = await runtime.service.send_message(message)
    await runtime.feeder.run_once()

    await runtime.until_idle()

    assert first == again
    assert len(runtime.left) == 1


async def test_policy_quiet_hours_were_ignored(runtime: Runtime) -> None:
    await runtime.send("ann", delivery_policy={"quiet_hours": _LUNCH})

    await runtime.run_for(hours=3)

    assert [left.at for left in runtime.left] == [NOON + timedelta(hours=2)]


async def test_retries_landed_inside_quiet_hours(runtime: Runtime) -> None:
    runtime.clock.advance(-30)
    runtime.preferences[person_id("ann")] = {"quietHours": _LUNCH}
    runtime.answer = lambda _left: _FAILS if len(runtime.left) < 1 else DeliveryReport(status="delivered")

    await runtime.send("ann")
    await runtime.run_for(hours=3)

    assert [left.at for left in runtime.left] == [NOON - timedelta(seconds=30), NOON + timedelta(hours=2)]


async def test_the_next_window_was_computed_from_the_wrong_edge(runtime: Runtime) -> None:
    """The start of the next quiet hours, or the end of today's after midnight: it is the end of the one that holds."""
    runtime.clock.advance(13 * 3600)  # one o'clock at night
    night = {"start_time": "22:00", "end_time": "07:00", "timezone": "UTC"}
    runtime.preferences[person_id("ann")] = {"quietHours": night}

    result = await runtime.send("ann")

    assert result.queued[0].scheduled_at == NOON + timedelta(hours=19)


async def test_preferences_were_memoised_for_ever(runtime: Runtime) -> None:
    """Of the worker; `test_preferences` shows it of the cache, in two processes."""
    runtime.preferences[person_id("ann")] = {"quietHours": _LUNCH}
    await runtime.send("ann")
    runtime.preferences[person_id("ann")] = {"notifications": {"matrix": {"message": {"email": True}}}}

    await runtime.run_for(hours=3)

    assert [left.channel for left in runtime.left] == ["email"]


async def test_an_unspecified_matrix_cell_became_an_opt_out(runtime: Runtime) -> None:
    runtime.preferences[person_id("ann")] = {"notifications": {"matrix": {"message": {"email": False}}}}

    result = await runtime.send("ann")

    assert [queued.channel for queued in result.queued] == ["telegram"]


async def test_none_still_retried(runtime: Runtime) -> None:
    runtime.answer = lambda _left: _FAILS
    result = await runtime.send("ann", delivery_policy={"retry": {"backoff_strategy": "none", "max_attempts": 10}})

    await runtime.run_for(hours=5)

    assert [left.channel for left in runtime.left] == ["telegram", "email"]
    assert (await runtime.work(result, "ann")).state is MessageState.DEAD_LETTERED
