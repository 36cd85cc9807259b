"""Closing a connection instead of answering.

ASGI has no word for it: an application that returns without a response makes uvicorn answer 500. So our protocol
classes put the connection's transport into the scope, and `DroppedConnection` aborts it and waits until uvicorn has
noticed that nobody listens any more.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from starlette.responses import Response
from uvicorn.protocols.http.h11_impl import H11Protocol

from butlers.serving.bounded_http import BoundedHttp
from butlers.serving.peer_account import with_account

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
