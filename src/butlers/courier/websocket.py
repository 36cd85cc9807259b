"""uvicorn's WebSocket protocol, quicker for sockets that say and hear many small frames.

What differs: reading is paused when many frames wait, not for each of them (two system calls a frame); a waiting reader
costs one future; and a subscriber's frames are written to the transport without a task or an ASGI message in between.
uvloop joins the writes of one turn of the loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from starlette.websockets import WebSocket
from websockets.frames import Frame
from websockets.http11 import Request

from butlers.courier.bounded_socket import BoundedSocket

MOST_WAITING: Final = 64  # frames of a client that wait for their turn; then its socket is not read
LARGEST_WAITING: Final = 16_384  # bytes; a larger frame pauses reading by itself
_EXTENSION: Final = "butlers.frames"
_TEXT, _BINARY = 0x81, 0x82  # a whole message in one frame


class Inbox:
    """An `asyncio.Queue` for one reader, as far as uvicorn uses it."""

    def __init__(self) -> None:
        self._events: deque[Any] = deque()
        self._waiter: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        return len(self._events)

    def empty(self) -> bool:
        return not self._events

    def put_nowait(self, event: Any) -> None:
        self._events.append(event)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def get(self) -> Any:
        while not self._events:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self._events.popleft()


class FrameProtocol(BoundedSocket):
    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._inbox = Inbox()
        self.queue = self._inbox  # type: ignore[assignment]
        self.on_writable: Callable[[], None] | None = None

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        if hasattr(self, "scope"):
            extensions: dict[str, Any] = self.scope["extensions"]
            extensions[_EXTENSION] = self

    # --- in ----------------------------------------------------------------------------------------------------------

    def handle_text(self, event: Frame) -> None:
        if self._waits_its_turn(event):
            try:
                self._inbox.put_nowait({"type": "websocket.receive", "text": event.data.decode()})  # type: ignore[union-attr]
                return
            except UnicodeDecodeError:
                pass  # uvicorn closes the socket
        super().handle_text(event)

    def handle_bytes(self, event: Frame) -> None:
        if self._waits_its_turn(event):
            self._inbox.put_nowait({"type": "websocket.receive", "bytes": event.data})
        else:
            super().handle_bytes(event)

    def _waits_its_turn(self, event: Frame) -> bool:
        """Whether the frame may wait while the socket is read on."""
        small = len(event.data) <= LARGEST_WAITING and len(self._inbox) < MOST_WAITING
        return small and event.fin and not self.close_sent

    # --- out ---------------------------------------------------------------------------------------------------------

    @property
    def is_writable(self) -> bool:
        """Whether the client takes what it is sent: the transport holds no more than its limit."""
        return self.writable.is_set()

    def write_message(self, data: bytes, *, binary: bool) -> None:
        """A whole message; nothing, when the socket is closing."""
        if self.close_sent or self.transport.is_closing():
            return
        self.transport.write(_head(_BINARY if binary else _TEXT, len(data)) + data)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._tell_writable()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._tell_writable()  # what waits for the client goes nowhere, and nothing waits for it any more

    def _tell_writable(self) -> None:
        if self.on_writable is not None:
            self.on_writable()


def protocol_of(socket: WebSocket) -> FrameProtocol:
    found: FrameProtocol = socket.scope["extensions"][_EXTENSION]
    return found


def _head(kind: int, length: int) -> bytes:
    """RFC 6455, section 5.2; what a server sends is not masked."""
    if length < 126:
        return bytes((kind, length))
    if length < 65_536:
        return bytes((kind, 126)) + length.to_bytes(2)
    return bytes((kind, 127)) + length.to_bytes(8)
