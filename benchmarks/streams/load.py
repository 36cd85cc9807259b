"""The process that uses a server: one producer and one consumer, in one event loop, in three modes.

    confirmed   the producer awaits the confirmation of each message before the next; an ack for each message
    windowed    up to 100 messages unconfirmed; messages and acks in batches where the client offers them
    paced       messages at the times of a schedule, whether the ones before are through or not: the latency

    python -m benchmarks.streams.load '{"way": "redis", "port": ..., "mode": "confirmed", "messages": ..., "rate": ...}'

A round begins with the first send and ends when the last message is acked; the connections are open before.
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import asdict, dataclass
from typing import Literal
from uuid import uuid4

import uvloop

from benchmarks.streams.peer import Client, Envelope, envelope, peer
from butlers.clock import SystemClock

ROUND_S = 120.0
LOOKS = 100  # for the acks on their way
_now = SystemClock().monotonic


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    way: str
    port: int
    mode: Literal["confirmed", "windowed", "paced"]
    messages: int
    rate: float = 500.0  # a second, when paced


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    rate: float  # messages a second
    p50_ms: float | None = None
    p95_ms: float | None = None
    p99_ms: float | None = None


async def run(load: Load) -> Measured:
    stream = f"bench/{uuid4().hex[:12]}"
    together = load.mode == "windowed"
    async with asyncio.timeout(ROUND_S), peer(load.way).connected(load.port, stream, batched=together) as client:
        envelopes = [envelope(number, stream) for number in range(load.messages)]
        measured = await (
            _paced(client, envelopes, load.rate) if load.mode == "paced" else _fast(client, envelopes, load)
        )
        await _check_settled(client)
        return measured


async def _fast(client: Client, envelopes: list[Envelope], load: Load) -> Measured:
    received = 0

    def take(_envelope: Envelope) -> bool:
        nonlocal received
        received += 1
        return received == len(envelopes)

    windowed = load.mode == "windowed"
    consumer = asyncio.create_task(client.receive(take, batched=windowed))
    await asyncio.sleep(0.1)  # until it waits for messages
    began = _now()
    if windowed:
        await client.send_windowed(envelopes)
    else:
        for one in envelopes:
            await client.send(one)
    await consumer
    return Measured(rate=round(len(envelopes) / (_now() - began), 1))


async def _paced(client: Client, envelopes: list[Envelope], rate: float) -> Measured:
    """The latency of a message counts from the time of the schedule, so that a late producer is seen, too."""
    latencies: list[float] = []
    began = _now() + 0.2

    def take(received: Envelope) -> bool:
        latencies.append(_now() - began - received["payload"]["number"] / rate)
        return len(latencies) == len(envelopes)

    consumer = asyncio.create_task(client.receive(take, batched=False))
    async with asyncio.TaskGroup() as group:
        for number, one in enumerate(envelopes):
            if (wait := began + number / rate - _now()) > 0:
                await asyncio.sleep(wait)
            group.create_task(client.send(one))
    await consumer
    latencies.sort()
    p50, p95, p99 = (round(latencies[int(len(latencies) * share)] * 1000, 3) for share in (0.5, 0.95, 0.99))
    return Measured(rate=rate, p50_ms=p50, p95_ms=p95, p99_ms=p99)


async def _check_settled(client: Client) -> None:
    """Every ack must have reached the server: a way that loses some would be quick for nothing."""
    for _ in range(LOOKS):
        if not (left := await client.unsettled()):
            return
        await asyncio.sleep(0.05)
    raise RuntimeError(f"{left} messages are not acked")


def main() -> None:
    load = Load(**json.loads(sys.argv[1]))
    print(json.dumps(asdict(uvloop.run(run(load)))), flush=True)


if __name__ == "__main__":
    main()
