"""A gateway on a free port, and clients that are not ours: `websockets` and plain HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import httpx2
import websockets

from butlers.clock import Clock, SystemClock
from butlers.courier.config import parse_config
from butlers.courier.core import QueueCore
from butlers.courier.queue import MemoryQueue
from butlers.courier.server import CourierServer, serving
from butlers.courier.service import Courier

INBOX = "agents/jen/inbox"
DEADLINE_S = 30.0


def envelope(id: str, **more: Any) -> dict[str, Any]:
    return {"id": id, "ts": "2026-01-01T00:00:00Z", "to": INBOX, "type": "note", "payload": {"n": 1}, **more}


class Socket:
    """A client's end of a WebSocket."""

    def __init__(self, connection: websockets.ClientConnection) -> None:
        self.connection = connection

    async def say(self, **frame: Any) -> None:
        await self.connection.send(json.dumps(frame))

    async def hear(self) -> dict[str, Any]:
        async with asyncio.timeout(DEADLINE_S):
            frame: dict[str, Any] = json.loads(await self.connection.recv())
            return frame

    async def delivered(self) -> str:
        """The id of the next message."""
        id: str = (await self.hear())["deliver"]["id"]
        return id

    async def error(self) -> str:
        """The code of the next frame, which is an error."""
        code: str = (await self.hear())["error"]["code"]
        return code

    async def closed(self) -> int | None:
        """Read until the server closes; its code."""
        with suppress(websockets.ConnectionClosed):
            async with asyncio.timeout(DEADLINE_S):
                async for _ in self.connection:
                    pass
        return self.connection.close_code

    async def is_silent(self) -> bool:
        """The server answers a ping after everything that it had to send: then nothing was sent."""
        await (await self.connection.ping())
        try:
            async with asyncio.timeout(0.05):
                await self.connection.recv()
        except TimeoutError:
            return True
        return False


@dataclass(slots=True)
class RunningGateway:
    courier: Courier
    server: CourierServer
    http: httpx2.AsyncClient

    @property
    def core(self) -> QueueCore:
        """Of the gateway that has its streams in memory."""
        queue = self.courier.queue
        assert isinstance(queue, MemoryQueue)
        return queue.core

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    async def send(self, *ids: str, **more: Any) -> httpx2.Response:
        """POST /v1/enqueue, one by one; the last answer."""
        for id in ids:
            response = await self.http.post("/v1/enqueue", json={"envelope": envelope(id, **more)})
        return response

    @asynccontextmanager
    async def subscriber(self, stream: str = INBOX, *, credit: int = 0, **options: Any) -> AsyncIterator[Socket]:
        async with self.socket(f"/v1/subscribe?stream={stream}", **options) as socket:
            if credit:
                await socket.say(credit=credit)
            yield socket

    @asynccontextmanager
    async def socket(self, path: str, **options: Any) -> AsyncIterator[Socket]:
        async with websockets.connect(f"ws://{self.host}{path}", max_size=None, **options) as connection:
            yield Socket(connection)

    async def until(self, condition: Any) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not condition():
                await asyncio.sleep(0.005)


class Bystander:
    """A producer and a subscriber of another stream, at work all the time that a fault lasts."""

    STREAM = "agents/bystander/inbox"

    def __init__(self, running: RunningGateway, socket: Socket) -> None:
        self._running = running
        self._socket = socket
        self.rounds = 0
        self._task = asyncio.create_task(self._work(), name="bystander")

    async def _work(self) -> None:
        while True:
            id = f"round-{self.rounds}"
            assert (await self._running.send(id, to=self.STREAM)).status_code == 200
            assert await self._socket.delivered() == id
            await self._socket.say(ack=id, credit=1)
            self.rounds += 1
            await asyncio.sleep(0.001)

    async def works(self) -> None:
        """Returns when two more messages have been sent, taken and acked."""
        goal = self.rounds + 2
        await self._running.until(lambda: self.rounds >= goal or self._task.done())
        if self._task.done():
            self._task.result()

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


@asynccontextmanager
async def bystander(running: RunningGateway) -> AsyncIterator[Bystander]:
    """Fails when the other stream stood still, or lost count of a message."""
    async with running.subscriber(Bystander.STREAM, credit=1) as socket:
        other = Bystander(running, socket)
        try:
            await other.works()
            yield other
            await other.works()
        finally:
            await other.stop()
    assert running.core.audit(Bystander.STREAM)["balanced"]


@asynccontextmanager
async def gateway(config: str = "", *, clock: Clock | None = None) -> AsyncIterator[RunningGateway]:
    text = config if "gateway:" in config else f"{config}\ngateway: {{port: 0}}\n"
    async with (
        serving(parse_config(text, source="test"), clock=clock or SystemClock()) as server,
        httpx2.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", trust_env=False, timeout=DEADLINE_S) as http,
    ):
        yield RunningGateway(server.courier, server, http)
