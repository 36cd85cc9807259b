"""The three adapters of the outbound queue, each with a store of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

from butlers.clock import ManualClock
from butlers.ids import Uuid7Factory
from butlers.outbound import MIGRATIONS
from butlers.outbound.memory_queue import MemoryQueue
from butlers.outbound.postgres_queue import PostgresQueue
from butlers.outbound.queue import LeasedMessage, QueueAdapter, QueueMessage, QueueStats
from butlers.outbound.redis_queue import RedisQueue
from butlers.storage.embedded import EmbeddedPostgres
from tests.database import cloned_database
from tests.redis_server import RedisServer

ADAPTERS = ("memory", "postgres", "redis")
LEASE_S = 10.0
START = datetime(2026, 1, 1, tzinfo=UTC)

EMPTY = QueueStats(
    queued=0, in_flight=0, acknowledged=0, dead_lettered=0, oldest_scheduled_at=None, next_available_at=None
)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def message(key: str, seconds: float = 0, **changed: Any) -> QueueMessage:
    fields: dict[str, Any] = {"key": key, "payload": {"to": key}, "scheduled_at": at(seconds)}
    return QueueMessage(**fields | changed)


@asynccontextmanager
async def opened(name: str, postgres: EmbeddedPostgres, redis: RedisServer) -> AsyncIterator[QueueAdapter]:
    """An empty queue; nothing else uses its store."""
    clock = ManualClock(START)
    new_id = Uuid7Factory(clock)
    if name == "memory":
        yield MemoryQueue(lease_s=LEASE_S)
    elif name == "postgres":
        async with cloned_database(postgres, [MIGRATIONS], max_size=8) as database:
            queue = PostgresQueue(database, clock, new_id, lease_s=LEASE_S)
            yield queue
            await queue.close()
    else:
        other = RedisQueue(redis.url, new_id=new_id, prefix=f"test-{uuid4().hex}", lease_s=LEASE_S)
        yield other
        await other.close()


async def take(queue: QueueAdapter, now: float = 0, limit: int = 100, worker: str = "one") -> list[LeasedMessage]:
    return await queue.dequeue(now=at(now), limit=limit, worker=worker)


async def take_one(queue: QueueAdapter, now: float = 0) -> LeasedMessage:
    (leased,) = await take(queue, now, limit=1)
    return leased


def keys(leased: Sequence[LeasedMessage]) -> list[str]:
    return [one.message.key for one in leased]
