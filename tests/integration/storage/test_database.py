"""The pool against a real server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from uuid import UUID

import asyncpg
import pytest

from butlers.clock import ManualClock
from butlers.errors import ConfigurationError, TargetUnavailable
from butlers.storage import database as connecting
from butlers.storage.address import with_database
from butlers.storage.database import Database, create_database_if_missing, open_connection
from butlers.storage.embedded import EmbeddedPostgres
from tests.database import cloned_database_uri
from tests.ports import free_port

DOCUMENT = {"text": "naïve 🙂", "list": [1, 2.5, None, True], "deep": {"a": {"b": []}}}


@pytest.mark.parametrize("kind", ["json", "jsonb"])
@pytest.mark.parametrize("value", [DOCUMENT, [], {}, "text", 1, None, {"big": 2**60}])
async def test_json_columns_take_and_give_values(empty_database: Database, kind: str, value: object):
    await empty_database.execute(f"create table documents (body {kind})")
    await empty_database.execute("insert into documents values ($1)", value)

    assert await empty_database.fetchval("select body from documents") == value


async def test_json_can_be_copied_in(empty_database: Database):
    await empty_database.execute("create table documents (number integer, body jsonb)")
    async with empty_database.transaction() as connection:
        await connection.copy_records_to_table("documents", records=[(1, DOCUMENT), (2, [])])

    assert await empty_database.fetchval("select body->>'text' from documents where number = 1") == "naïve 🙂"


async def test_ids_and_times_are_native(empty_database: Database):
    identifier, moment = UUID(int=7 << 76), datetime(2026, 3, 29, 1, 30, tzinfo=UTC)

    row = await empty_database.fetchrow("select $1::uuid as id, $2::timestamptz as at", identifier, moment)

    assert row is not None
    assert (row["id"], row["at"]) == (identifier, moment)


async def test_a_transaction_commits_or_leaves_nothing(empty_database: Database):
    await empty_database.execute("create table numbers (n integer)")
    async with empty_database.transaction() as connection:
        await connection.execute("insert into numbers values (1)")
    with pytest.raises(ZeroDivisionError):
        async with empty_database.transaction() as connection:
            await connection.execute("insert into numbers values (2)")
            raise ZeroDivisionError

    assert await empty_database.fetchval("select array_agg(n) from numbers") == [1]


async def test_a_transaction_can_ask_for_isolation(empty_database: Database):
    async with empty_database.transaction(isolation="serializable") as connection:
        assert await connection.fetchval("show transaction_isolation") == "serializable"


async def test_many_rows_go_in_wholly_or_not_at_all(empty_database: Database):
    await empty_database.execute("create table numbers (n integer primary key)")
    await empty_database.executemany("insert into numbers values ($1)", [(1,), (2,)])
    with pytest.raises(asyncpg.UniqueViolationError):
        await empty_database.executemany("insert into numbers values ($1)", [(3,), (1,)])

    assert await empty_database.fetchval("select array_agg(n order by n) from numbers") == [1, 2]


async def test_a_transaction_left_open_is_rolled_back_on_return(postgres_server: EmbeddedPostgres):
    async with cloned_database_uri(postgres_server) as uri, await Database.connect(uri, max_size=1) as database:
        async with database.connection() as connection:
            await connection.execute("begin; create table t (n integer)")

        assert await database.fetchval("select to_regclass('t')") is None


async def test_connections_say_who_they_are(postgres_server: EmbeddedPostgres):
    async with (
        cloned_database_uri(postgres_server) as uri,
        await Database.connect(uri, application_name="butlers-finance") as database,
    ):
        assert await database.fetchval("show application_name") == "butlers-finance"


async def test_a_slow_command_is_cut_off(postgres_server: EmbeddedPostgres):
    async with (
        cloned_database_uri(postgres_server) as uri,
        await Database.connect(uri, command_timeout=0.05) as database,
    ):
        with pytest.raises(TargetUnavailable, match="TimeoutError"):
            await database.execute("select pg_sleep(60)")
        assert await database.fetchval("select 1") == 1


async def test_a_missing_database_is_created_once(postgres_server: EmbeddedPostgres):
    async with cloned_database_uri(postgres_server) as uri:
        name = f"{uri.partition('?')[0].rpartition('/')[2]}_new"
        try:
            made = await asyncio.gather(*(create_database_if_missing(uri, name) for _ in range(3)))
            assert sorted(made) == [False, False, True]
            assert not await create_database_if_missing(uri, name)
            async with await Database.connect(with_database(uri, name)) as database:
                assert await database.fetchval("select current_database()") == name
        finally:
            connection = await open_connection(uri)
            await connection.execute(f'drop database "{name}" with (force)')
            await connection.close()


async def test_a_database_that_does_not_exist_is_named(postgres_server: EmbeddedPostgres):
    with pytest.raises(ConfigurationError, match="/nowhere: there is no such database"):
        await Database.connect(postgres_server.uri("nowhere"))


async def test_a_server_that_is_away_is_reported_without_the_password():
    port = free_port()
    with pytest.raises(ConfigurationError, match=r"no server answered within 0\.2 seconds") as refused:
        await Database.connect(f"postgresql://me:secret@127.0.0.1:{port}/butlers", wait=0.2)

    assert refused.value.source == "DATABASE_URL"
    assert f"127.0.0.1:{port}/butlers" in str(refused.value)
    assert "secret" not in str(refused.value) + repr(refused.value.__cause__)


async def test_a_server_that_comes_late_is_waited_for(
    postgres_server: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch
):
    attempt, failures = connecting._attempt, iter([ConnectionRefusedError(), asyncpg.CannotConnectNowError()])

    async def fail_twice(*arguments: str) -> connecting.Connection:
        for failure in failures:
            raise failure
        return await attempt(*arguments)

    monkeypatch.setattr(connecting, "_attempt", fail_twice)
    clock = ManualClock()
    opening = asyncio.create_task(open_connection(postgres_server.uri(), clock=clock))
    async with asyncio.timeout(10):
        while not opening.done():
            clock.advance(0.1)
            await asyncio.sleep(0)
    await opening.result().close()


@asynccontextmanager
async def server_that_says(*messages: bytes) -> AsyncIterator[int]:
    """Something on a port that answers the first message of a client."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1000):
            if data.endswith(b"\x04\xd2\x16\x2f"):  # may I encrypt?
                writer.write(b"N")
                continue
            writer.writelines(messages)
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


