"""Load: so many at once until all is done, or so many a second whatever happens."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable
from itertools import count

from butlers.clock import Clock

Submit = Callable[[int], Awaitable[None]]


async def closed_loop(submit: Submit, numbers: Iterable[int], *, submitters: int, clock: Clock) -> float:
    """Each submitter waits for its message before it takes the next; returns the seconds until all are done."""
    queue = iter(numbers)

    async def work() -> None:
        for number in queue:
            await submit(number)

    began = clock.monotonic()
    await asyncio.gather(*(work() for _ in range(submitters)))
    return clock.monotonic() - began


async def open_loop(
    submit: Submit, *, rate: float, seconds: float, first: int, clock: Clock, dice: random.Random
) -> list[float]:
    """Messages come at random moments at this rate, whether or not earlier ones are done; the latency of each."""
    latencies: list[float] = []

    async def one(number: int) -> None:
        began = clock.monotonic()
        await submit(number)
        latencies.append(clock.monotonic() - began)

    tasks: set[asyncio.Task[None]] = set()
    next_at, end = clock.monotonic(), clock.monotonic() + seconds
    for number in count(first):
        next_at += dice.expovariate(rate)
        if next_at > end:
            break
        await clock.sleep(max(0.0, next_at - clock.monotonic()))
        task = asyncio.create_task(one(number))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    await asyncio.gather(*tasks)
    return latencies
