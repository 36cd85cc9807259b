"""One connection to Redis, on which calls follow each other without waiting for the replies before them.

The client library connects (encryption, login, choice of the database) and reads; its pool, its retries and its way to
pack a command are left out, because together they take longer than the call itself. Nothing is sent twice: when the
connection is lost, each call on its way gets `TargetUnavailable`, and the next call connects again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from redis.asyncio import ConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError

from butlers.errors import TargetUnavailable

CONNECT_S, ANSWER_S, RETRY_AFTER_S = 2.0, 5.0, 2.0
Waiting = deque[asyncio.Future[Any]]  # for replies, in the order of the calls


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
            url,
            decode_responses=True,
            protocol=2,
            retry=Retry(NoBackoff(), 0),
            socket_connect_timeout=CONNECT_S,
            socket_timeout=None,  # `call` has one
        )
        self._turn = asyncio.Lock()  # of the call that connects
        self._open: tuple[Any, Waiting, asyncio.Task[None]] | None = None

    async def call(self, command: Command, *arguments: str | int) -> Any:
        """The reply; a `ResponseError` where Redis reports one. Raises `TargetUnavailable`."""
        data = command.packed(arguments)
        try:
            async with asyncio.timeout(ANSWER_S):
                connection, waiting, _ = self._open or await self._connect()
                reply = asyncio.get_running_loop().create_future()
                waiting.append(reply)  # in the same step as the write, so that both have the same order
                await connection.send_packed_command(data, check_health=False)
                return await reply
        except (RedisError, OSError) as error:
            if isinstance(error, TimeoutError):
                self._lose(error)  # a server that is gone may never hang up
            problem = f"the Redis of the outbound queue does not answer ({type(error).__name__})"
            raise TargetUnavailable(problem, retry_after=RETRY_AFTER_S) from error

    async def close(self) -> None:
        if self._open is not None:
            connection, _, reader = self._open
            self._lose(RedisConnectionError("the queue is closed"))
            await asyncio.gather(reader, return_exceptions=True)
            await connection.disconnect()

    async def _connect(self) -> tuple[Any, Waiting, asyncio.Task[None]]:
        async with self._turn:
            if self._open is None:
                connection = self._pool.make_connection()
                await connection.connect()
                waiting: Waiting = deque()
                reader = asyncio.create_task(self._read(connection, waiting), name="outbound queue in Redis")
                self._open = connection, waiting, reader
            return self._open

    async def _read(self, connection: Any, waiting: Waiting) -> None:
        while True:
            try:
                reply = await connection.read_response(disconnect_on_error=False)
            except ResponseError as error:
                reply = error
            except (RedisError, OSError) as error:
                self._lose(error)
                with suppress(RedisError, OSError):
                    await connection.disconnect(nowait=True)
                return
            future = waiting.popleft()
            if not future.done():  # its caller went away
                future.set_result(reply)

    def _lose(self, error: Exception) -> None:
        """Every call on its way fails; the next one connects again."""
        if self._open is None:
            return
        _, waiting, reader = self._open
        self._open = None
        for future in waiting:
            if not future.done():
                future.set_exception(RedisConnectionError(str(error)))
        if reader is not asyncio.current_task():
            reader.cancel()
