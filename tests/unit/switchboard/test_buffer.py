"""The DurableBuffer with an inbox in memory: nothing is lost, nothing waits for ever, nothing runs twice at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, cast
from uuid import UUID

import pytest

from butlers.clock import ManualClock
from butlers.switchboard.config import BufferSection
from butlers.switchboard.ingress.buffer import DurableBuffer
from butlers.switchboard.requests.inbox import MessageInbox, MessageRef
from butlers.telemetry.telemetry import Telemetry

DEADLINE_S = 10.0
RECHECK_S = 11.0


def ref(number: int, tier: str = "default", channel: str = "api") -> MessageRef:
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    return MessageRef(request_id=UUID(int=number), received_at=moment, policy_tier=tier, source_channel=channel)


class Inbox:
    """Rows that are accepted and not finished."""

    def __init__(self) -> None:
        self.rows: dict[UUID, MessageRef] = {}
        self.looks: list[tuple[float, int]] = []  # (grace, limit) of every look
        self.broken = False
        self._looked = asyncio.Condition()

    def add(self, *messages: MessageRef) -> None:
        self.rows |= {message.request_id: message for message in messages}

    async def waiting(self, *, grace_s: float, limit: int) -> list[MessageRef]:
        async with self._looked:
            self.looks.append((grace_s, limit))
            self._looked.notify_all()
        if self.broken:
            raise OSError("the database is away")
        return list(self.rows.values())[:limit]

    async def looked(self, times: int) -> None:
        async with asyncio.timeout(DEADLINE_S), self._looked:
            await self._looked.wait_for(lambda: len(self.looks) >= times)


class Work:
    """Processes messages, and lets a test wait for it."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self.done: list[int] = []
        self.running = self.most_running = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.fails: set[int] = set()
        self._changed = asyncio.Condition()

    async def __call__(self, message: MessageRef) -> bool:
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        await self._tell()
        try:
            await self.gate.wait()
            if message.request_id.int in self.fails:
                self.fails.discard(message.request_id.int)
                raise RuntimeError("broken")
            claimed = self._inbox.rows.pop(message.request_id, None) is not None
            if claimed:
                self.done.append(message.request_id.int)
            return claimed
        finally:
            self.running -= 1
            await self._tell()

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE_S), self._changed:
            await self._changed.wait_for(holds)


class Bench:
    def __init__(self, **policy: Any) -> None:
        self.clock = ManualClock()
        self.inbox = Inbox()
        self.work = Work(self.inbox)
        self.telemetry = Telemetry.create("switchboard", "test", clock=self.clock)
        self.buffer = DurableBuffer(
            inbox=cast("MessageInbox", self.inbox),
            process=self.work,
            policy=BufferSection(**policy),
            recheck_after_s=RECHECK_S,
            clock=self.clock,
            telemetry=self.telemetry,
        )

    def accept(self, *messages: MessageRef) -> None:
        """As the door does it: stored first, offered then."""
        self.inbox.add(*messages)
        for message in messages:
            self.buffer.offer(message)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.buffer.run())
        try:
            await self.inbox.looked(1)
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
async def bench() -> AsyncIterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(**policy: Any) -> Bench:
        made.append(Bench(**policy))
        return made[-1]

    yield make
    for one in made:
        one.telemetry.shutdown()


Make = Callable[..., Bench]


async def test_what_is_offered_is_processed(bench: Make) -> None:
    it = bench()
    async with it.running():
        it.accept(*(ref(number) for number in range(1, 21)))
        await it.work.until(lambda: len(it.work.done) == 20)
    assert sorted(it.work.done) == list(range(1, 21))
    assert it.buffer.depth() == {"high_priority": 0, "interactive": 0, "default": 0}


async def test_no_more_workers_than_configured(bench: Make) -> None:
    it = bench(worker_count=2)
    it.work.gate.clear()
    async with it.running():
        it.accept(*(ref(number) for number in range(1, 9)))
        await it.work.until(lambda: it.work.running == 2)
        it.work.gate.set()
        await it.work.until(lambda: len(it.work.done) == 8)
    assert it.work.most_running == 2


async def test_higher_tiers_first_and_the_lowest_is_not_starved(bench: Make) -> None:
    it = bench(worker_count=1, max_consecutive_same_tier=2)
    for number in (1, 2, 3, 4):
        it.accept(ref(number, "high_priority"))
    for number in (11, 12):
        it.accept(ref(number, "default"))
    async with it.running():
        await it.work.until(lambda: len(it.work.done) == 6)
    assert it.work.done == [1, 2, 11, 3, 4, 12]


async def test_an_unknown_tier_is_taken_as_default(bench: Make) -> None:
    it = bench()
    it.accept(ref(1, "platinum"))
    assert it.buffer.depth()["default"] == 1


