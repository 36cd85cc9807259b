"""A client without a library: it sends the bytes that it likes, and reads only when it is told to."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

from tests.integration.courier.gateway import DEADLINE_S, INBOX

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA
_MASK = b"\0\0\0\0"  # a mask of zeros is a mask: the bytes stay as they are


def frame(
    payload: bytes = b"", *, opcode: int = TEXT, final: bool = True, masked: bool = True, reserved: int = 0
) -> bytes:
    head = bytes([(0x80 if final else 0) | reserved << 4 | opcode])
    flag, length = (0x80 if masked else 0), len(payload)
    if length < 126:
        head += bytes([flag | length])
    elif length < 2**16:
        head += bytes([flag | 126]) + struct.pack("!H", length)
    else:
        head += bytes([flag | 127]) + struct.pack("!Q", length)
    return head + (_MASK if masked else b"") + payload


class RawSocket:
    """A WebSocket over a plain TCP connection. It answers no ping unless it is told to."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    @property
    def name(self) -> tuple[str, int]:
        """Its own address."""
        address: tuple[str, int] = self._connection.getsockname()
        return address

    async def send(self, data: bytes) -> None:
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.get_running_loop().sock_sendall(self._connection, data)

    async def say(self, **words: Any) -> None:
        await self.send(frame(json.dumps(words).encode()))

    async def read(self, most: int = 65_536) -> bytes:
        """What has come; nothing when the gateway has closed the connection, in whatever way."""
        async with asyncio.timeout(DEADLINE_S):
            try:
                return await asyncio.get_running_loop().sock_recv(self._connection, most)
            except ConnectionError:
                return b""

    async def close_code(self) -> int | None:
        """Read to the end; the code of the close frame, None when there was none."""
        received = bytearray()
        while data := await self.read():
            received += data
            while (length := _frame_length(received)) is not None:
                if received[0] & 0x0F == CLOSE:
                    return int(struct.unpack("!H", received[2:4])[0])
                del received[:length]
        return None

    def answer_pings(self) -> None:
        """From now on, and read nothing else."""
        asyncio.get_running_loop().add_reader(self._connection, self._answer_ping)

    def answer_no_pings(self) -> None:
        asyncio.get_running_loop().remove_reader(self._connection)

    def _answer_ping(self) -> None:
        data = self._connection.recv(65_536)
        if data and data[0] & 0x0F == PING:
            self._connection.send(frame(data[2 : 2 + data[1]], opcode=PONG))
        elif not data:
            self.answer_no_pings()

    def finish(self) -> None:
        """Nothing more will come from here."""
        self._connection.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        """End with RST, as a process that has crashed with unread data."""
        self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._connection.close()


@asynccontextmanager
async def connection(host: str, *, buffer: int | None = None) -> AsyncIterator[RawSocket]:
    """A TCP connection to the gateway; `buffer`: bytes that the machine takes for a client that does not read."""
    name, _, port = host.partition(":")
    with socket.socket() as raw:
        raw.setblocking(False)
        if buffer is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        await asyncio.get_running_loop().sock_connect(raw, (name, int(port)))
        yield RawSocket(raw)


@asynccontextmanager
async def raw_subscriber(
    host: str, stream: str = INBOX, *, credit: int = 0, buffer: int | None = None
) -> AsyncIterator[RawSocket]:
    async with connection(host, buffer=buffer) as raw:
        await raw.send(upgrade(host, f"/v1/subscribe?stream={quote(stream, safe='/*')}"))
        answer = b""
        while b"\r\n\r\n" not in answer:
            data = await raw.read()
            assert data
            answer += data  # no more than the answer: nothing is sent before there is credit
        assert answer.startswith(b"HTTP/1.1 101 ")
        if credit:
            await raw.say(credit=credit)
        yield raw


def upgrade(host: str, path: str) -> bytes:
    lines = (
        f"GET {path} HTTP/1.1",
        f"Host: {host}",
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    )
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def _frame_length(data: bytearray) -> int | None:
    """The bytes of the first frame of a server, which is not masked; None while it is not whole."""
    if len(data) < 10 and not (len(data) >= 2 and len(data) >= 2 + (data[1] & 0x7F)):
        return None
    length, head = data[1] & 0x7F, 2
    if length == 126:
        length, head = struct.unpack("!H", data[2:4])[0], 4
    elif length == 127:
        length, head = struct.unpack("!Q", data[2:10])[0], 10
    return head + length if len(data) >= head + length else None
