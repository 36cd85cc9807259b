"""The outbound queue in Redis: what is stored, and what happens when Redis is away."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from redis.asyncio import Redis
from redis.crc import key_slot

from butlers.clock import SystemClock
from butlers.errors import LeaseLost, TargetUnavailable
from butlers.ids import Uuid7Factory
from butlers.outbound import redis_connection
from butlers.outbound.queue import QueueMessage
from butlers.outbound.redis_queue import RedisQueue
from butlers.outbound.values import Priority
from tests.redis_server import RedisServer

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LEASE_S = 10.0


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@asynccontextmanager
async def opened(url: str, prefix: str = "") -> AsyncIterator[RedisQueue]:
    queue = RedisQueue(url, new_id=Uuid7Factory(SystemClock()), prefix=prefix or f"test-{uuid4().hex}", lease_s=LEASE_S)
    try:
        yield queue
    finally:
        await queue.close()


@asynccontextmanager
async def looking(url: str) -> AsyncIterator[Any]:
    """Another client, which sees what is stored."""
    async with Redis.from_url(url, decode_responses=True) as client:
        yield client


def message(key: str, **changed: Any) -> QueueMessage:
    fields: dict[str, Any] = {"key": key, "payload": {"to": key}, "scheduled_at": NOW}
    return QueueMessage(**fields | changed)


@pytest.mark.scenario("D4-017")
async def test_entries_are_stored_with_iso_times_receipts_and_growing_attempts(server: RedisServer):
    async with opened(server.url, "stored") as queue, looking(server.url) as redis:

        async def stored(key: str) -> dict[str, Any]:
            entry: dict[str, Any] = json.loads(await redis.hget("{stored}:entries", key))
            return entry

        later = NOW + timedelta(minutes=5, microseconds=7)
        await queue.enqueue([message("m1:ann", priority=Priority.HIGH), message("m1:bob", scheduled_at=later)])
        ann = await stored("m1:ann")
        assert ann["scheduled_at"] == "2026-01-01T00:00:00.000000+00:00"
        assert (ann["payload"], ann["priority"], ann["attempts"], ann["lease"]) == ({"to": "m1:ann"}, "high", 0, None)
        assert (await stored("m1:bob"))["scheduled_at"] == "2026-01-01T00:05:00.000007+00:00"
        ((_, score),) = await redis.zrange("{stored}:queued:2", 0, -1, withscores=True)
        assert score == later.timestamp() * 1_000_000

        (leased,) = await queue.dequeue(now=NOW, limit=5, worker='host "41"')
        ann = await stored("m1:ann")
        assert ann["lease"] == {
            "receipt": leased.receipt,
            "worker": 'host "41"',
            "expires_at": "2026-01-01T00:00:10.000000+00:00",
        }
        assert ann["attempts"] == 1
        assert (await redis.zcard("{stored}:in_flight:1"), await redis.zcard("{stored}:queued:1")) == (1, 0)

        await queue.nack(leased, now=NOW, delay=timedelta(seconds=60))
        ann = await stored("m1:ann")
        assert (ann["attempts"], ann["lease"]) == (1, None)
        assert ann["scheduled_at"] == "2026-01-01T00:01:00.000000+00:00"
        (again,) = await queue.dequeue(now=NOW + timedelta(seconds=60), worker="two")
        assert (again.message.attempts, (await stored("m1:ann"))["attempts"]) == (2, 2)
        assert again.receipt != leased.receipt

        await queue.dead_letter(again, "no such address")
        letter = json.loads(await redis.lindex("{stored}:dead", 0))
        assert (letter["reason"], letter["key"], letter["attempts"]) == ("no such address", "m1:ann", 2)
        assert await redis.hexists("{stored}:entries", "m1:ann") == 0
        names = [name async for name in redis.scan_iter("*stored*")]
        assert {name.partition(":")[0] for name in names} == {"{stored}"}
        assert len({key_slot(name.encode()) for name in names}) == 1, "all in one slot of a cluster"


async def test_what_is_done_leaves_nothing_but_its_count(server: RedisServer):
    async with opened(server.url, "clean") as queue, looking(server.url) as redis:
        await queue.enqueue([message(f"k{number}") for number in range(20)])
        await queue.remove(["k19"])
        for leased in await queue.dequeue(now=NOW, limit=50, worker="one"):
            await queue.ack(leased)
        assert {name async for name in redis.scan_iter("*clean*")} == {"{clean}:counts"}
        assert await redis.hgetall("{clean}:counts") == {"number": "20", "acknowledged": "19"}


async def test_queues_of_two_prefixes_share_nothing(server: RedisServer):
    async with opened(server.url) as one, opened(server.url) as other:
        await one.enqueue([message("a")])
        assert await other.dequeue(now=NOW, worker="one") == []
        assert await other.enqueue([message("a")]) == {"a"}


async def test_two_processes_on_one_prefix_share_everything(server: RedisServer):
    async with opened(server.url, "both") as one, opened(server.url, "both") as other:
        await one.enqueue([message("a")])
        (leased,) = await other.dequeue(now=NOW, worker="other")
        (taken,) = await one.dequeue(now=NOW + timedelta(seconds=LEASE_S), worker="one")
        with pytest.raises(LeaseLost):
            await other.ack(leased)
        await one.ack(taken)


async def test_scripts_that_redis_has_forgotten_are_sent_again(server: RedisServer):
    async with opened(server.url) as queue, looking(server.url) as redis:
        await queue.enqueue([message("a")])
        await redis.script_flush()
        (leased,) = await queue.dequeue(now=NOW, worker="one")
        await redis.script_flush()
        await queue.ack(leased)


async def test_a_redis_that_is_away_is_said_so_and_found_again():
    with RedisServer(durable=True) as server:
        async with opened(server.url) as queue:
            await queue.enqueue([message("done"), message("held"), message("queued")])
            done, held = await queue.dequeue(now=NOW, limit=2, worker="one")
            await queue.ack(done)
            server.stop()
            for call in (
                lambda: queue.enqueue([message("b")]),
                lambda: queue.dequeue(now=NOW, worker="one"),
                lambda: queue.ack(held),
                lambda: queue.nack(held, now=NOW),
                lambda: queue.dead_letter(held, "no"),
                lambda: queue.reschedule(["queued"], scheduled_at=NOW),
                lambda: queue.remove(["queued"]),
                queue.peek,
                lambda: queue.stats(now=NOW),
            ):
                with pytest.raises(TargetUnavailable) as caught:
                    await call()
                assert caught.value.retryable
            server.start()
            stats = await queue.stats(now=NOW)
            assert (stats.queued, stats.in_flight, stats.acknowledged) == (1, 1, 1)
            await queue.ack(held)
            assert [one.message.key for one in await queue.dequeue(now=NOW, limit=5, worker="two")] == ["queued"]


async def test_calls_on_their_way_fail_with_the_connection():
    with RedisServer() as server:
        async with opened(server.url) as queue, looking(server.url) as redis:
            await queue.enqueue([message("a")])
            await redis.execute_command("CLIENT", "PAUSE", "60000", "WRITE")
            calls = [asyncio.create_task(queue.peek()) for _ in range(20)]
            await asyncio.sleep(0)  # each has sent its call
            server.stop()
            failed = await asyncio.gather(*calls, return_exceptions=True)
            assert {type(one) for one in failed} == {TargetUnavailable}


async def test_a_redis_that_hangs_is_not_waited_for(server: RedisServer, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(redis_connection, "ANSWER_S", 0.2)
    async with opened(server.url) as queue, looking(server.url) as redis:
        await queue.enqueue([message("a")])
        await redis.execute_command("CLIENT", "PAUSE", "60000", "WRITE")
        with pytest.raises(TargetUnavailable):
            await queue.peek()
        await redis.execute_command("CLIENT", "UNPAUSE")
        assert [one.key for one in await queue.peek()] == ["a"]


async def test_a_caller_that_goes_away_takes_nobody_elses_reply(server: RedisServer):
    async with opened(server.url) as queue:
        await queue.enqueue([message(f"k{number}") for number in range(10)])
        calls = [asyncio.create_task(queue.peek(number + 1)) for number in range(10)]
        await asyncio.sleep(0)
        for call in calls[::2]:
            call.cancel()
        found = await asyncio.gather(*calls, return_exceptions=True)
        assert [len(one) for one in found if not isinstance(one, BaseException)] == [2, 4, 6, 8, 10]


async def test_a_redis_that_takes_nothing_more_is_unavailable():
    with RedisServer() as server:
        async with opened(server.url) as queue, looking(server.url) as redis:
            await queue.enqueue([message("a")])
            await redis.config_set("maxmemory", 1)
            with pytest.raises(TargetUnavailable):
                await queue.enqueue([message("b")])
            await redis.config_set("maxmemory", 0)
            assert [one.key for one in await queue.peek()] == ["a"]


async def test_the_address_names_password_and_database():
    with RedisServer() as server:
        async with looking(server.url) as redis:
            await redis.config_set("requirepass", "secret")
        url = server.url.replace("redis://", "redis://:secret@").removesuffix("/0") + "/3"
        async with opened(url, "third") as queue, looking(url) as redis:
            await queue.enqueue([message("a")])
            assert await redis.hexists("{third}:entries", "a") == 1
        async with opened(server.url) as queue:
            with pytest.raises(TargetUnavailable):
                await queue.enqueue([message("a")])
