"""Worker processes over one outbound queue: `python -m tests.integration.outbound.queue_workers ADAPTER ADDRESS`.

Eight at a time, forked from one process. Each reports what it does in lines on the common output:

    took PID KEY EXPIRATIONS     leased to this process
    done PID KEY                 acknowledged
    lost PID KEY                 the acknowledgement came too late
    holds PID                    it keeps what it has and does nothing more, until it is killed
    target PID                   it works on until it is killed

The first ones are to be killed: half of them while they hold leases, half of them at any moment. Whoever dies is
replaced. The processes end when the queue is empty.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import StrEnum

from butlers.clock import SystemClock
from butlers.errors import LeaseLost
from butlers.ids import Uuid7Factory
from butlers.outbound.postgres_queue import PostgresQueue
from butlers.outbound.queue import LeasedMessage, QueueAdapter
from butlers.outbound.redis_queue import RedisQueue
from butlers.storage.database import Database

PROCESSES, KILLS, BATCH = 8, 10, 5
LEASE_S, POLL_S = 2.0, 0.05


class Role(StrEnum):
    STEADY = "steady"
    HOLDS = "holds"
    TARGET = "target"


@asynccontextmanager
async def opened(adapter: str, address: str) -> AsyncIterator[QueueAdapter]:
    clock = SystemClock()
    new_id = Uuid7Factory(clock)
    if adapter == "postgres":
        async with await Database.connect(address, max_size=3) as database:
            queue = PostgresQueue(database, clock, new_id, lease_s=LEASE_S)
            yield queue
            await queue.close()
    else:
        other = RedisQueue(address, new_id=new_id, lease_s=LEASE_S)
        yield other
        await other.close()


async def work(adapter: str, address: str, role: Role) -> None:
    clock = SystemClock()
    if role is Role.TARGET:
        report("target")
    async with opened(adapter, address) as queue:
        while True:
            leased = await queue.dequeue(now=clock.now(), limit=BATCH, worker=str(os.getpid()))
            for one in leased:
                report("took", one.message.key, str(one.expirations))
            if leased and role is Role.HOLDS:
                await settle(queue, leased[0])
                report("holds")
                await asyncio.Event().wait()
            for one in leased:
                await settle(queue, one)
            stats = None if leased else await queue.stats(now=clock.now())
            if stats is not None and not stats.queued and not stats.in_flight:
                return
            if stats is not None:
                await clock.sleep(POLL_S)


async def settle(queue: QueueAdapter, leased: LeasedMessage) -> None:
    try:
        await queue.ack(leased)
    except LeaseLost:
        report("lost", leased.message.key)
    else:
        report("done", leased.message.key)


def report(word: str, *details: str) -> None:
    """In one write, which a pipe takes whole or not at all."""
    os.write(sys.stdout.fileno(), f"{' '.join((word, str(os.getpid()), *details))}\n".encode())


def fork(adapter: str, address: str, role: Role) -> None:
    if os.fork():
        return
    try:
        asyncio.run(work(adapter, address, role))
    except BaseException as error:
        report("failed", repr(error))
        os._exit(1)
    os._exit(0)


def main() -> None:
    adapter, address = sys.argv[1:]
    roles = [Role.HOLDS, Role.TARGET] * (KILLS // 2)
    for _ in range(PROCESSES):
        fork(adapter, address, roles.pop(0))
    living = PROCESSES
    while living:
        _, status = os.wait()
        living -= 1
        if os.WIFSIGNALED(status):
            fork(adapter, address, roles.pop(0) if roles else Role.STEADY)
            living += 1


if __name__ == "__main__":
    main()
