"""Random calls, the same for every seed: Redis does what memory does, and many at a time break no promise.

The first test runs a queue in memory and one in Redis side by side and compares them after every call. The second one
lets subscribers of two gateways work at the same time and checks what always holds.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any
from uuid import uuid4

import pytest

from butlers.clock import SystemClock
from butlers.courier.config import CourierConfig, parse_config
from butlers.courier.errors import CourierError, LeaseConflict
from butlers.courier.group import Nack
from butlers.courier.messages import Delivery
from butlers.courier.queue import MemoryQueue, Queue
from butlers.courier.redis_queue import RedisQueue
from tests.conformance.courier_stores import eventually, redis_config
from tests.integration.courier.gateway import envelope
from tests.redis_server import RedisServer

SEEDS = range(6)
STREAMS = ("agents/ann/inbox", "agents/bob/inbox", "jobs/all")
LIMITS = """
streams:
  maxDepth: 8
  maxDeliveries: 3
  recentIds: 6
  maxDead: 4
  perStreamCaps: {"agents/bob/*": {overflow: dropOldest}, "jobs/*": {overflow: deadLetterOldest}}
"""
NACKS: tuple[Nack, ...] = ("release", "failed", "failed", "poison")
OF_ONE_GATEWAY = frozenset({"rateIn", "rateOut", "latP50", "latP95"})


@asynccontextmanager
async def redis_queue(config: CourierConfig) -> AsyncIterator[RedisQueue]:
    def ignore(_stream: str, _envelope: Any) -> None: ...

    queue = RedisQueue(
        config, clock=SystemClock(), epoch=uuid4().hex[:12], inserted=ignore, is_shown=lambda stream: False
    )
    async with queue.running():
        yield queue


class Side:
    """A queue with one subscriber for each group, and what they hold."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.ids: dict[tuple[str, str], str] = {}  # stream, group -> subscriber
        self.got: dict[tuple[str, str], list[Delivery]] = {}

    async def subscribe(self, place: tuple[str, str]) -> None:
        got = self.got.setdefault(place, [])
        self.ids[place] = await self.queue.subscribe(place[0], deliver=got.append, group=place[1])

    async def unsubscribe(self, place: tuple[str, str]) -> None:
        await self.queue.unsubscribe(self.ids[place])

    async def grant(self, place: tuple[str, str], credit: int) -> None:
        await self.queue.grant(self.ids[place], credit)

    async def enqueue(self, stream: str, document: dict[str, Any], partition: str | None) -> bool:
        return (await self.queue.enqueue(stream, document, partition=partition)).duplicate

    async def ack(self, place: tuple[str, str], number: int) -> None:
        """Of the delivery with this number, which may be settled already."""
        one = self.got[place][number]
        await self.queue.ack(self.ids[place], one.id, lease=one.lease)

    async def nack(self, place: tuple[str, str], number: int, meaning: Nack) -> None:
        one = self.got[place][number]
        await self.queue.nack(self.ids[place], one.id, meaning=meaning, lease=one.lease)

    async def steer(self, stream: str, verb: str) -> None:
        await getattr(self.queue, verb)(stream)

    async def settle_dead(self, stream: str, verb: str, id: str) -> int:
        settled: int = await getattr(self.queue, verb)(stream, [id])
        return settled

    def deliveries(self) -> dict[tuple[str, str], list[tuple[str, int]]]:
        return {place: [(one.id, one.attempt) for one in got] for place, got in self.got.items()}

    async def seen(self) -> dict[str, Any]:
        """Everything that a caller can see, but for times."""
        found: dict[str, Any] = {}
        for stream in await self.queue.streams():
            stats = await self.queue.stats(stream)
            dead = [(group, one.id, one.reason, one.failures) for group, one in await self.queue.dead(stream)]
            shown = {name: value for name, value in stats.items() if name not in OF_ONE_GATEWAY}
            found[stream] = (shown, await self.queue.audit(stream), sorted(dead))
        return found


def plan(chance: random.Random, model: Side, number: int) -> tuple[str, tuple[Any, ...]]:
    """The next call."""
    place = chance.choice(list(model.ids))
    kind = chance.choice(["enqueue"] * 5 + ["grant"] * 3 + ["ack"] * 3 + ["nack"] * 3 + ["steer", "dead", "reconnect"])
    if kind in ("ack", "nack") and model.got[place]:
        which = chance.randrange(max(0, len(model.got[place]) - 3), len(model.got[place]))
        return kind, (place, which, *([chance.choice(NACKS)] if kind == "nack" else []))
    if kind == "grant":
        return kind, (place, chance.randint(1, 3))
    if kind == "steer":
        return kind, (place[0], chance.choice(["pause", "drain", *["resume"] * 5]))
    if kind == "dead":
        return "settle_dead", (place[0], chance.choice(["replay", "discard"]), f"m{chance.randint(0, number)}")
    if kind == "reconnect":
        return kind, (place,)
    priority = chance.choice(["normal"] * 4 + ["high", "low"])
    document = envelope(f"m{max(0, number - chance.choice([0, 0, 0, 1, 4]))}", headers={"priority": priority})
    return "enqueue", (chance.choice(STREAMS), document, chance.choice([None, None, "p", "q"]))


