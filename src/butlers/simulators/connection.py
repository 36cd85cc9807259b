"""The simulators' connections: listening, dropping one instead of answering, and pauses that end at a stop."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any

from starlette.responses import Response
from uvicorn.protocols.http.h11_impl import H11Protocol

from butlers.clock import Clock
from butlers.serving.bounded_http import BoundedHttp
from butlers.serving.peer_account import with_account
from butlers.serving.server import listen

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

_TRANSPORT = "butlers.transport"


class DroppedConnection(Response):
    """No answer at all: the client sees the connection break."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        transport: asyncio.Transport = scope[_TRANSPORT]
        transport.abort()
        while (await receive())["type"] != "http.disconnect":
            pass


class DroppableHttpTools(BoundedHttp):
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.app = _with_transport(self.app, transport)


class DroppableH11(H11Protocol):
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.app_state = with_account(self.app_state, transport)
        self.app = _with_transport(self.app, transport)


def _with_transport(app: Any, transport: asyncio.Transport) -> Any:
    async def aware(scope: Any, receive: Any, send: Any) -> None:
        await app(scope | {_TRANSPORT: transport}, receive, send)

    return aware


class Pauses:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: set[asyncio.Task[None]] = set()
        self._closed = False

    async def sleep(self, seconds: float) -> None:
        if self._closed:
            return
        timer = asyncio.ensure_future(self._clock.sleep(seconds))
        self._waiting.add(timer)
        try:
            await asyncio.wait({timer})
        finally:
            self._waiting.discard(timer)
            timer.cancel()

    def close(self) -> None:
        """End every pause, and let none begin."""
        self._closed = True
        for timer in self._waiting:
            timer.cancel()


def listen_as(simulator: str, host: str, port: int) -> socket.socket:
    return listen(host, port, source=simulator, remedy="choose another port, 0 takes a free one")