def message(kind: bytes, body: bytes) -> bytes:
    return kind + (len(body) + 4).to_bytes(4) + body


async def test_a_server_that_is_too_old_is_refused():
    welcome = message(b"R", bytes(4)) + message(b"S", b"server_version\x0014.9\0") + message(b"Z", b"I")
    async with server_that_says(welcome) as port:
        with pytest.raises(ConfigurationError, match=r"the server is PostgreSQL 14 \(use PostgreSQL 15 or newer"):
            await Database.connect(f"postgresql://me:secret@127.0.0.1:{port}/butlers")


async def test_a_wrong_password_is_reported_at_once_and_not_shown():
    refusal = message(b"E", b'SFATAL\0C28P01\0Mpassword authentication failed for user "me"\0\0')
    async with server_that_says(refusal) as port:
        with pytest.raises(ConfigurationError, match="refuses this user or password") as refused:
            await Database.connect(f"postgresql://me:secret@127.0.0.1:{port}/butlers")

    assert "secret" not in str(refused.value) + repr(refused.value.__cause__)


async def test_an_address_the_driver_cannot_read_is_not_shown():
    with pytest.raises(ConfigurationError, match="the address cannot be read") as refused:
        await Database.connect("postgresql://me:secret@localhost:99999999/butlers")

    assert "secret" not in str(refused.value)
    assert refused.value.__cause__ is None
