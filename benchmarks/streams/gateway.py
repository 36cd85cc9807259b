"""The courier's gateway as `butlers courier serve` starts it, without a limit of messages; the courier's client."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from benchmarks.streams.peer import CREDIT, HOST, Envelope, Take, free_port, process, windows
from butlers.courier.client import CourierClient, Subscription


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[int]:
    config, port = folder / "courier.yaml", free_port()
    config.write_text(f"gateway: {{port: {port}, messagesPerMinute: null}}\n")
    words = (sys.executable, "-m", "butlers.daemon.cli", "courier", "serve", "--config", config)
    async with process(*words, port=port, folder=folder) as found:
        yield found


@asynccontextmanager
async def connected(port: int, stream: str, *, batched: bool) -> AsyncIterator[GatewayClient]:
    async with (
        CourierClient(f"http://{HOST}:{port}") as courier,
        courier.subscribe(stream) as producer,
        courier.subscribe(stream, batch=batched) as consumer,
    ):
        yield GatewayClient(courier, producer, consumer, stream)


class GatewayClient:
    def __init__(self, courier: CourierClient, producer: Subscription, consumer: Subscription, stream: str) -> None:
        self._courier = courier
        self._producer = producer
        self._consumer = consumer
        self._stream = stream
        self._answers = producer.frames()
        self._in_turn = asyncio.Lock()  # answers come in the order of the frames

    async def send(self, envelope: Envelope) -> None:
        await self._producer.say(enqueue=envelope)
        async with self._in_turn:
            _confirmed(await anext(self._answers))

    async def send_windowed(self, envelopes: Sequence[Envelope]) -> None:
        for window in windows(envelopes):
            await self._producer.say(enqueue=list(window))
            _confirmed(await anext(self._answers))

    async def receive(self, take: Take, *, batched: bool) -> None:
        await self._consumer.grant(CREDIT)
        async for frame in self._consumer.frames():
            if batched:
                last = await self._settle(take, frame["deliveries"])
            else:
                last = take(frame["deliver"])
                await self._consumer.ack(frame, credit=1)
            if last:
                return

    async def _settle(self, take: Take, deliveries: list[Envelope]) -> bool:
        last = [take(one["deliver"]) for one in deliveries][-1]
        acks = [{"id": one["deliver"]["id"], "lease": one["lease"]} for one in deliveries]
        await self._consumer.say(ack=acks, credit=len(acks))
        return last

    async def unsettled(self) -> int:
        audit = await self._courier.get("/v1/audit", stream=self._stream)
        return sum(group["accepted"] - group["acked"] for group in audit["groups"].values())


def _confirmed(frame: Envelope) -> None:
    if "enqueued" not in frame:
        raise RuntimeError(f"refused: {frame}")
