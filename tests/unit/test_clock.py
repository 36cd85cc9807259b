"""The clock that stands still until it is moved."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

from butlers.clock import ManualClock, SystemClock


def test_it_starts_where_it_is_told_and_stands_still() -> None:
    start = datetime(2026, 5, 1, tzinfo=UTC)
    clock = ManualClock(start)
    assert clock.now() == start == clock.now()
    assert clock.monotonic() == 0


def test_both_times_move_together() -> None:
    clock = ManualClock()
    start = clock.now()
    clock.advance(90.5)
    assert clock.now() - start == timedelta(seconds=90.5)
    assert clock.monotonic() == 90.5


async def test_sleepers_wake_when_their_time_has_come_and_not_before() -> None:
    clock, woken = ManualClock(), []

    async def sleeper(seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append(seconds)

    tasks = [asyncio.create_task(sleeper(seconds)) for seconds in (3, 1, 2)]
    await asyncio.sleep(0)
    clock.advance(0.999)
    await asyncio.sleep(0)
    assert woken == []
    clock.advance(1.001)
    await asyncio.sleep(0)
    assert woken == [1, 2], "earliest first"
    clock.advance(1)
    await asyncio.gather(*tasks)
    assert woken == [1, 2, 3]


async def test_a_cancelled_sleeper_is_no_trouble() -> None:
    clock = ManualClock()
    task = asyncio.create_task(clock.sleep(1))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    clock.advance(5)


async def test_no_sleep_takes_no_time() -> None:
    await ManualClock().sleep(0)
    await ManualClock().sleep(-1)


async def test_the_machines_clock_speaks_utc_and_moves_on() -> None:
    clock = SystemClock()
    before, started = clock.now(), clock.monotonic()
    assert before.utcoffset() == timedelta(0)
    await clock.sleep(0.001)
    assert clock.monotonic() > started
    assert clock.now() >= before
