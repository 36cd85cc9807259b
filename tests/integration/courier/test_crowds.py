"""Many subscribers at once: a thousand that work and are served alike, ten thousand that only stay."""

from __future__ import annotations

import asyncio
import json
import re
import resource
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import websockets

from butlers.courier.client import CourierClient
from tests.integration.courier.gateway import INBOX, RunningGateway, envelope, gateway
from tests.integration.courier.process import served
from tests.integration.courier.raw_socket import RawSocket, raw_subscriber

WORKERS, MESSAGES = 1_000, 5_000
IDLE = 10_000
AT_ONCE = 100  # connections that are being made
MOST_BYTES = 64 * 1_024  # of the gateway's memory, for a socket with a stream of its own; 41,000 were measured


class Worker:
    """A subscriber that takes one message at a time."""

    def __init__(self, socket: websockets.ClientConnection) -> None:
        self._socket = socket
        self.done = 0

    async def run(self) -> None:
        await self._socket.send(json.dumps({"credit": 1}))
        async for text in self._socket:
            self.done += 1
            await self._socket.send(json.dumps({"ack": json.loads(text)["deliver"]["id"], "credit": 1}))


@asynccontextmanager
async def workers(running: RunningGateway, count: int) -> AsyncIterator[list[Worker]]:
    url, connecting = f"ws://{running.host}/v1/subscribe?stream={INBOX}", asyncio.Semaphore(AT_ONCE)

    async def connected() -> websockets.ClientConnection:
        async with connecting:
            return await websockets.connect(url, ping_interval=None, compression=None, open_timeout=None)

    sockets = await asyncio.gather(*(connected() for _ in range(count)))
    found = [Worker(socket) for socket in sockets]
    tasks = [asyncio.create_task(worker.run()) for worker in found]
    try:
        yield found
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for socket in sockets:
            socket.transport.abort()


async def test_a_thousand_subscribers_with_credit_one_are_served_alike():
    async with gateway() as running, workers(running, WORKERS) as subscribers:
        await running.until(lambda: running.core.stats(INBOX)["busy"] == 0)  # everyone has its credit
        for batch in range(MESSAGES // 1_000):
            messages = [{"envelope": envelope(f"{batch}-{number}")} for number in range(1_000)]
            assert (await running.http.post("/v1/enqueue", json={"messages": messages})).status_code == 200
        await running.until(lambda: running.core.stats(INBOX)["counts"]["acked"] == MESSAGES)
        shares = sorted(worker.done for worker in subscribers)
        assert sum(shares) == MESSAGES
        assert shares[-1] <= 2 * shares[0], shares


def memory(pid: int) -> int:
    """Bytes that a process has in memory."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1_024


@pytest.fixture
def many_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < IDLE + 1_000:
        if hard < IDLE + 1_000:
            pytest.skip(f"this machine gives a process {hard} files")
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@pytest.mark.heavy
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("many_files")
async def test_ten_thousand_idle_sockets_are_held_in_little_memory():
    async with served() as (url, process), AsyncExitStack() as sockets:
        host, connecting = url.removeprefix("http://"), asyncio.Semaphore(AT_ONCE)

        async def connected(number: int) -> RawSocket:
            async with connecting:
                raw = await sockets.enter_async_context(raw_subscriber(host, f"agents/agent-{number}/inbox"))
            raw.answer_pings()
            return raw

        async with CourierClient(url) as client, client.subscribe(INBOX) as jen:
            await jen.grant(100)
            frames = jen.frames()
            before = memory(process.pid)
            raw = await asyncio.gather(*(connected(number) for number in range(IDLE)))
            assert (await client.get("/health"))["subscribers"] == IDLE + 1
            each = (memory(process.pid) - before) / IDLE
            print(f"{each:.0f} bytes per socket")
            for number in range(50):
                await client.post("/v1/enqueue", {"envelope": envelope(f"m{number}")})
                assert (await anext(frames))["deliver"]["id"] == f"m{number}"
            last = f"agents/agent-{IDLE - 1}/inbox"
            await client.post("/v1/enqueue", {"envelope": envelope("for the last", to=last)})
            for one in raw:
                one.answer_no_pings()
            await raw[-1].say(credit=1)
            assert b'"for the last"' in await raw[-1].read()
        assert each < MOST_BYTES
