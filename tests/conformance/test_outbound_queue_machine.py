"""Any order of calls gives the same answers from every adapter as from a list that is sorted anew each time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from butlers.errors import LeaseLost
from butlers.outbound.queue import LEVELS, LeasedMessage, QueueAdapter, QueueMessage, QueueStats
from butlers.outbound.values import Priority
from butlers.storage.embedded import EmbeddedPostgres
from tests.conformance.outbound_queues import ADAPTERS, LEASE_S, START, message, opened
from tests.redis_server import RedisServer

KEYS = ("a", "b", "c", "d", "e")
EXAMPLES, STEPS = 20, 40


@dataclass(kw_only=True)
class Known:
    """An entry as the model sees it."""

    message: QueueMessage
    number: int
    expirations: int = 0
    lease: LeasedMessage | None = None  # of the worker that holds it

    @property
    def available_at(self) -> datetime:
        return self.lease.lease_expires_at if self.lease else self.message.scheduled_at

    @property
    def turn(self) -> tuple[int, datetime, int]:
        return LEVELS[self.message.priority], self.available_at, self.number


class Queue(RuleBasedStateMachine):
    queue: QueueAdapter
    loop: asyncio.AbstractEventLoop

    def __init__(self) -> None:
        super().__init__()
        self.now = START
        self.entries: dict[str, Known] = {}
        self.leases: list[LeasedMessage] = []  # every one ever given
        self.number = self.acknowledged = self.dead_lettered = 0

    def run(self, call: Any) -> Any:
        return self.loop.run_until_complete(call)

    @initialize()
    def begin(self) -> None:
        """The store is used by all examples: what the ones before left is taken out."""
        held = self.run(self.queue.dequeue(now=START + timedelta(days=400), limit=100, worker="begin"))
        for leased in held:
            self.run(self.queue.ack(leased))
        stats = self.run(self.queue.stats(now=START))
        self.acknowledged, self.dead_lettered = stats.acknowledged, stats.dead_lettered

    # --- calls -------------------------------------------------------------------------------------------------------

    @rule(
        keys=st.lists(st.sampled_from(KEYS), max_size=4),
        seconds=st.integers(-5, 20),
        priority=st.sampled_from(Priority),
    )
    def enqueue(self, keys: list[str], seconds: int, priority: Priority) -> None:
        at = self.now + timedelta(seconds=seconds)
        messages = [message(key, scheduled_at=at, priority=priority) for key in keys]
        assert self.run(self.queue.enqueue(messages)) == {key for key in keys if key not in self.entries}
        for one in messages:
            if one.key not in self.entries:
                self.number += 1
                self.entries[one.key] = Known(message=one, number=self.number)

    @rule(limit=st.integers(0, 4))
    def dequeue(self, limit: int) -> None:
        due = [entry for entry in self.entries.values() if entry.available_at <= self.now]
        expected = sorted(due, key=lambda entry: entry.turn)[:limit]
        found = self.run(self.queue.dequeue(now=self.now, limit=limit, worker="one"))
        assert len(found) == len(expected)
        for leased, entry in zip(found, expected, strict=True):
            entry.expirations += entry.lease is not None
            entry.message = replace(entry.message, attempts=entry.message.attempts + 1)
            assert leased.message == entry.message
            assert leased.expirations == entry.expirations
            assert leased.lease_expires_at == self.now + timedelta(seconds=LEASE_S)
            assert leased not in self.leases, "a receipt was given before"
            entry.lease = leased
        self.leases += found

    def holder(self, index: int) -> tuple[LeasedMessage, Known | None]:
        leased = self.leases[index % len(self.leases)]
        entry = self.entries.get(leased.message.key)
        return leased, entry if entry is not None and entry.lease == leased else None

    @precondition(lambda self: self.leases)
    @rule(index=st.integers(0, 50), ends_well=st.booleans())
    def end(self, index: int, ends_well: bool) -> None:
        leased, entry = self.holder(index)
        call = self.queue.ack(leased) if ends_well else self.queue.dead_letter(leased, "no")
        if entry is None:
            with pytest.raises(LeaseLost):
                self.run(call)
            return
        self.run(call)
        del self.entries[leased.message.key]
        self.acknowledged += ends_well
        self.dead_lettered += not ends_well

    @precondition(lambda self: self.leases)
    @rule(index=st.integers(0, 50), seconds=st.none() | st.integers(0, 20), counted=st.booleans())
    def nack(self, index: int, seconds: int | None, counted: bool) -> None:
        leased, entry = self.holder(index)
        delay = None if seconds is None else timedelta(seconds=seconds)
        call = self.queue.nack(leased, now=self.now, delay=delay, counted=counted)
        if entry is None:
            with pytest.raises(LeaseLost):
                self.run(call)
            return
        self.run(call)
        attempts = entry.message.attempts - (not counted)
        at = self.now + (delay or timedelta(0))
        entry.message, entry.lease = replace(entry.message, scheduled_at=at, attempts=attempts), None

    @rule(keys=st.lists(st.sampled_from(KEYS), max_size=3), seconds=st.integers(-5, 20))
    def reschedule(self, keys: list[str], seconds: int) -> None:
        at = self.now + timedelta(seconds=seconds)
        later = [entry for entry in self.queued() if entry.message.key in keys and entry.message.scheduled_at > at]
        assert self.run(self.queue.reschedule(keys, scheduled_at=at)) == len(later)
        for entry in later:
            entry.message = replace(entry.message, scheduled_at=at)

    @rule(keys=st.lists(st.sampled_from(KEYS), max_size=2))
    def remove(self, keys: list[str]) -> None:
        gone = [entry.message.key for entry in self.queued() if entry.message.key in keys]
        assert self.run(self.queue.remove(keys)) == len(gone)
        for key in gone:
            del self.entries[key]

    @rule(seconds=st.sampled_from([1.0, LEASE_S / 2, LEASE_S]))
    def wait(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    # --- what can be seen --------------------------------------------------------------------------------------------

    def queued(self) -> list[Known]:
        return [entry for entry in self.entries.values() if entry.lease is None]

    @invariant()
    def shows_what_the_model_has(self) -> None:
        queued = sorted(self.queued(), key=lambda entry: entry.turn)
        assert self.run(self.queue.peek(10)) == [entry.message for entry in queued]
        available = min((entry.available_at for entry in self.entries.values()), default=None)
        assert self.run(self.queue.stats(now=self.now)) == QueueStats(
            queued=len(queued),
            in_flight=len(self.entries) - len(queued),
            acknowledged=self.acknowledged,
            dead_lettered=self.dead_lettered,
            oldest_scheduled_at=min((entry.message.scheduled_at for entry in queued), default=None),
            next_available_at=None if available is None else max(available, self.now),
        )


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """Hypothesis calls the rules one after the other, outside of a coroutine."""
    with asyncio.Runner() as runner:
        yield runner.get_loop()


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_any_order_of_calls_gives_the_answers_of_the_model(
    adapter: str, postgres_server: EmbeddedPostgres, redis_server: RedisServer, loop: asyncio.AbstractEventLoop
):
    stack = AsyncExitStack()
    queue = loop.run_until_complete(stack.enter_async_context(opened(adapter, postgres_server, redis_server)))
    machine = type("OneQueue", (Queue,), {"queue": queue, "loop": loop})
    bounded = settings(
        max_examples=EXAMPLES, stateful_step_count=STEPS, suppress_health_check=list(HealthCheck), derandomize=True
    )
    try:
        run_state_machine_as_test(machine, settings=bounded)
    finally:
        loop.run_until_complete(stack.aclose())
