"""The group committer with real transactions."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import asyncpg

from butlers.storage.database import Database
from butlers.storage.group_commit import GroupCommitter


async def test_hundreds_of_writes_share_a_few_transactions_and_a_bad_one_fails_alone(empty_database: Database):
    await empty_database.execute(
        "create table numbers (n integer primary key check (n <> 13), xid xid8 not null default pg_current_xact_id())"
    )

    async def commit(numbers: Sequence[int]) -> Sequence[int]:
        async with empty_database.transaction() as connection:
            rows = await connection.fetch(
                "insert into numbers (n) select unnest($1::integer[]) returning n * 10 as tenfold", list(numbers)
            )
        return [row["tenfold"] for row in rows]

    committer = GroupCommitter(commit, max_batch=100)
    outcomes = await asyncio.gather(*(committer.submit(n) for n in range(1000)), return_exceptions=True)
    await committer.close()

    assert isinstance(outcomes[13], asyncpg.CheckViolationError)
    assert [outcome for n, outcome in enumerate(outcomes) if n != 13] == [n * 10 for n in range(1000) if n != 13]
    assert await empty_database.fetchval("select count(*) from numbers") == 999
    # Nine full batches, and the one with the bad item again, one by one.
    assert await empty_database.fetchval("select count(distinct xid) from numbers") == 9 + 99


async def test_nothing_is_acknowledged_before_it_is_stored(empty_database: Database):
    await empty_database.execute("create table numbers (n integer primary key)")

    async def commit(numbers: Sequence[int]) -> Sequence[None]:
        async with empty_database.transaction() as connection:
            await connection.executemany("insert into numbers values ($1)", [(n,) for n in numbers])
        return [None] * len(numbers)

    committer = GroupCommitter(commit, lanes=2, max_batch=7)

    async def submit_and_look(n: int) -> bool:
        await committer.submit(n)
        return bool(await empty_database.fetchval("select exists (select from numbers where n = $1)", n))

    assert all(await asyncio.gather(*(submit_and_look(n) for n in range(100))))


async def test_a_lost_database_fails_the_batch_and_the_next_one_works(empty_database: Database):
    await empty_database.execute("create table numbers (n integer primary key)")
    tries = 0

    async def commit(numbers: Sequence[int]) -> Sequence[int]:
        nonlocal tries
        tries += 1
        async with empty_database.transaction() as connection:
            if tries == 1:
                await connection.execute("select pg_terminate_backend(pg_backend_pid())")
            await connection.executemany("insert into numbers values ($1)", [(n,) for n in numbers])
        return numbers

    committer = GroupCommitter(commit)
    outcomes = await asyncio.gather(*(committer.submit(n) for n in range(5)), return_exceptions=True)

    assert all(isinstance(outcome, Exception) for outcome in outcomes)
    assert tries == 1
    assert await committer.submit(7) == 7
