"""uvicorn's WebSocket protocol with bounds for clients that do not play along.

does not read        pongs are left out while it does not; a socket that is to end is ended, read or not
answers no ping      ended after the time between two pings
sends parts          of one message, without end: 1009
sends no UTF-8       1007, and no line of the log
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import CloseCode, Frame

MOST_PARTS = 10_000  # of one message
LINGER_S = 15.0  # how long a client may take for the last frames; more than the closing handshake has


class BoundedSocket(WebSocketsSansIOProtocol):
    _lost: asyncio.Event | None = None  # there while the connection outlives its application

    def keepalive_timeout(self) -> None:
        super().keepalive_timeout()
        self._abort_if_unread()

    def shutdown(self) -> None:
        super().shutdown()
        self._abort_if_unread()

    def handle_ping(self) -> None:
        if self.writable.is_set():
            super().handle_ping()
        else:
            self.conn.data_to_send()  # only the newest ping needs an answer, and nobody reads one

    def handle_cont(self, event: Frame) -> None:
        if self.close_sent:
            return
        if len(self.frames) >= MOST_PARTS:
            self._fail(CloseCode.MESSAGE_TOO_BIG, "too many parts")
        else:
            super().handle_cont(event)

    def send_receive_event_to_app(self) -> None:
        if self.curr_msg_data_type == "text" and not _is_utf8(b"".join(self.frames)):
            self._fail(CloseCode.INVALID_DATA, "is not UTF-8")
        else:
            super().send_receive_event_to_app()

    async def send(self, message: Any) -> None:
        await self.writable.wait()
        if self.close_sent:  # for a frame that cannot be read, or a ping without an answer
            raise ClientDisconnected
        await super().send(message)
        if message["type"] == "websocket.http.response.body":
            self.handshake_complete = True  # it was refused, which is an end of the handshake, too

    async def run_asgi(self) -> None:
        await super().run_asgi()
        if self.disconnected:
            return
        self._lost = asyncio.Event()
        try:
            async with asyncio.timeout(LINGER_S):
                await self._lost.wait()
        except TimeoutError:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._lost is not None:
            self._lost.set()

    def _fail(self, code: CloseCode, reason: str) -> None:
        self.frames = []
        self.conn.fail(code, reason)
        self.handle_parser_exception()

    def _abort_if_unread(self) -> None:
        """A transport that closes waits for its last bytes to be read."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
