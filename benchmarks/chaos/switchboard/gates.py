"""A gate in front of a butler's door: passes bytes on, and can make a call slow, break it, or lose its answer.

slow      the call is passed on after some seconds
error     a gateway's 502 instead of an answer; the butler hears nothing of it
dropped   the connection ends before the butler hears anything
lost      the butler hears it and answers, and the answer is lost
away      nobody is there for a while, and whoever was connected is not any more
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Literal

from butlers.clock import Clock

Fault = Literal["slow", "error", "dropped", "lost"]

HOST = "127.0.0.1"
_BAD_GATEWAY = b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
_CHUNK = 65_536


class _Broken(Exception):
    """This connection has come to its end."""


@dataclass(slots=True, kw_only=True)
class Gate:
    target: int  # the butler's port
    clock: Clock
    port: int = 0
    faults: deque[tuple[Fault, float]] = field(default_factory=deque)  # each strikes one call; seconds for `slow`
    _away_until: float = 0.0
    _open: set[asyncio.StreamWriter] = field(default_factory=set)

    def url(self, path: str) -> str:
        return f"http://{HOST}:{self.port}{path}"

    def go_away(self, seconds: float) -> None:
        self._away_until = self.clock.monotonic() + seconds
        for writer in list(self._open):
            writer.close()

    async def pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection from its beginning to its end."""
        with suppress(OSError, _Broken):
            if self.clock.monotonic() < self._away_until:
                raise _Broken
            behind = await asyncio.open_connection(HOST, self.target)
            ends = (writer, behind[1])
            self._open.update(ends)
            try:
                await self._both_ways(reader, writer, *behind)
            finally:
                self._open.difference_update(ends)
                behind[1].close()
        writer.close()

    async def _both_ways(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        answers: asyncio.StreamReader,
        behind: asyncio.StreamWriter,
    ) -> None:
        losing = asyncio.Event()
        ways = {
            asyncio.create_task(self._calls(reader, behind, writer, losing)),
            asyncio.create_task(_answers(answers, writer, losing)),
        }
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _calls(
        self,
        reader: asyncio.StreamReader,
        behind: asyncio.StreamWriter,
        back: asyncio.StreamWriter,
        losing: asyncio.Event,
    ) -> None:
        while data := await reader.read(_CHUNK):
            if data.startswith(b"POST") and self.faults:
                await self._strike(*self.faults.popleft(), back, losing)
            behind.write(data)
            await behind.drain()

    async def _strike(self, fault: Fault, seconds: float, back: asyncio.StreamWriter, losing: asyncio.Event) -> None:
        match fault:
            case "slow":
                await self.clock.sleep(seconds)
            case "error":
                back.write(_BAD_GATEWAY)
                await back.drain()
                raise _Broken
            case "dropped":
                raise _Broken
            case "lost":
                losing.set()


async def _answers(answers: asyncio.StreamReader, writer: asyncio.StreamWriter, losing: asyncio.Event) -> None:
    while data := await answers.read(_CHUNK):
        if losing.is_set():
            return
        writer.write(data)
        await writer.drain()


@asynccontextmanager
async def gates(ports: dict[str, int], clock: Clock) -> AsyncIterator[dict[str, Gate]]:
    """One in front of each butler."""
    async with AsyncExitStack() as stack:
        made: dict[str, Gate] = {}
        for name, port in ports.items():
            made[name] = gate = Gate(target=port, clock=clock)
            server = await asyncio.start_server(gate.pass_on, HOST, 0)
            gate.port = server.sockets[0].getsockname()[1]
            stack.callback(server.close)
            stack.callback(gate.go_away, 0.0)
        yield made
