"""Telling what was done: never waits, never fails, never grows without bound."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime

import pytest

from butlers.butler.activity import Activity, ActivityQueue


def entry(number: int) -> Activity:
    at = datetime(2026, 5, 1, tzinfo=UTC)
    return Activity(butler="travel", operation="session", request_summary={"n": number}, result="ok", at=at)


async def test_what_is_told_arrives_in_order_and_in_batches() -> None:
    batches: list[list[int]] = []

    async def sink(entries: Sequence[Activity]) -> None:
        batches.append([told.request_summary["n"] for told in entries])

    queue = ActivityQueue(sink=sink, batch=2)
    for number in range(5):
        queue.report(entry(number))
    await queue.flush()
    assert batches == [[0, 1], [2, 3], [4]]


async def test_a_sink_that_fails_loses_its_batch_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    kept: list[int] = []

    async def sink(entries: Sequence[Activity]) -> None:
        if not kept and entries[0].request_summary["n"] == 0:
            raise RuntimeError("no table")
        kept.extend(told.request_summary["n"] for told in entries)

    queue = ActivityQueue(sink=sink, batch=1)
    queue.report(entry(0))
    queue.report(entry(1))
    await queue.flush()
    assert kept == [1]
    assert [record.getMessage() for record in caplog.records] == ["activity not recorded"]


async def test_a_full_queue_drops_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    kept: list[int] = []

    async def sink(entries: Sequence[Activity]) -> None:
        kept.extend(told.request_summary["n"] for told in entries)

    queue = ActivityQueue(sink=sink, capacity=2)
    for number in range(5):
        queue.report(entry(number))
    await queue.close()
    assert kept == [0, 1]
    assert "activity came too fast to be recorded" in [record.getMessage() for record in caplog.records]


async def test_the_loop_hands_over_what_comes_while_it_runs() -> None:
    arrived = asyncio.Event()

    async def sink(_entries: Sequence[Activity]) -> None:
        arrived.set()

    queue = ActivityQueue(sink=sink)
    loop = asyncio.create_task(queue.run())
    try:
        for _ in range(2):
            arrived.clear()
            queue.report(entry(0))
            await asyncio.wait_for(arrived.wait(), 5)
    finally:
        loop.cancel()
