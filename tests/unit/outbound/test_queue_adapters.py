"""The queue that an address names, and its figures as metrics."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from redis.asyncio import Redis

from butlers.clock import ManualClock
from butlers.errors import ConfigurationError, TargetUnavailable
from butlers.ids import Uuid7Factory
from butlers.outbound import MIGRATIONS
from butlers.outbound.memory_queue import MemoryQueue
from butlers.outbound.postgres_queue import PostgresQueue
from butlers.outbound.queue import QueueAdapter, QueueMessage
from butlers.outbound.queue_adapters import QueueMonitor, open_queue
from butlers.outbound.redis_queue import RedisQueue
from butlers.storage.database import Database
from butlers.storage.embedded import EmbeddedPostgres
from butlers.telemetry.telemetry import Telemetry
from tests.database import cloned_database
from tests.redis_server import RedisServer


@pytest.fixture
async def database(postgres_server: EmbeddedPostgres) -> AsyncIterator[Database]:
    async with cloned_database(postgres_server, [MIGRATIONS], max_size=2) as database:
        yield database


def opened(address: str, database: Database, clock: ManualClock | None = None, **options: Any) -> QueueAdapter:
    clock = clock or ManualClock()
    return open_queue(address, database=database, clock=clock, new_id=Uuid7Factory(clock), **options)


async def take_one(queue: QueueAdapter, clock: ManualClock) -> float:
    """How long the lease of an entry lasts."""
    await queue.enqueue([QueueMessage(key="a", payload={}, scheduled_at=clock.now())])
    (leased,) = await queue.dequeue(now=clock.now(), worker="one")
    return (leased.lease_expires_at - clock.now()).total_seconds()


async def test_an_address_opens_its_queue(database: Database):
    clock = ManualClock()
    with RedisServer() as redis:
        for address, kind in (("memory", MemoryQueue), ("postgres", PostgresQueue), (redis.url, RedisQueue)):
            queue = opened(address, database, clock, lease_s=33.0)
            assert isinstance(queue, kind)
            assert await take_one(queue, clock) == 33.0
            await queue.close()
        for prefix in ("one", "two"):
            queue = opened(f"{redis.url}?prefix={prefix}", database, clock)
            assert await take_one(queue, clock) == 120.0
            await queue.close()


@pytest.mark.parametrize(
    "address",
    [
        "",
        "sqs",
        "redis://",
        "redis://host/x",
        "redis://host/0/1",
        "redis://host/0?prefix=a b",
        "redis://host?db=x",
        "redis://host?db=-1",
        "redis://host?db=",
        "redis://host?socket_timeout=abc",
        "redis://host?socket_timeout=0",
        "redis://host?socket_timeout=nan",
        "redis://host?foo=bar",
        "redis://host?protocol=3",
        "redis://host?ssl_cert_reqs=none",
        "rediss://host?ssl_cert_reqs=maybe",
        "unix:///path?db=x",
    ],
)
async def test_an_address_that_names_no_queue_is_refused(address: str, database: Database):
    with pytest.raises(ConfigurationError) as caught:
        opened(address, database)
    assert caught.value.key == "outbound_queue"


@pytest.mark.parametrize(
    "address",
    [
        "redis://user:password@{place}",
        "redis://{place}/",
        "redis://{place}/3?prefix=a.b&client_name=butlers&socket_timeout=5&socket_connect_timeout=0.5",
        "redis://{place}?db=3",
        "unix:///no/such/socket?db=3",
        "rediss://{place}?ssl_ca_certs=/ca.pem&ssl_certfile=/a.pem&ssl_keyfile=/a.key",
        "rediss://{place}?ssl_cert_reqs=none&ssl_check_hostname=False",
        "rediss://{place}?ssl_cert_reqs=optional&ssl_check_hostname=true",
    ],
)
async def test_an_option_that_is_taken_is_one_that_the_client_knows(address: str, database: Database):
    queue = opened(address.format(place="127.0.0.1:1"), database)
    with pytest.raises(TargetUnavailable):  # nobody listens there
        await queue.peek()
    await queue.close()


def figures(telemetry: Telemetry) -> dict[str, float]:
    lines = telemetry.prometheus_text().decode().splitlines()
    found = (line.rpartition(" ") for line in lines if line.startswith("butlers_outbound_queue"))
    return {_short(name): float(value) for name, _, value in found}


def _short(name: str) -> str:
    """Without the labels of the process."""
    family, _, labels = name.partition("{")
    state = [label for label in labels.rstrip("}").split(",") if label.startswith("state=")]
    return family.removeprefix("butlers_outbound_queue_") + "".join(state)


async def test_the_figures_of_the_queue_are_metrics():
    clock, queue = ManualClock(), MemoryQueue()
    telemetry = Telemetry.create("messenger", "test", clock=clock)
    monitor = QueueMonitor(queue, telemetry, clock)
    later = clock.now() + timedelta(seconds=60)
    for number in range(6):
        scheduled = later if number == 5 else clock.now()
        await queue.enqueue([QueueMessage(key=f"k{number}", payload={}, scheduled_at=scheduled)])
    done, dead, *_ = await queue.dequeue(now=clock.now(), limit=3, worker="one")
    await queue.ack(done)
    await queue.dead_letter(dead, "no")
    clock.advance(7)
    stats = await monitor.run_once()
    assert (stats.queued, stats.in_flight, stats.acknowledged, stats.dead_lettered) == (3, 1, 1, 1)
    expected = {
        'entriesstate="queued"': 3.0,
        'entriesstate="in_flight"': 1.0,
        "oldest_age_seconds": 7.0,
        "acknowledged_total": 1.0,
        "dead_lettered_total": 1.0,
    }
    assert figures(telemetry) == expected
    await monitor.run_once()
    assert figures(telemetry) == expected, "counts are those of the store, whenever they are read"
    for leased in await queue.dequeue(now=clock.now(), limit=5, worker="one"):
        await queue.ack(leased)
    await monitor.run_once()
    assert figures(telemetry) == expected | {
        'entriesstate="queued"': 1.0,
        "oldest_age_seconds": 0.0,
        "acknowledged_total": 3.0,
    }


async def test_a_store_that_was_emptied_takes_no_count_back(database: Database):
    clock = ManualClock()
    telemetry = Telemetry.create("messenger", "test", clock=clock)
    with RedisServer() as redis:
        queue = opened(redis.url, database, clock)
        monitor = QueueMonitor(queue, telemetry, clock)

        async def count(entries: int) -> float:
            for _ in range(entries):
                await queue.enqueue([QueueMessage(key="a", payload={}, scheduled_at=clock.now())])
                for leased in await queue.dequeue(now=clock.now(), worker="one"):
                    await queue.ack(leased)
            await monitor.run_once()
            return figures(telemetry)["acknowledged_total"]

        assert await count(2) == 2
        async with Redis.from_url(redis.url) as client:
            await client.flushall()
        assert await count(0) == 2
        assert await count(1) == 3
        await queue.close()
