"""Month partitions on a real server."""

from __future__ import annotations

import asyncio
from datetime import UTC, date, datetime

import asyncpg
import pytest

from butlers.storage.database import Database
from butlers.storage.embedded import EmbeddedPostgres
from butlers.storage.retention import (
    DroppedPartition,
    add_months,
    drop_month_partitions_before,
    ensure_month_partitions,
    list_month_partitions,
)
from tests.database import cloned_database

SCHEMA, TABLE = 'switch"board', "message_inbox"


@pytest.fixture
async def database(empty_database: Database) -> Database:
    await empty_database.execute(
        """
        create schema "switch""board";
        create table "switch""board".message_inbox (
            request_id  uuid        not null default gen_random_uuid(),
            received_at timestamptz not null,
            body        text        not null default 'x' check (body <> ''),
            primary key (request_id, received_at)
        ) partition by range (received_at);
        create index on "switch""board".message_inbox (received_at);
        """
    )
    return empty_database


async def ensure(database: Database, first: date, ahead: int) -> list[str]:
    async with database.connection() as connection:
        made = await ensure_month_partitions(connection, SCHEMA, TABLE, first, ahead)
    return [partition.name for partition in made]


async def insert(database: Database, *moments: datetime) -> None:
    await database.executemany(
        'insert into "switch""board".message_inbox (received_at) values ($1)', [(moment,) for moment in moments]
    )


async def test_this_month_and_the_months_ahead_are_made_once(database: Database):
    assert await ensure(database, date(2026, 11, 15), 2) == [
        "message_inbox_p202611",
        "message_inbox_p202612",
        "message_inbox_p202701",
    ]
    assert await ensure(database, date(2026, 11, 30), 2) == []
    assert await ensure(database, date(2026, 12, 1), 2) == ["message_inbox_p202702"]


async def test_bounds_are_months_in_utc(database: Database):
    await ensure(database, date(2026, 2, 1), 0)
    async with database.transaction() as connection:
        await connection.execute("set local timezone = 'Pacific/Auckland'")
        await ensure_month_partitions(connection, SCHEMA, TABLE, date(2026, 3, 1), 0)
    await insert(database, datetime(2026, 2, 1, tzinfo=UTC), datetime(2026, 2, 28, 23, 59, 59, 999999, tzinfo=UTC))
    await insert(database, datetime(2026, 3, 1, tzinfo=UTC), datetime(2026, 3, 31, 23, 59, 59, tzinfo=UTC))

    rows = await database.fetch(
        'select tableoid::regclass::text as home, count(*) as n from "switch""board".message_inbox'
        " group by 1 order by 1"
    )
    assert [(row["home"].rpartition(".")[2], row["n"]) for row in rows] == [
        ("message_inbox_p202602", 2),
        ("message_inbox_p202603", 2),
    ]
    with pytest.raises(asyncpg.CheckViolationError, match="no partition"):
        await insert(database, datetime(2026, 4, 1, tzinfo=UTC))


async def test_partitions_have_the_tables_defaults_checks_and_indexes(database: Database):
    await ensure(database, date(2026, 2, 1), 0)
    await insert(database, datetime(2026, 2, 1, tzinfo=UTC))

    with pytest.raises(asyncpg.CheckViolationError):
        await database.execute('update "switch""board".message_inbox set body = $1', "")
    assert await database.fetchval("select count(*) from pg_indexes where tablename = 'message_inbox_p202602'") == 2


async def test_old_months_are_dropped_and_counted(database: Database):
    await ensure(database, date(2026, 1, 1), 3)
    await insert(database, datetime(2026, 1, 3, tzinfo=UTC), datetime(2026, 1, 4, tzinfo=UTC))
    await insert(database, datetime(2026, 3, 1, tzinfo=UTC))

    async with database.connection() as connection:
        dropped = await drop_month_partitions_before(connection, SCHEMA, TABLE, date(2026, 3, 17))
        left = await list_month_partitions(connection, SCHEMA, TABLE)
        again = await drop_month_partitions_before(connection, SCHEMA, TABLE, date(2026, 3, 17))

    assert dropped == [
        DroppedPartition(name="message_inbox_p202601", rows=2),
        DroppedPartition(name="message_inbox_p202602", rows=0),
    ]
    assert [partition.month for partition in left] == [date(2026, 3, 1), date(2026, 4, 1)]
    assert again == []
    assert await database.fetchval('select count(*) from "switch""board".message_inbox') == 1


async def test_partitions_that_are_not_months_are_left_alone(database: Database):
    await database.execute(
        'create table "switch""board".message_inbox_default partition of "switch""board".message_inbox default'
    )
    async with database.connection() as connection:
        assert await list_month_partitions(connection, SCHEMA, TABLE) == []
        assert await drop_month_partitions_before(connection, SCHEMA, TABLE, date(2030, 1, 1)) == []


async def test_many_processes_may_make_partitions_at_once(database: Database):
    made = await asyncio.gather(*(ensure(database, date(2026, 1, 1), 5) for _ in range(6)))

    assert sorted(name for names in made for name in names) == [f"message_inbox_p20260{n}" for n in range(1, 7)]


async def test_making_a_month_does_not_wait_for_writers(database: Database):
    await ensure(database, date(2026, 1, 1), 0)
    async with database.transaction() as writer:
        await writer.execute(
            'insert into "switch""board".message_inbox (received_at) values ($1)', datetime(2026, 1, 2, tzinfo=UTC)
        )
        async with asyncio.timeout(10):
            assert await ensure(database, date(2026, 2, 1), 0) == ["message_inbox_p202602"]


async def test_a_name_that_would_be_cut_off_is_refused(postgres_server: EmbeddedPostgres):
    async with cloned_database(postgres_server) as database, database.connection() as connection:
        with pytest.raises(ValueError, match="longer than 63 bytes"):
            await ensure_month_partitions(connection, "public", "x" * 60, date(2026, 1, 1), 0)


@pytest.mark.parametrize(
    ("month", "count", "expected"),
    [
        (date(2026, 1, 31), 1, date(2026, 2, 1)),
        (date(2026, 12, 1), 1, date(2027, 1, 1)),
        (date(2026, 1, 1), -1, date(2025, 12, 1)),
        (date(2026, 6, 30), 0, date(2026, 6, 1)),
        (date(2026, 6, 1), 30, date(2028, 12, 1)),
    ],
)
def test_months_are_counted_across_years(month: date, count: int, expected: date):
    assert add_months(month, count) == expected
