"""One PostgreSQL database behind a pool of connections.

Two rules keep the pool cheap and safe:

- Queries name their schema; nobody relies on `search_path`.
- Nobody leaves state on a connection: no `SET` (only `SET LOCAL`), no session-level advisory lock, no `LISTEN`.
  Therefore a connection goes back without the driver's clean-up query, which saves a round trip per call. An open
  transaction is still rolled back.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias

import asyncpg
from asyncpg.pool import PoolConnectionProxy
from pydantic_core import from_json, to_json

from butlers.clock import Clock
from butlers.errors import TargetUnavailable
from butlers.storage.connection import DATABASE_AWAY, Connection, is_away, open_connection

Record = asyncpg.Record
# Whatever runs SQL: a connection, in the pool or outside.
Executor: TypeAlias = "Connection | PoolConnectionProxy[Record]"
Isolation = Literal["read_committed", "repeatable_read", "serializable"]

_JSONB_VERSION = b"\x01"  # first byte of the binary form
_CLOSE_TIMEOUT = 10.0  # seconds that running queries have when the pool closes


class _StatelessConnection(asyncpg.Connection):
    def get_reset_query(self) -> str:
        return ""


class Database:
    """A pool of connections to one database."""

    def __init__(self, pool: asyncpg.Pool[Record]) -> None:
        self._pool = pool

    @classmethod
    async def connect(
        cls,
        dsn: str,
        *,
        min_size: int = 1,
        max_size: int = 10,
        command_timeout: float = 60.0,  # seconds
        application_name: str = "butlers",
        wait: float = 10.0,  # seconds to wait for a server that does not answer yet
        clock: Clock | None = None,
    ) -> Self:
        """Wait for the server, check it, and open the pool."""
        first = await open_connection(dsn, wait=wait, application_name=application_name, clock=clock)
        await first.close()
        pool = await asyncpg.create_pool(
            dsn,
            min_size=min_size,
            max_size=max_size,
            command_timeout=command_timeout,
            server_settings={"application_name": application_name},
            connection_class=_StatelessConnection,
            init=speak_json,
        )
        return cls(pool)

    async def close(self) -> None:
        """Let running queries finish for a while, then cut them off."""
        try:
            await asyncio.wait_for(self._pool.close(), _CLOSE_TIMEOUT)
        except TimeoutError:
            self._pool.terminate()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Executor]:
        """A connection without a transaction."""
        with _translated():
            async with self._pool.acquire() as connection:
                yield connection

    @asynccontextmanager
    async def transaction(self, *, isolation: Isolation | None = None) -> AsyncIterator[Executor]:
        """A connection inside a transaction: committed at the end, rolled back on any error."""
        with _translated():
            async with self._pool.acquire() as connection, connection.transaction(isolation=isolation):
                yield connection

    async def fetch(self, query: str, *values: Any) -> list[Record]:
        with _translated():
            return await self._pool.fetch(query, *values)

    async def fetchrow(self, query: str, *values: Any) -> Record | None:
        with _translated():
            return await self._pool.fetchrow(query, *values)

    async def fetchval(self, query: str, *values: Any) -> Any:
        with _translated():
            return await self._pool.fetchval(query, *values)

    async def execute(self, query: str, *values: Any) -> str:
        with _translated():
            return await self._pool.execute(query, *values)

    async def executemany(self, query: str, rows: Iterable[Sequence[Any]]) -> None:
        """All rows or none."""
        with _translated():
            await self._pool.executemany(query, rows)


@contextmanager
def _translated() -> Iterator[None]:
    """A server that is away is a passing fault of ours, not of whoever asked."""
    try:
        yield
    except DATABASE_AWAY as error:
        if not is_away(error):
            raise
        raise TargetUnavailable(f"the database is away ({type(error).__name__})", retry_after=1.0) from error


async def speak_json(connection: Executor) -> None:
    """Let `json` and `jsonb` columns take and give Python values; in binary, because COPY knows nothing else."""
    await connection.set_type_codec("json", schema="pg_catalog", format="binary", encoder=to_json, decoder=from_json)
    await connection.set_type_codec(
        "jsonb", schema="pg_catalog", format="binary", encoder=_encode_jsonb, decoder=_decode_jsonb
    )


def _encode_jsonb(value: Any) -> bytes:
    return _JSONB_VERSION + to_json(value)


def _decode_jsonb(data: bytes) -> Any:
    return from_json(data[1:])
