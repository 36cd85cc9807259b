"""One connection to Redis, on which calls follow each other without waiting for the replies before them.

The client library connects (encryption, login, choice of the database) and hands the socket over. Its pool, its
retries, its packing and its reading are left out, because together they take longer than the call itself. Nothing is
sent twice: when the connection is lost, each call on its way gets `TargetUnavailable`, and the next one connects again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Generator, Sequence
from typing import Any

from redis.asyncio import ConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from butlers.errors import TargetUnavailable

CONNECT_S, ANSWER_S, RETRY_AFTER_S = 2.0, 5.0, 2.0


class RefusedCall(Exception):
    """What Redis reports instead of a reply: a code such as NOSCRIPT or OOM, and a text."""


class Command:
    """A command and its first arguments, in the protocol of Redis."""

    def __init__(self, *beginning: str | int) -> None:
        self._beginning = _packed(beginning)
        self._length = len(beginning)

    def packed(self, arguments: Sequence[str | int]) -> bytes:
        return b"*%d\r\n%b%b" % (self._length + len(arguments), self._beginning, _packed(arguments))


def _packed(arguments: Sequence[str | int]) -> bytes:
    texts = [str(argument).encode() for argument in arguments]
    return b"".join([b"$%d\r\n%b\r\n" % (len(text), text) for text in texts])


class RedisConnection:
    """Opened by the first call. All calls come from one event loop."""

    def __init__(self, url: str) -> None:
        self._pool: Any = ConnectionPool.from_url(
            url, protocol=2, retry=Retry(NoBackoff(), 0), socket_connect_timeout=CONNECT_S, socket_timeout=ANSWER_S
        )
        self._turn = asyncio.Lock()  # of the call that connects
        self._socket: _Socket | None = None

    async def call(self, command: Command, *arguments: str | int) -> Any:
        """The reply, or a `RefusedCall`. Raises `TargetUnavailable`."""
        data = command.packed(arguments)
        try:
            socket = self._socket
            if socket is None or not socket.is_open:
                socket = await self._connect()
            return await socket.call(data)
        except (RedisError, OSError) as error:
            problem = f"the Redis of the outbound queue does not answer ({type(error).__name__})"
            raise TargetUnavailable(problem, retry_after=RETRY_AFTER_S) from error

    async def close(self) -> None:
        if self._socket is not None:
            await self._socket.close()

    async def _connect(self) -> _Socket:
        async with self._turn:
            if self._socket is None or not self._socket.is_open:
                connection = self._pool.make_connection()
                await connection.connect()
                self._socket = _Socket(connection)
            return self._socket


class _Socket(asyncio.Protocol):
    """Replies come in the order of the calls."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection  # held, because it closes the socket when it is collected
        self._transport: asyncio.Transport = connection._writer.transport
        self._transport.set_protocol(self)
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[asyncio.Future[Any]] = deque()
        self._replies = _replies()
        next(self._replies)
        self._closed = self._loop.create_future()

    @property
    def is_open(self) -> bool:
        return not (self._closed.done() or self._transport.is_closing())

    async def call(self, data: bytes) -> Any:
        reply = self._loop.create_future()
        self._waiting.append(reply)
        self._transport.write(data)
        try:
            async with asyncio.timeout(self._connection.socket_timeout):
                return await reply
        except TimeoutError:
            self._transport.abort()  # a server that is gone may never hang up
            raise

    def data_received(self, data: bytes) -> None:
        for reply in self._replies.send(data):
            future = self._waiting.popleft()
            if not future.done():  # its caller went away
                future.set_result(reply)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._closed.done():
            self._closed.set_result(None)
        for future in self._waiting:
            if not future.done():
                future.set_exception(ConnectionResetError("the connection was lost"))
        self._waiting.clear()

    async def close(self) -> None:
        self._transport.close()
        await self._closed


def _replies() -> Generator[list[Any], bytes, None]:
    """Takes what was received, and gives the replies that are complete."""
    buffer, done = _Buffer(), list[Any]()
    while True:
        parser = _reply(buffer)
        try:
            while True:
                next(parser)
                buffer.add((yield done))
                done = []
        except StopIteration as end:
            done.append(end.value)


class _Buffer:
    def __init__(self) -> None:
        self._data = bytearray()
        self._at = 0

    def add(self, data: bytes) -> None:
        if self._at:
            del self._data[: self._at]
            self._at = 0
        self._data += data

    def line(self) -> bytes | None:
        """Up to the end of a line."""
        end = self._data.find(b"\r\n", self._at)
        if end < 0:
            return None
        found = bytes(self._data[self._at : end])
        self._at = end + 2
        return found

    def take(self, size: int) -> bytes | None:
        """So many bytes and the end of the line after them."""
        end = self._at + size
        if len(self._data) < end + 2:
            return None
        found = bytes(self._data[self._at : end])
        self._at = end + 2
        return found


def _reply(buffer: _Buffer) -> Generator[None, None, Any]:
    """One reply in the second version of the protocol; yields when there is not enough yet."""
    while (line := buffer.line()) is None:
        yield
    kind, rest = line[:1], line[1:]
    if kind == b":":
        return int(rest)
    if kind == b"$":
        size = int(rest)
        if size < 0:
            return None
        while (data := buffer.take(size)) is None:
            yield
        return data.decode()
    if kind == b"*":
        items = []
        for _ in range(int(rest)):
            items.append((yield from _reply(buffer)))
        return items
    text = rest.decode(errors="replace")
    return RefusedCall(text) if kind == b"-" else text
