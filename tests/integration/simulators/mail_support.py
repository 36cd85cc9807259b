"""What the mail simulator's tests share: blocking clients beside the loop, the control API, and rude bytes."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

import httpx2
from starlette.applications import Starlette

from butlers.channels.email.simulator import MailSimulator

DEADLINE = 10.0  # seconds a test waits for a signal before it fails
T = TypeVar("T")


@asynccontextmanager
async def controlling(mail: MailSimulator) -> AsyncIterator[httpx2.AsyncClient]:
    """The control routes mounted in an application of ours."""
    transport = httpx2.ASGITransport(app=Starlette(routes=mail.control_routes()))
    async with httpx2.AsyncClient(transport=transport, base_url="http://sim/control/mail") as client:
        yield client


async def blocking(call: Callable[[], T]) -> T:
    return await asyncio.wait_for(asyncio.to_thread(call), DEADLINE)


def poke(host: str, port: int, payload: bytes) -> None:
    with socket.create_connection((host, port), timeout=DEADLINE) as raw, suppress(ConnectionError):
        raw.sendall(payload)
        with suppress(OSError):  # the server may have hung up first
            raw.shutdown(socket.SHUT_WR)
        while raw.recv(65536):
            pass
