"""`QueueCore` in this process: how many full cycles a second, and whether many subscribers get the same share."""

from __future__ import annotations

import heapq
from random import Random

from benchmarks.streams.peer import envelope
from butlers.clock import SystemClock
from butlers.courier.core import QueueCore
from butlers.courier.messages import Delivery

STREAM = "bench/core"
TURNS = 200  # messages for each subscriber, on average


def cycles_per_second(cycles: int) -> float:
    """Enqueue, deliver, ack, grant: one subscriber, one message under way, the lease named."""
    clock = SystemClock()
    core, delivered = QueueCore(clock=clock), list[Delivery]()
    subscriber = core.subscribe(STREAM, deliver=delivered.append)
    core.grant(subscriber, 1)
    envelopes = [envelope(number, STREAM) for number in range(cycles)]
    began = clock.monotonic()
    for one in envelopes:
        core.enqueue(STREAM, one)
        delivery = delivered.pop()
        core.ack(subscriber, delivery.id, lease=delivery.lease)
        core.grant(subscriber, 1)
    seconds = clock.monotonic() - began
    if core.audit(STREAM)["groups"]["default"]["acked"] != cycles:
        raise RuntimeError("the core lost messages")
    return cycles / seconds


def fairness(subscribers: int) -> float:
    """Most over least messages of a subscriber, each at credit 1. Each holds a message for a random while before it is
    ready again, so that the order of those who wait changes all the time; most of them wait.
    """
    core, random = QueueCore(clock=SystemClock()), Random(1)
    held: list[tuple[int, int, Delivery]] = []  # until which message, by which subscriber
    counts, names, number = [0] * subscribers, list[str](), 0

    def deliver_to(index: int, delivery: Delivery) -> None:
        counts[index] += 1
        heapq.heappush(held, (number + random.randrange(subscribers // 2), index, delivery))

    for index in range(subscribers):
        names.append(core.subscribe(STREAM, deliver=lambda delivery, index=index: deliver_to(index, delivery)))  # type: ignore[misc]
        core.grant(names[index], 1)
    for number in range(subscribers * TURNS):
        while held and held[0][0] <= number:
            _, index, delivery = heapq.heappop(held)
            core.ack(names[index], delivery.id, lease=delivery.lease)
            core.grant(names[index], 1)
        core.enqueue(STREAM, envelope(number, STREAM))
    return round(max(counts) / max(1, min(counts)), 2)