async def outcome(side: Side, call: str, arguments: tuple[Any, ...]) -> Any:
    try:
        if call == "reconnect":
            await side.unsubscribe(*arguments)
            return await side.subscribe(*arguments)
        return await getattr(side, call)(*arguments)
    except CourierError as error:
        return type(error)


@pytest.mark.parametrize("seed", SEEDS)
async def test_redis_does_what_memory_does(seed: int, redis_server: RedisServer):
    chance = random.Random(seed)
    config = parse_config(f"{redis_config(redis_server)}\n{LIMITS}", source="test")
    memory = MemoryQueue(config, clock=SystemClock(), epoch="m", inserted=lambda _stream, _envelope: None)
    async with redis_queue(config) as queue:
        model, tested = Side(memory), Side(queue)
        for place in [(stream, group) for stream in STREAMS for group in ("work", "audit")]:
            await model.subscribe(place)
            await tested.subscribe(place)
        done: list[Any] = []
        for number in range(150):
            call, arguments = plan(chance, model, number)
            done.append((call, arguments))
            expected, found = await outcome(model, call, arguments), await outcome(tested, call, arguments)
            assert found == expected, done[-5:]
            await eventually(lambda: _equal(model, tested))
            assert await tested.seen() == await model.seen(), done[-5:]
            for place, id in tested.ids.items():
                assert queue._subscribers[id].granted == memory.core._subscribers[model.ids[place]].credit
        counts = Counter[str]()
        for stream in STREAMS:
            counts.update((await tested.queue.stats(stream))["counts"])
        assert counts["delivered"] > 10


async def _equal(model: Side, tested: Side) -> bool:
    return model.deliveries() == tested.deliveries()


class Worker:
    """A subscriber that grants, acks, gives back and comes anew as chance has it."""

    def __init__(self, queue: RedisQueue, pattern: str, chance: random.Random, holders: dict[Any, Worker]) -> None:
        self.queue, self.pattern, self.chance, self.holders = queue, pattern, chance, holders
        self.granted = self.delivered = 0
        self.arrived: asyncio.Queue[Delivery] = asyncio.Queue()
        self.acked: Counter[tuple[str, str]] = Counter()

    def take(self, delivery: Delivery) -> None:
        self.delivered += 1
        assert self.delivered <= self.granted
        assert (delivery.stream, delivery.id) not in self.holders, "two hold one message"
        self.holders[delivery.stream, delivery.id] = self
        self.arrived.put_nowait(delivery)

    async def run(self) -> None:
        while True:
            self.granted = self.delivered = 0
            self.arrived = asyncio.Queue()
            subscriber = await self.queue.subscribe(self.pattern, deliver=self.take)
            for _ in range(self.chance.randint(3, 12)):
                self.granted += (credit := self.chance.randint(1, 4))
                await self.queue.grant(subscriber, credit)
                await self._settle(subscriber)
            for place in [place for place, holder in self.holders.items() if holder is self]:
                del self.holders[place]  # it gives them back
            await self.queue.unsubscribe(subscriber)

    async def _settle(self, subscriber: str) -> None:
        for _ in range(self.chance.randint(1, 4)):
            try:
                async with asyncio.timeout(0.05):
                    one = await self.arrived.get()
            except TimeoutError:
                return
            del self.holders[one.stream, one.id]
            meaning = self.chance.choice(["ack", "ack", "ack", "release", "failed", "poison"])
            if meaning == "ack":
                await self.queue.ack(subscriber, one.id, lease=one.lease)
                self.acked[one.stream, one.id] += 1
                with pytest.raises(LeaseConflict):
                    await self.queue.ack(subscriber, one.id, lease=one.lease)
            else:
                await self.queue.nack(subscriber, one.id, meaning=meaning, lease=one.lease)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(2))
async def test_of_many_at_two_gateways_each_accepted_message_has_one_end(seed: int, redis_server: RedisServer):
    chance = random.Random(seed)
    config = parse_config(redis_config(redis_server), source="test")
    holders: dict[Any, Worker] = {}
    async with AsyncExitStack() as stack:
        queues = [await stack.enter_async_context(redis_queue(config)) for _ in range(2)]
        patterns = [*STREAMS, "agents/*", "agents/*/inbox", "*"]
        workers = [Worker(queues[n % 2], pattern, chance, holders) for n, pattern in enumerate(patterns)]
        working = [asyncio.create_task(worker.run()) for worker in workers]
        accepted = [(stream, f"m{number}") for number in range(60) for stream in STREAMS]
        for number, (stream, id) in enumerate(accepted):
            partition = chance.choice([None, "p"])
            await queues[number % 2].enqueue(stream, envelope(id), partition=partition)

        async def is_settled() -> bool:
            failed = [task for task in working if task.done()]
            for task in failed:
                task.result()
            audits = [(await queues[0].audit(stream))["groups"]["default"] for stream in STREAMS]
            assert all(audit["balanced"] for audit in audits)
            return all(audit["acked"] + audit["dead"] == audit["accepted"] for audit in audits)

        await eventually(is_settled)
        for task in working:
            task.cancel()
        await asyncio.gather(*working, return_exceptions=True)
        acked = sum((worker.acked for worker in workers), Counter[tuple[str, str]]())
        dead = {(stream, one.id) for stream in STREAMS for _, one in await queues[1].dead(stream)}
        assert acked.keys() | dead == set(accepted)
        assert not acked.keys() & dead
        assert set(acked.values()) == {1}
