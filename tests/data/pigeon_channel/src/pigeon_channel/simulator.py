"""A loft of which pigeons only leave: a server that says so to everybody who connects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from butlers.clock import Clock


async def _answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"coo\n")
    writer.close()


@asynccontextmanager
async def serve_loft(host: str, port: int, *, clock: Clock) -> AsyncIterator[None]:
    async with await asyncio.start_server(_answer, host, port):
        yield
