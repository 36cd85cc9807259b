"""uvicorn as a guest in our event loop: it leaves signals to its host, takes a socket that is already bound, and says
when it is up.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import itertools
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import uvicorn
from starlette.requests import ClientDisconnect

from butlers.errors import ConfigurationError, InternalError
from butlers.serving.bounded_http import BoundedHttp
from butlers.serving.connections import Connections, DoorLimits

_OWN_ADDRESS = "set host to an address of this machine: 127.0.0.1 for this machine only, 0.0.0.0 for all"
BACKLOG = 1_024  # connections that the kernel keeps for us
_ACCEPTED_AT_ONCE = 128  # by asyncio, before it looks at what they send
_TICK_S = 0.1
_LOOK_EVERY = 5  # ticks
_TURNS = 20  # of the loop: to accept a connection, to read from it and to begin the answer takes four or five


class GuestServer(uvicorn.Server):
    """`connections` is shared by the doors of a process; without it the door counts its own, by the usual limits."""

    def __init__(
        self,
        app: Any,
        *,
        http: type[asyncio.Protocol] = BoundedHttp,
        grace_s: int = 5,
        connections: Connections | None = None,
    ) -> None:
        protocol: Any = http
        if issubclass(http, BoundedHttp):
            counted = Connections(DoorLimits()) if connections is None else connections
            protocol = functools.partial(http, connections=counted)
        super().__init__(
            uvicorn.Config(
                _without_those_who_left(app),
                http=protocol,
                backlog=_ACCEPTED_AT_ONCE,
                ws="none",
                lifespan="on",
                log_config=None,
                log_level="warning",
                access_log=False,
                proxy_headers=False,  # a caller says who it is by its token, and by its socket
                timeout_graceful_shutdown=grace_s,
            )
        )
        self._up = asyncio.Event()
        self._closing = asyncio.Event()
        self._running: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(BACKLOG)  # uvicorn has made it as short as what is accepted at once
        self._up.set()

    async def main_loop(self) -> None:
        """As uvicorn's, but `close` does not wait for the next tick."""
        for counter in itertools.count():
            if await self.on_tick(counter):
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_TICK_S):
                    await self._closing.wait()

    async def on_tick(self, counter: int) -> bool:
        if counter % _LOOK_EVERY == 0:
            for connection in tuple(self.server_state.connections):
                if isinstance(connection, BoundedHttp):
                    connection.look()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await take_in()
        await super().shutdown(sockets)

    async def open(self, listener: socket.socket) -> None:
        """Serve in the background; returns when requests are answered."""
        self._running = asyncio.create_task(self.serve(sockets=[listener]), name="http server")
        up = asyncio.create_task(self._up.wait())
        await asyncio.wait({up, self._running}, return_when=asyncio.FIRST_COMPLETED)
        up.cancel()
        if self._running.done():
            self._running.result()
        if not self.started:
            raise InternalError("the HTTP server could not start")

    async def close(self) -> None:
        self.should_exit = True
        self._closing.set()
        if self._running is not None:
            await self._running


def _without_those_who_left(app: Any) -> Any:
    """A client that ends its connection within a body is nothing that went wrong here, and no line of the log."""

    async def served(scope: Any, receive: Any, send: Any) -> None:
        with contextlib.suppress(ClientDisconnect):
            await app(scope, receive, send)

    return served


async def take_in() -> None:
    """Let the loop read what the kernel already holds for us: it was received, so it is to be answered."""
    for _ in range(_TURNS):
        await asyncio.sleep(0)


def is_loopback(url: str) -> bool:
    """Whether an address is this machine's own; such calls never go through a proxy."""
    return urlsplit(url).hostname in ("127.0.0.1", "localhost", "::1")


def listen(host: str, port: int, *, source: str, remedy: str) -> socket.socket:
    """A listening socket, or a clear word about why there is none. Port 0 takes a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio switches Nagle's delay off only for sockets that say they are TCP; without it each answer takes 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except (OSError, OverflowError) as problem:
        listener.close()
        raise _not_listening(problem, host, port, source=source, remedy=remedy) from problem
    return listener


def _not_listening(
    problem: OSError | OverflowError, host: str, port: int, *, source: str, remedy: str
) -> ConfigurationError:
    """Why there is no socket, with the remedy of that cause; the given one is for a port that somebody else has."""
    reason = getattr(problem, "strerror", None) or "cannot be listened on"
    if isinstance(problem, socket.gaierror):
        reason, remedy = "the host's name is unknown", _OWN_ADDRESS
    elif isinstance(problem, OSError) and problem.errno == errno.EADDRNOTAVAIL:
        reason, remedy = "this machine has no such address", _OWN_ADDRESS
    elif isinstance(problem, PermissionError):
        reason = "this user may not listen there; ports below 1024 are privileged"
        remedy = "choose a port from 1024 on, or grant the right (CAP_NET_BIND_SERVICE)"
    elif isinstance(problem, OverflowError):
        reason = "is not a port number"
    return ConfigurationError(reason, source=source, key=f"{host}:{port}", remedy=remedy)
