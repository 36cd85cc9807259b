"""RabbitMQ as a private node: a classic queue in memory, publisher confirms, prefetch, explicit acks."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aio_pika

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

ACK_EVERY = CREDIT // 2  # of the batched mode: one ack settles so many


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[int]:
    script, port, names = _script(), free_port(), free_port()
    environment = _environment(folder, port, names)
    async with (
        process("epmd", "-address", HOST, "-port", str(names), port=names, folder=folder),
        process(script, port=port, folder=folder, env=environment) as found,
    ):
        yield found


@asynccontextmanager
async def connected(port: int, stream: str, *, batched: bool) -> AsyncIterator[RabbitClient]:
    producer, consumer = [await aio_pika.connect(host=HOST, port=port) for _ in range(2)]
    async with producer, consumer:
        sending = await producer.channel(publisher_confirms=True)
        receiving = await consumer.channel()
        await receiving.set_qos(prefetch_count=CREDIT)
        queue = await receiving.declare_queue(stream, durable=False)
        yield RabbitClient(sending, queue, stream)
        await sending.queue_delete(stream)


class RabbitClient:
    def __init__(self, producer: Any, queue: Any, name: str) -> None:
        self._producer = producer
        self._exchange = producer.default_exchange
        self._queue = queue
        self._name = name

    async def send(self, envelope: Envelope) -> None:
        await self._exchange.publish(aio_pika.Message(encode(envelope)), self._name)

    async def send_windowed(self, envelopes: Sequence[Envelope]) -> None:
        room = asyncio.Semaphore(WINDOW)

        async def send(envelope: Envelope) -> None:
            await self.send(envelope)
            room.release()

        async with asyncio.TaskGroup() as group:
            for envelope in envelopes:
                await room.acquire()
                group.create_task(send(envelope))

    async def receive(self, take: Take, *, batched: bool) -> None:
        ended, held = asyncio.Event(), 0

        async def received(message: Any) -> None:
            nonlocal held
            last = take(decode(message.body))
            held += 1
            if not batched or last or held >= ACK_EVERY:
                await message.ack(multiple=batched)
                held = 0
            if last:
                ended.set()

        tag = await self._queue.consume(received)
        await ended.wait()
        await self._queue.cancel(tag)

    async def unsettled(self) -> int:
        if not self._queue.channel.is_closed:
            await self._queue.channel.close()  # what is not acked is queued again
        declared = await self._producer.declare_queue(self._name, passive=True)
        left: int = declared.declaration_result.message_count
        return left


def _script() -> Path:
    """Debian's wrapper goes to a fixed folder and another user; the script behind it does not."""
    found = shutil.which("rabbitmq-server", path="/usr/sbin:/usr/bin:/usr/local/sbin")
    script = Path(found).resolve().parent / "rabbitmq-server" if found else None
    if script is None or not script.exists():
        raise Unavailable("rabbitmq-server is not installed on this machine")
    return script


def _environment(folder: Path, port: int, names: int) -> dict[str, str]:
    plugins, config = folder / "plugins", folder / "rabbitmq.conf"
    plugins.write_text("[].\n")
    config.write_text(f"listeners.tcp.1 = {HOST}:{port}\nlog.file.level = warning\n")
    return {
        "HOME": str(folder),  # of the cookie
        "RABBITMQ_NODENAME": f"bench{port}@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": HOST,
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_DIST_PORT": str(free_port()),
        "ERL_EPMD_PORT": str(names),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-start_epmd false",  # it would stay when the node is gone
        "ERL_EPMD_ADDRESS": HOST,
        "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
        "RABBITMQ_LOG_BASE": str(folder / "logs"),
        "RABBITMQ_PID_FILE": str(folder / "rabbit.pid"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(plugins),
        "RABBITMQ_CONFIG_FILE": str(config),
        "RABBITMQ_CONF_ENV_FILE": str(folder / "none"),
    }
