"""Where the records of a journal lie: a file, or a table of PostgreSQL."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import asyncpg
from pydantic_core import from_json, to_json

from butlers.courier.config import Journal as JournalConfig
from butlers.courier.journal import JournalStore, Record
from butlers.errors import ConfigurationError

AT_ONCE = 1_000  # records of a journal that is written anew


async def open_store(config: JournalConfig) -> JournalStore | None:
    """None: nothing is to survive."""
    if config.kind == "jsonl" and config.path is not None:
        return JsonlStore(Path(config.path))
    if config.kind == "postgres" and config.dsn is not None:
        return await PostgresStore.open(config.dsn)
    return None


class JsonlStore:
    """A file of one record a line. One process at a time has it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._opened(path)
        self._size = 0  # bytes that are whole records

    @property
    def size(self) -> int:
        return self._size

    async def load(self) -> AsyncIterator[Record]:
        for record in await asyncio.to_thread(lambda: list(self._records())):
            yield record

    async def append(self, records: list[Record]) -> None:
        await asyncio.to_thread(self._append, b"".join(to_json(record) + b"\n" for record in records))

    async def replace(self, records: Iterator[Record]) -> int:
        return await asyncio.to_thread(self._replace, records)

    async def close(self) -> None:
        os.close(self._file)

    def _opened(self, path: Path) -> int:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(file)
            raise ConfigurationError(
                "another process has this journal", source=str(path), key="journal.path", remedy="name another file"
            ) from None
        return file

    def _records(self) -> Iterator[Record]:
        with os.fdopen(os.dup(self._file), "rb") as lines:
            lines.seek(0)
            for number, line in enumerate(lines, start=1):
                if not line.endswith(b"\n"):
                    return  # a crash has cut it short; the next record is written over it
                try:
                    record = from_json(line)
                except ValueError:
                    raise self._damaged(number) from None
                self._size += len(line)
                yield record

    def _append(self, lines: bytes) -> None:
        try:
            written = os.pwrite(self._file, lines, self._size)
            if written != len(lines):
                raise OSError("the disk took the beginning only")
            os.ftruncate(self._file, self._size + len(lines))
            os.fsync(self._file)
        except OSError:
            os.ftruncate(self._file, self._size)
            raise
        self._size += len(lines)

    def _replace(self, records: Iterator[Record]) -> int:
        fresh = self._path.with_suffix(".new")
        file = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            count = size = 0
            while lines := [to_json(record) + b"\n" for record in islice(records, AT_ONCE)]:
                data = b"".join(lines)
                if os.pwrite(file, data, size) != len(data):
                    raise OSError("the disk took the beginning only")
                count, size = count + len(lines), size + len(data)
            os.fsync(file)
            fresh.replace(self._path)
        except OSError:
            os.close(file)
            raise
        os.close(self._file)
        self._file, self._size = file, size
        folder = os.open(self._path.parent, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
        return count

    def _damaged(self, number: int) -> ConfigurationError:
        return ConfigurationError(
            "this line is no record, and records follow it",
            source=f"{self._path}:{number}",
            key="journal.path",
            remedy="restore the file, or remove the line and lose what it says",
        )


class PostgresStore:
    """The records as rows of `courier.journal`. A lock of the session keeps other processes out."""

    LOCK = 0x636F7572  # "cour"

    def __init__(self, dsn: str, connection: asyncpg.Connection[Any]) -> None:
        self._dsn = dsn
        self._connection = connection
        self.size = 0  # not known

    @classmethod
    async def open(cls, dsn: str) -> PostgresStore:
        connection = await cls._locked(dsn)
        if connection is None:
            raise ConfigurationError(
                "another process has this journal", source="courier", key="journal.dsn", remedy="stop the other one"
            )
        await connection.execute(
            "CREATE SCHEMA IF NOT EXISTS courier;"
            "CREATE TABLE IF NOT EXISTS courier.journal"
            " (number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, record text NOT NULL)"
        )
        return cls(dsn, connection)

    @classmethod
    async def _locked(cls, dsn: str) -> asyncpg.Connection[Any] | None:
        """None: another process has the lock."""
        connection: asyncpg.Connection[Any] = await asyncpg.connect(dsn)
        if await connection.fetchval("SELECT pg_try_advisory_lock($1)", cls.LOCK):
            return connection
        await connection.close()
        return None

    async def _connected(self) -> asyncpg.Connection[Any]:
        """The connection, or a new one where the server has ended it, as a restart does."""
        if self._connection.is_closed():
            connection = await self._locked(self._dsn)
            if connection is None:
                raise ConnectionError("another process has this journal")
            self._connection = connection
        return self._connection

    async def load(self) -> AsyncIterator[Record]:
        async with self._connection.transaction():
            async for row in self._connection.cursor(
                "SELECT record FROM courier.journal ORDER BY number", prefetch=1_000
            ):
                yield from_json(row["record"])

    async def append(self, records: list[Record]) -> None:
        await self._insert(_rows(records))

    async def _insert(self, rows: list[str]) -> None:
        connection = await self._connected()
        try:
            await connection.execute(
                "INSERT INTO courier.journal (record)"
                " SELECT given FROM unnest($1::text[]) WITH ORDINALITY AS row (given, at) ORDER BY at",
                rows,
            )
        except (asyncpg.InternalClientError, asyncpg.InterfaceError):
            connection.terminate()  # it has not noticed yet that the server is gone
            raise

    async def replace(self, records: Iterator[Record]) -> int:
        count, connection = 0, await self._connected()
        async with connection.transaction():
            await connection.execute("DELETE FROM courier.journal")
            while rows := await asyncio.to_thread(_rows, islice(records, AT_ONCE)):
                await self._insert(rows)
                count += len(rows)
        return count

    async def close(self) -> None:
        await self._connection.close()


def _rows(records: Iterable[Record]) -> list[str]:
    return [to_json(record).decode() for record in records]