async def test_one_message_is_queued_once(bench: Make) -> None:
    it = bench()
    it.accept(ref(1), ref(1))
    assert await it.buffer.sweep(grace_s=0) == 0
    assert it.buffer.depth()["default"] == 1


async def test_a_full_queue_loses_nothing(bench: Make) -> None:
    it = bench(queue_capacity=3, scanner_batch_size=3)
    it.accept(*(ref(number) for number in range(1, 41)))
    assert it.buffer.depth()["default"] == 3
    async with it.running():
        # No timer is needed: what the queue could not take is fetched as soon as there is room.
        await it.work.until(lambda: len(it.work.done) == 40)
    assert sorted(it.work.done) == list(range(1, 41))


async def test_a_full_tier_does_not_block_another(bench: Make) -> None:
    it = bench(queue_capacity=1)
    it.accept(ref(1), ref(2), ref(3, "interactive"))
    assert it.buffer.depth() == {"high_priority": 0, "interactive": 1, "default": 1}


async def test_what_an_earlier_process_left_is_taken_up_at_once(bench: Make) -> None:
    it = bench()
    it.inbox.add(ref(1), ref(2))
    async with it.running():
        await it.work.until(lambda: len(it.work.done) == 2)
    assert it.inbox.looks[0][0] == 0, "the first look gives nobody grace"


async def test_the_scanner_looks_again_when_dead_claims_have_run_out_and_then_at_its_interval(bench: Make) -> None:
    it = bench(scanner_interval_s=30, scanner_grace_s=10)
    async with it.running():
        await advance_to_sleepers(it.clock, RECHECK_S)
        await it.inbox.looked(2)
        await advance_to_sleepers(it.clock, 30)
        await it.inbox.looked(3)
    assert [grace for grace, _ in it.inbox.looks] == [0, 10, 10]


async def test_a_message_whose_worker_failed_comes_back(bench: Make) -> None:
    it = bench()
    it.work.fails = {1}
    async with it.running():
        it.accept(ref(1), ref(2))
        await it.work.until(lambda: it.work.done == [2] and not it.work.fails and it.work.running == 0)
        await advance_to_sleepers(it.clock, RECHECK_S)
        await it.work.until(lambda: it.work.done == [2, 1])


async def test_a_look_that_fails_does_not_end_the_buffer(bench: Make) -> None:
    it = bench()
    it.inbox.broken = True
    async with it.running():
        it.accept(ref(1))
        await it.work.until(lambda: it.work.done == [1])
        it.inbox.broken = False
        it.inbox.add(ref(2))
        await advance_to_sleepers(it.clock, RECHECK_S)
        await it.work.until(lambda: it.work.done == [1, 2])


async def test_a_stopped_buffer_starts_nothing_new_and_leaves_it_in_the_inbox(bench: Make) -> None:
    it = bench(worker_count=1)
    it.work.gate.clear()
    async with it.running():
        it.accept(ref(1), ref(2), ref(3))
        await it.work.until(lambda: it.work.running == 1)
        it.buffer.stop()
        it.work.gate.set()
        await it.work.until(lambda: it.work.running == 0 and bool(it.work.done))
        await settle_down()
    assert it.work.done == [1]
    assert sorted(identifier.int for identifier in it.inbox.rows) == [2, 3]


async def test_what_somebody_else_had_is_skipped(bench: Make) -> None:
    it = bench()
    async with it.running():
        it.buffer.offer(ref(1))  # never in this inbox: another process finished it
        it.accept(ref(2))
        await it.work.until(lambda: it.work.done == [2])
    text = it.telemetry.prometheus_text().decode()
    assert 'outcome="skipped"' in text
    assert 'outcome="processed"' in text


async def advance_to_sleepers(clock: ManualClock, seconds: float) -> None:
    await settle_down()
    clock.advance(seconds)


async def settle_down() -> None:
    """Let every task that can run do so."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_channel_with_nothing_in_hand_gets_a_hand_although_every_worker_is_busy() -> None:
    bench = Bench(worker_count=2)
    bench.work.gate.clear()
    async with bench.running():
        bench.accept(*(ref(number, channel="telegram") for number in range(1, 6)))
        await bench.work.until(lambda: bench.work.running == 2)
        bench.accept(ref(11, channel="email"), ref(12, channel="email"), ref(13, channel="mcp"))
        await bench.work.until(lambda: bench.work.running == 4)
        assert bench.buffer.depth()["default"] == 4, "one of the mails and three of the chat's wait"
        bench.work.gate.set()
        await bench.work.until(lambda: len(bench.work.done) == 8)


async def test_channels_take_turns() -> None:
    bench = Bench(worker_count=1)
    bench.accept(*(ref(number, channel="telegram") for number in range(1, 6)), ref(11, channel="email"))
    async with bench.running():
        await bench.work.until(lambda: len(bench.work.done) == 6)
    assert bench.work.done.index(11) <= 1, "the mail came last and did not wait behind the whole chat"
