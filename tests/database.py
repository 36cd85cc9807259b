"""Databases for tests: one embedded server per test session, one fresh database per test.

The process that started pytest chooses a temporary directory and hands its name to xdist's workers in the
environment. Each worker uses the server in there like any other process would: the first one starts it, the last one
stops it. What a killed worker leaves behind, the process that started pytest clears away at the end; what a killed
pytest leaves behind, the next one clears away at its start.

A list of migrations is applied once, to a template; each test gets a copy of the template, which takes about 30 ms
(the server copies files and need not flush them).
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from uuid import uuid4

import asyncpg

from butlers.storage.database import Connection, Database, open_connection
from butlers.storage.embedded import EmbeddedPostgres
from butlers.storage.files import FileLock
from butlers.storage.migrations import MigrationSet, migrate
from butlers.storage.queries import quote_identifier

SESSION_DIRECTORY = "BUTLERS_TEST_SESSION_DIRECTORY"
_PREFIX = "butlers-tests-"
_QUIET = "quiet"
_BUILT: set[tuple[str, str]] = set()  # (server, template) that this process has seen


class ServerDirectory:
    """The temporary directory of one test session, removed with the server in it."""

    def __init__(self) -> None:
        _clear_abandoned_directories()
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        self._alive = FileLock(self.path / "session.lock")
        self._alive.hold()

    def remove(self) -> None:
        _remove(self.path)
        self._alive.release()


def _clear_abandoned_directories() -> None:
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        lock = FileLock(path / "session.lock")
        try:
            if (path / "session.lock").exists() and lock.try_hold():
                _remove(path)
        except OSError:
            continue  # another user's, or gone by now
        finally:
            lock.release()


def _remove(path: Path) -> None:
    quiet = path / _QUIET
    if quiet.exists() and not EmbeddedPostgres(quiet, durable=False).stop():
        return
    if EmbeddedPostgres(path, durable=False).stop():
        shutil.rmtree(path, ignore_errors=True)


def session_server() -> EmbeddedPostgres:
    """The server of this test session, not started yet."""
    return EmbeddedPostgres(Path(os.environ[SESSION_DIRECTORY]), durable=False)


def quiet_server() -> EmbeddedPostgres:
    """Another one, for tests that look at the whole server: which of its transactions are still open."""
    directory = Path(os.environ[SESSION_DIRECTORY]) / _QUIET
    directory.mkdir(exist_ok=True)
    return EmbeddedPostgres(directory, durable=False)


@asynccontextmanager
async def cloned_database(
    server: EmbeddedPostgres, migration_sets: Sequence[MigrationSet] = (), *, max_size: int = 10
) -> AsyncIterator[Database]:
    """A database of its own with the migrations applied, dropped at the end."""
    async with (
        cloned_database_uri(server, migration_sets) as uri,
        await Database.connect(uri, max_size=max_size) as database,
    ):
        yield database


@asynccontextmanager
async def cloned_database_uri(
    server: EmbeddedPostgres, migration_sets: Sequence[MigrationSet] = ()
) -> AsyncIterator[str]:
    """The address of such a database, for processes and pools that the test starts itself."""
    template = await _template(server, migration_sets) if migration_sets else "template1"
    name = f"test_{uuid4().hex}"
    origin = f"template {quote_identifier(template)} strategy file_copy"
    await _on_server(server, f"create database {quote_identifier(name)} {origin}")
    try:
        yield server.uri(name)
    finally:
        await _drop(server, name)


async def _drop(server: EmbeddedPostgres, name: str) -> None:
    """Our role may end its own sessions, but not a worker of autovacuum; that one is soon done."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await _on_server(server, f"drop database {quote_identifier(name)} with (force)")
            except asyncpg.InsufficientPrivilegeError:
                await asyncio.sleep(0.1)


async def _on_server(server: EmbeddedPostgres, statement: str) -> None:
    connection = await open_connection(server.uri())
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


async def _template(server: EmbeddedPostgres, migration_sets: Sequence[MigrationSet]) -> str:
    name = f"template_{_fingerprint(tuple(migration_sets))}"
    if (server.uri(), name) in _BUILT:
        return name
    connection = await open_connection(server.uri())
    try:
        # The lock is the session's: it ends with the connection, also when building fails.
        await connection.execute("select pg_advisory_lock(hashtextextended($1, 0))", name)
        if not await connection.fetchval("select true from pg_database where datname = $1", name):
            await _build_template(server, connection, name, migration_sets)
    finally:
        await connection.close()
    _BUILT.add((server.uri(), name))
    return name


async def _build_template(
    server: EmbeddedPostgres, connection: Connection, name: str, migration_sets: Sequence[MigrationSet]
) -> None:
    unfinished = f"unfinished_{name}"
    await connection.execute(f"drop database if exists {quote_identifier(unfinished)} with (force)")
    await connection.execute(f"create database {quote_identifier(unfinished)}")
    async with await Database.connect(server.uri(unfinished), max_size=1) as database:
        await migrate(database, migration_sets)
    # A template that somebody is connected to cannot be copied; this keeps the server's own workers out too.
    await connection.execute(f"alter database {quote_identifier(unfinished)} allow_connections false")
    await connection.execute(f"alter database {quote_identifier(unfinished)} rename to {quote_identifier(name)}")


@cache
def _fingerprint(migration_sets: tuple[MigrationSet, ...]) -> str:
    digest = hashlib.sha256()
    for migration_set in migration_sets:
        digest.update(f"{migration_set.schema}/{migration_set.component}".encode())
        for migration in migration_set.load():
            digest.update(f"{migration.version}{migration.checksum}".encode())
    return digest.hexdigest()[:32]
