"""Eight workers on one queue, ten of them killed while they hold entries: each entry is done once, and none is lost."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from butlers.clock import SystemClock
from butlers.outbound import MIGRATIONS
from butlers.outbound.memory_queue import MemoryQueue
from butlers.outbound.queue import QueueAdapter, QueueMessage
from butlers.storage.embedded import EmbeddedPostgres
from tests.database import cloned_database_uri
from tests.integration.outbound import queue_workers
from tests.integration.outbound.queue_workers import BATCH, KILLS, PROCESSES
from tests.redis_server import RedisServer

FEW, MANY = 1_500, 20_000
TAKES_OF_A_TARGET = 3 * BATCH  # before it is killed
DEADLINE_S = 600.0


class Reports:
    """What workers reported, in the order of their lines."""

    def __init__(self) -> None:
        self.takes: dict[str, list[str]] = defaultdict(list)  # key -> the workers that took it, in order
        self.taken_by: Counter[str] = Counter()
        self.done: Counter[str] = Counter()
        self.lost: set[tuple[str, str]] = set()
        self.killed: set[str] = set()
        self.targets: set[str] = set()

    def read(self, line: str) -> str | None:
        """The worker that is to be killed now."""
        word, worker, *details = line.split(" ")
        match word:
            case "took":
                self.takes[details[0]].append(worker)
                self.taken_by[worker] += 1
                # A worker that is killed between the call and its report has taken entries all the same.
                assert len(self.takes[details[0]]) <= int(details[1]) + 1, "taken without an expiration"
            case "done":
                self.done[details[0]] += 1
            case "lost":
                self.lost.add((worker, details[0]))
            case "target":
                self.targets.add(worker)
            case "failed":
                pytest.fail(line)
        is_due = word == "holds" or (worker in self.targets and self.taken_by[worker] >= TAKES_OF_A_TARGET)
        return worker if is_due and worker not in self.killed else None

    def check(self, keys: set[str]) -> None:
        assert self.takes.keys() == keys
        assert set(self.done.values()) == {1}, "done twice"
        # A worker that is killed between the acknowledgement and its report has done the entry all the same.
        assert len(keys) - len(self.done) <= KILLS // 2
        for key, workers in self.takes.items():
            for worker in workers[:-1]:
                assert worker in self.killed or (worker, key) in self.lost, "taken over from a worker that lives"

    def figures(self, adapter: str, seconds: float) -> str:
        count = len(self.takes)
        again = sum(len(workers) - 1 for workers in self.takes.values())
        return (
            f"{adapter}: {count} entries, {len(self.killed)} workers killed, {again} taken again, "
            f"{len(self.lost)} late acknowledgements, {seconds:.1f} s, {count / seconds:.0f}/s"
        )


async def fill(queue: QueueAdapter, count: int) -> set[str]:
    now = SystemClock().now()
    messages = [QueueMessage(key=f"m{number}", payload={"number": number}, scheduled_at=now) for number in range(count)]
    return set(await queue.enqueue(messages))


@asynccontextmanager
async def worker_processes(adapter: str, address: str) -> AsyncIterator[asyncio.StreamReader]:
    """Their lines. They have a group of their own, which ends with the block."""
    words = (sys.executable, "-m", queue_workers.__name__, adapter, address)
    process = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    try:
        yield process.stdout
        assert await process.wait() == 0
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


async def run_processes(adapter: str, address: str, count: int) -> None:
    clock, reports = SystemClock(), Reports()
    async with queue_workers.opened(adapter, address) as queue:
        keys = await fill(queue, count)
        began = clock.monotonic()
        async with asyncio.timeout(DEADLINE_S), worker_processes(adapter, address) as lines:
            async for line in lines:
                if (worker := reports.read(line.decode().rstrip("\n"))) is not None:
                    os.kill(int(worker), signal.SIGKILL)
                    reports.killed.add(worker)
        print(reports.figures(adapter, clock.monotonic() - began))
        stats = await queue.stats(now=clock.now())
    assert len(reports.killed) == KILLS
    reports.check(keys)
    assert (stats.queued, stats.in_flight, stats.acknowledged, stats.dead_lettered) == (0, 0, count, 0)


async def run_tasks(count: int) -> None:
    """The queue in memory has its workers in one process; a task that is cancelled stands for one that dies."""
    clock, queue, reports = SystemClock(), MemoryQueue(lease_s=0.2), Reports()
    keys = await fill(queue, count)
    began = clock.monotonic()

    async def work(name: str, *, dies: bool) -> None:
        while True:
            leased = await queue.dequeue(now=clock.now(), limit=BATCH, worker=name)
            for one in leased:
                reports.read(f"took {name} {one.message.key} {one.expirations}")
            for place, one in enumerate(leased):
                await asyncio.sleep(0)
                if dies and place == 1:
                    reports.killed.add(name)
                    return
                await queue.ack(one)
                reports.read(f"done {name} {one.message.key}")
            stats = await queue.stats(now=clock.now())
            if not stats.queued and not stats.in_flight:
                return
            await clock.sleep(0 if leased else 0.01)

    async with asyncio.timeout(DEADLINE_S):
        await asyncio.gather(
            *(work(f"dies{number}", dies=True) for number in range(KILLS)),
            *(work(f"steady{number}", dies=False) for number in range(PROCESSES)),
        )
    print(reports.figures("memory", clock.monotonic() - began))
    assert len(reports.killed) == KILLS
    reports.check(keys)
    assert sum(reports.done.values()) == count == (await queue.stats(now=clock.now())).acknowledged


@asynccontextmanager
async def address_of(adapter: str, postgres: EmbeddedPostgres, redis: RedisServer) -> AsyncIterator[str]:
    if adapter == "redis":
        yield redis.url
    else:
        async with cloned_database_uri(postgres, [MIGRATIONS]) as uri:
            yield uri


@pytest.mark.slow
@pytest.mark.parametrize("adapter", ["postgres", "redis"])
async def test_workers_that_are_killed_lose_no_entry_and_do_none_twice(adapter: str, postgres_server: EmbeddedPostgres):
    with RedisServer() as redis:
        async with address_of(adapter, postgres_server, redis) as address:
            await run_processes(adapter, address, FEW)


async def test_workers_of_one_process_lose_no_entry_and_do_none_twice():
    await run_tasks(FEW)


@pytest.mark.heavy
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("adapter", ["postgres", "redis"])
async def test_twenty_thousand_entries_and_ten_killed_workers(adapter: str, postgres_server: EmbeddedPostgres):
    with RedisServer() as redis:
        async with address_of(adapter, postgres_server, redis) as address:
            await run_processes(adapter, address, MANY)


@pytest.mark.heavy
async def test_twenty_thousand_entries_in_one_process():
    await run_tasks(MANY)
