"""What every way has in common: the message, the contract of a client, and a server in a process of its own."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, cast

from pydantic_core import from_json, to_json

HOST = "127.0.0.1"
CREDIT = 100  # messages that the consumer may hold
WINDOW = 100  # messages that the producer may have unconfirmed
START_S, STOP_S = 60.0, 10.0

Envelope = dict[str, Any]
Take = Callable[[Envelope], bool]  # whether this message was the last one
encode, decode = to_json, from_json  # the same for every way, where the client does not bring its own


class Unavailable(Exception):
    """The server or the client of a peer is not installed."""


class Client(Protocol):
    """One producer and one consumer, each with a connection of its own, on a stream of their own."""

    async def send(self, envelope: Envelope) -> None:
        """Returns when the server has confirmed the message."""

    async def send_windowed(self, envelopes: Sequence[Envelope]) -> None:
        """Send all, up to `WINDOW` of them unconfirmed at a time; returns when the last one is confirmed."""

    async def receive(self, take: Take, *, batched: bool) -> None:
        """Take messages and ack each, until `take` has the last one. `batched`: several in one frame or call, where the
        client offers it.
        """

    async def unsettled(self) -> int:
        """After the consumer is gone: how many messages the server has not seen acked."""


class Peer(Protocol):
    """A module of this package."""

    def serving(self, folder: Path) -> AbstractAsyncContextManager[int]:
        """The server, its files in the folder, until the block ends: its port. Raises `Unavailable`."""

    def connected(self, port: int, stream: str, *, batched: bool) -> AbstractAsyncContextManager[Client]: ...


WAYS = {"gateway": "gateway", "redis": "redis_streams", "nats": "jetstream", "rabbitmq": "rabbitmq"}


def peer(way: str) -> Peer:
    """Raises `Unavailable` when its Python client is not installed."""
    try:
        return cast("Peer", import_module(f"benchmarks.streams.{WAYS[way]}"))
    except ImportError as error:
        raise Unavailable(f"the package {error.name} is not installed") from None


def envelope(number: int, stream: str) -> Envelope:
    """The example of the courier's design."""
    return {
        "id": f"{stream}-{number}",
        "ts": "2025-10-18T19:55:00Z",
        "from": "architect",
        "to": stream,
        "type": "sprint.assign",
        "schema": "xeno/sprint-assign@v1",
        "version": 1,
        "corr": "c-42",
        "refs": ["T1102"],
        "tags": ["sprint"],
        "headers": {"priority": "normal"},
        "payload": {"wave": "B", "title": "Plan xenoctl CLI", "number": number},
    }


def windows(envelopes: Sequence[Envelope]) -> list[Sequence[Envelope]]:
    return [envelopes[first : first + WINDOW] for first in range(0, len(envelopes), WINDOW)]


def free_port() -> int:
    with socket.socket() as found:
        found.bind((HOST, 0))
        port: int = found.getsockname()[1]
        return port


@asynccontextmanager
async def process(
    *words: str | Path, port: int, folder: Path, env: Mapping[str, str] | None = None
) -> AsyncIterator[int]:
    """A server, from when its port accepts connections until the block ends; what it prints is in its folder."""
    with (folder / "server.log").open("wb") as log:
        started = await asyncio.create_subprocess_exec(
            *map(str, words),
            stdout=log,
            stderr=log,
            cwd=folder,
            env={**os.environ, **(env or {})},
            start_new_session=True,
        )
    try:
        await _until_open(port, started, folder)
        yield port
    finally:
        await _end(started)


async def _until_open(port: int, started: asyncio.subprocess.Process, folder: Path) -> None:
    async with asyncio.timeout(START_S):
        while True:
            if started.returncode is not None:
                text = (folder / "server.log").read_text(errors="replace")
                raise Unavailable(f"the server ended with {started.returncode}: {text[-300:]}")
            with suppress(OSError):
                _, writer = await asyncio.open_connection(HOST, port)
                writer.close()
                return
            await asyncio.sleep(0.05)


async def _end(started: asyncio.subprocess.Process) -> None:
    """The process and those that it started; it has a group of its own."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(started.pid, number)
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_S):
                await started.wait()
                return
