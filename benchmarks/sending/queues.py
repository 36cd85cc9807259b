"""How quick are the outbound queues? Entries from enqueue over dequeue to ack, beside arq and dramatiq on one Redis.

    memory      `MemoryQueue`, in this process
    postgres    `PostgresQueue`, on an embedded server with fsync and synchronous_commit on
    redis       `RedisQueue`
    arq         `enqueue_job`, then its worker: ten jobs at a time as by default, no wait between polls, no results
    dramatiq    the broker's `enqueue` without middleware, then its consumer with a prefetch of one, and `ack`

All ways run in one process, one after the other, with the same payload: first all entries are enqueued, then all are
taken and ended. One at a time: the next call begins when the one before has been answered (arq's worker is the
exception, it has no such mode that is quicker). Batched: ours only, 100 entries in one enqueue and in one dequeue, the
acks of a batch sent together; the peers have no such calls. Redis has everything in memory, for all of them.
The ways take turns, another one begins each round; the figures are medians over the rounds.

`python -m benchmarks.sending.queues` prints one JSON line; the exit code is 1 when a goal is missed. `--quick` is for
trying it out and judges nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import statistics
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any
from uuid import uuid4

import uvloop
from arq.connections import RedisSettings, create_pool
from arq.worker import Worker
from dramatiq import Message
from dramatiq.brokers.redis import RedisBroker

from benchmarks.streams.peer import HOST
from benchmarks.streams.redis_streams import serving as redis_serving
from butlers.clock import SystemClock
from butlers.ids import Uuid7Factory
from butlers.outbound import MIGRATIONS
from butlers.outbound.memory_queue import MemoryQueue
from butlers.outbound.postgres_queue import PostgresQueue
from butlers.outbound.queue import QueueAdapter, QueueMessage
from butlers.outbound.redis_queue import RedisQueue
from butlers.storage.database import Database
from butlers.storage.embedded import EmbeddedPostgres
from butlers.storage.migrations import migrate

VS_PEER = 1.0
BATCH = 100
PAYLOAD = {
    "message_id": "018f3c6e-0000-7000-8000-000000000000",
    "recipient_id": "ann@example.org",
    "channel": "email",
    "retry": {"max_attempts": 3, "backoff_strategy": "exponential", "initial_delay_seconds": 60},
    "body": "Your order has been sent and will be with you on Friday. " * 3,
}
CLOCK = SystemClock()
Way = Callable[[], Awaitable[float]]  # entries a second


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    entries: int = 3_000  # of one round, in Redis
    in_memory: int = 30_000
    in_postgres: int = 500
    rounds: int = 5


async def measure_queues(size: Size | None = None) -> dict[str, Any]:
    """Entries a second by way, ratios to the peers, and whether the goals are met."""
    size = size or Size()
    logging.getLogger("arq").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory(prefix="butlers-bench-", ignore_cleanup_errors=True) as folder:
        async with redis_serving(Path(folder)) as port, _postgres(Path(folder)) as database:
            rates = await _rounds(size, _ways(size, port, database))
    ratios = {peer: round(rates["redis"] / rates[peer], 2) for peer in ("arq", "dramatiq")}
    goals = {f"redis_vs_{peer}": ratio > VS_PEER for peer, ratio in ratios.items()}
    return {"queues": rates, "redis_vs": ratios, "batch": BATCH, "clients": _clients(), "goals": goals}


def _ways(size: Size, port: int, database: Database) -> dict[str, Way]:
    def ours(open_queue: Callable[[], QueueAdapter], entries: int, batch: int) -> Way:
        return lambda: _cycle(open_queue(), entries, batch)

    def redis() -> QueueAdapter:
        return RedisQueue(f"redis://{HOST}:{port}/0", new_id=Uuid7Factory(CLOCK), prefix=f"bench-{uuid4().hex}")

    def postgres() -> QueueAdapter:
        return PostgresQueue(database, CLOCK, Uuid7Factory(CLOCK))

    return {
        "redis": ours(redis, size.entries, 1),
        "arq": lambda: _arq(port, size.entries),
        "dramatiq": lambda: _dramatiq(port, size.entries),
        "redis_batched": ours(redis, size.entries * 2, BATCH),
        "postgres": ours(postgres, size.in_postgres, 1),
        "postgres_batched": ours(postgres, size.in_postgres * 4, BATCH),
        "memory": ours(MemoryQueue, size.in_memory, 1),
        "memory_batched": ours(MemoryQueue, size.in_memory, BATCH),
    }


async def _rounds(size: Size, ways: Mapping[str, Way]) -> dict[str, float]:
    found: dict[str, list[float]] = {name: [] for name in ways}
    names = list(ways)
    for number in range(size.rounds + 1):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            rate = await ways[name]()
            print(f"bench: {number}: {name} {rate:.0f}/s{'' if number else ' (warm-up)'}", file=sys.stderr, flush=True)
            if number:
                found[name].append(rate)
    return {name: round(statistics.median(rates), 1) for name, rates in found.items()}


async def _cycle(queue: QueueAdapter, entries: int, batch: int) -> float:
    now = CLOCK.now()
    messages = [QueueMessage(key=f"entry-{number}", payload=PAYLOAD, scheduled_at=now) for number in range(entries)]
    before = (await queue.stats(now=now)).acknowledged
    began = CLOCK.monotonic()
    for first in range(0, entries, batch):
        await queue.enqueue(messages[first : first + batch])
    while leased := await queue.dequeue(now=CLOCK.now(), limit=batch, worker="bench"):
        if batch == 1:
            await queue.ack(leased[0])
        else:
            await asyncio.gather(*(queue.ack(one) for one in leased))
    seconds = CLOCK.monotonic() - began
    done = (await queue.stats(now=now)).acknowledged - before
    await queue.close()
    return _rate(entries, done, seconds)


def _rate(entries: int, done: int, seconds: float) -> float:
    """Whoever loses some would be quick for nothing."""
    if done != entries:
        raise RuntimeError(f"{done} of {entries} entries were ended")
    return entries / seconds


async def _arq(port: int, entries: int) -> float:
    done = 0

    async def job(_context: dict[str, Any], _payload: dict[str, Any]) -> None:
        nonlocal done
        done += 1

    name = f"bench-{uuid4().hex}"
    pool = await create_pool(RedisSettings(host=HOST, port=port), default_queue_name=name)
    functions: Any = [job]
    worker = Worker(
        functions, queue_name=name, redis_pool=pool, burst=True, poll_delay=0, keep_result=0, handle_signals=False
    )
    began = CLOCK.monotonic()
    for number in range(entries):
        await pool.enqueue_job("_arq.<locals>.job", PAYLOAD, _job_id=f"{name}-{number}")
    await worker.main()
    seconds = CLOCK.monotonic() - began
    await pool.aclose()
    return _rate(entries, done, seconds)


async def _dramatiq(port: int, entries: int) -> float:
    """Its client waits in the thread; nothing else runs meanwhile, so the event loop may stand still."""
    make_broker: Any = RedisBroker
    broker = make_broker(url=f"redis://{HOST}:{port}/0", middleware=[], namespace=f"bench-{uuid4().hex}")
    name = "bench"
    broker.declare_queue(name)
    done = 0
    began = CLOCK.monotonic()
    for _ in range(entries):
        broker.enqueue(Message(queue_name=name, actor_name="send", args=(PAYLOAD,), kwargs={}, options={}))
    consumer = broker.consume(name, prefetch=1, timeout=100)
    while done < entries and (message := next(consumer)) is not None:
        consumer.ack(message)
        done += 1
    seconds = CLOCK.monotonic() - began
    broker.close()
    return _rate(entries, done, seconds)


@asynccontextmanager
async def _postgres(folder: Path) -> AsyncIterator[Database]:
    server = EmbeddedPostgres(folder)
    await asyncio.to_thread(server.start)
    try:
        async with await Database.connect(server.uri(), max_size=4) as database:
            await migrate(database, [MIGRATIONS])
            yield database
    finally:
        await asyncio.to_thread(server.stop)


def _clients() -> dict[str, str | None]:
    names = ("redis", "hiredis", "arq", "dramatiq", "uvloop")
    return {name: next((one.version for one in metadata.distributions(name=name)), None) for name in names}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=Size().rounds)
    parser.add_argument("--entries", type=int, default=Size().entries)
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    size = Size(rounds=given.rounds, entries=given.entries)
    if given.quick:
        size = Size(entries=200, in_memory=1_000, in_postgres=50, rounds=1)
    report = uvloop.run(measure_queues(size))
    passed = all(report["goals"].values())
    print(json.dumps({"bench": "outbound.queues", **report, "passed": passed, "quick": given.quick}), flush=True)
    return 0 if passed or given.quick else 1


if __name__ == "__main__":
    sys.exit(main())
