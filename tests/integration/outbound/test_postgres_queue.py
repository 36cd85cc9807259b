"""The outbound queue in PostgreSQL: transactions, what survives, and what a dequeue reads of a long queue."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from butlers.clock import ManualClock
from butlers.ids import Uuid7Factory
from butlers.outbound import MIGRATIONS
from butlers.outbound.postgres_queue import PIECES, QUEUE_CLAIMS, PostgresQueue
from butlers.outbound.queue import QueueMessage
from butlers.storage.database import Database
from butlers.storage.embedded import EmbeddedPostgres
from butlers.storage.queries import Queries
from tests.database import cloned_database

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SOME, MANY = 60_000, 1_000_000
MOST_PAGES = 300  # that a dequeue of ten entries reads and writes


@pytest.fixture
async def database(postgres_server: EmbeddedPostgres) -> AsyncIterator[Database]:
    async with cloned_database(postgres_server, [MIGRATIONS], max_size=4) as database:
        yield database


def opened(database: Database) -> PostgresQueue:
    clock = ManualClock(NOW)
    return PostgresQueue(database, clock, Uuid7Factory(clock))


def message(key: str) -> QueueMessage:
    return QueueMessage(key=key, payload={"to": key}, scheduled_at=NOW)


async def test_an_entry_is_written_with_the_callers_transaction_or_not_at_all(database: Database):
    queue = opened(database)
    with pytest.raises(RuntimeError):
        async with database.transaction() as connection:
            assert await queue.enqueue([message("a")], connection=connection) == {"a"}
            raise RuntimeError("the caller fails")
    assert (await queue.stats(now=NOW)).queued == 0
    async with database.transaction() as connection:
        await queue.enqueue([message("a")], connection=connection)
    assert (await queue.stats(now=NOW)).queued == 1


async def test_entries_leases_and_counts_outlive_the_adapter(database: Database):
    queue = opened(database)
    await queue.enqueue([message(key) for key in ("done", "dead", "held", "queued")])
    done, dead, held = await queue.dequeue(now=NOW, limit=3, worker="one")
    await queue.ack(done)
    await queue.dead_letter(dead, "no")
    await queue.close()
    other = opened(database)
    stats = await other.stats(now=NOW)
    assert (stats.queued, stats.in_flight, stats.acknowledged, stats.dead_lettered) == (1, 1, 1, 1)
    await other.ack(held)
    assert [one.reason for one in await other.dead_letters()] == ["no"]


async def test_what_is_done_leaves_no_row(database: Database):
    queue = opened(database)
    await queue.enqueue([message(f"k{number}") for number in range(20)])
    for leased in await queue.dequeue(now=NOW, limit=20, worker="one"):
        await queue.ack(leased)
    assert await database.fetchval("SELECT count(*) FROM outbound.queue") == 0


async def _fill(database: Database, count: int) -> None:
    """Urgent ones that are not due, normal ones of which half are due, and some that dead workers held."""
    await database.execute(
        """
        INSERT INTO outbound.queue (key, payload, priority, scheduled_at, seq, state, claim_token, lease_expires_at)
        SELECT 'k' || n, '{"body": "hello"}', CASE WHEN n % 3 = 0 THEN 0 ELSE 2 END,
            $1::timestamptz + (CASE WHEN n % 3 = 0 THEN 1000000 + n ELSE n - $2 / 2 END) * interval '1 second', n,
            CASE WHEN n % 1000 = 1 THEN 'in_flight' ELSE 'queued' END,
            CASE WHEN n % 1000 = 1 THEN gen_random_uuid() END,
            CASE WHEN n % 1000 = 1 THEN $1::timestamptz - interval '1 second' END
        FROM generate_series(1, $2::integer) AS n
        """,
        NOW,
        count,
        timeout=120,
    )
    await database.execute("INSERT INTO outbound.queue_entered VALUES ($1)", count)


async def _pages_of_a_dequeue(database: Database, mode: str) -> int:
    """How many pages a dequeue of ten entries reads, by the server's own account. What it takes, it gives back."""
    sql = QUEUE_CLAIMS.fill(
        Queries.load("butlers.outbound.postgres_queue", schema="outbound").dequeue_entries, "outbound"
    )
    values = f"'{NOW}', gen_random_uuid(), 'worker', '{NOW + timedelta(seconds=120)}', 10"
    async with database.connection() as connection:
        change = connection.transaction()
        await change.start()
        await connection.execute(f"SET LOCAL plan_cache_mode = {mode}")
        await connection.execute(f"PREPARE taking (timestamptz, uuid, text, timestamptz, bigint) AS {sql}")
        shown = await connection.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE taking ({values})")
        await connection.execute("DEALLOCATE taking")
        await change.rollback()
    plan: dict[str, Any] = shown[0]["Plan"]
    assert plan["Actual Rows"] == 10
    return int(plan["Shared Hit Blocks"]) + int(plan["Shared Read Blocks"])


async def _check_pages(database: Database, count: int) -> None:
    """A table scan, or a sort of what is due, would read every page: with and without statistics, in both plans."""
    await _fill(database, count)
    pages = await database.fetchval("SELECT pg_relation_size('outbound.queue') / 8192")
    assert pages > 2 * MOST_PAGES
    for prepare in ("SELECT 1", "VACUUM ANALYZE outbound.queue"):
        await database.execute(prepare, timeout=120)
        for mode in ("force_custom_plan", "force_generic_plan"):
            assert await _pages_of_a_dequeue(database, mode) < MOST_PAGES


async def test_a_dequeue_from_a_long_queue_reads_only_what_it_takes(database: Database):
    await _check_pages(database, SOME)


async def test_the_index_has_the_order_of_handing_out(database: Database):
    """What the function's settings leave to the planner: the scan of an index, without a sort."""
    await _fill(database, SOME)
    async with database.transaction() as connection:
        await connection.execute("SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off")
        shown = await connection.fetch(
            "EXPLAIN SELECT key FROM outbound.queue WHERE priority = 2 AND available_at <= now()"
            " ORDER BY available_at, seq LIMIT 10 FOR UPDATE SKIP LOCKED"
        )
    plan = "\n".join(row[0] for row in shown)
    assert "using queue_available" in plan
    assert "Sort" not in plan


async def _pages_of_the_figures(database: Database) -> int:
    sql = Queries.load("butlers.outbound.postgres_queue", schema="outbound").queue_statistics
    shown = await database.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql}")
    plan: dict[str, Any] = shown[0]["Plan"]
    return int(plan["Shared Hit Blocks"]) + int(plan["Shared Read Blocks"])


async def test_the_figures_of_a_long_queue_are_exact_and_do_not_take_reading_it(database: Database):
    await _fill(database, SOME)
    for prepare in ("SELECT 1", "VACUUM ANALYZE outbound.queue"):
        await database.execute(prepare, timeout=120)
        assert await _pages_of_the_figures(database) < MOST_PAGES
    stats = await opened(database).stats(now=NOW)
    assert (stats.queued, stats.in_flight) == (SOME - SOME // 1000, SOME // 1000)


async def test_what_came_in_is_added_up_and_the_figures_stay(database: Database):
    queue = opened(database)
    for number in range(PIECES + 10):
        await queue.enqueue([message(f"k{number}")])
    await queue.remove(["k0", "k1"])
    await queue.dequeue(now=NOW, limit=5, worker="one")
    before = await queue.stats(now=NOW)
    assert (before.queued, before.in_flight) == (PIECES + 10 - 2 - 5, 5)
    assert await database.fetchval("SELECT count(*) FROM outbound.queue_entered") == 0
    assert await queue.stats(now=NOW) == before


async def test_a_transaction_that_lasts_holds_up_nobody_over_the_count(database: Database):
    queue = opened(database)
    async with database.transaction() as connection:
        await queue.enqueue([message("a")], connection=connection)
        await asyncio.wait_for(queue.enqueue([message("b")]), 5)
        (leased,) = await queue.dequeue(now=NOW, limit=5, worker="one")
        await asyncio.wait_for(queue.ack(leased), 5)
        assert (await queue.stats(now=NOW)).queued == 0
    assert (await queue.stats(now=NOW)).queued == 1


@pytest.mark.heavy
@pytest.mark.timeout(600)
async def test_a_dequeue_from_a_million_entries_reads_only_what_it_takes(database: Database):
    await _check_pages(database, MANY)
    queue = opened(database)
    assert len(await queue.dequeue(now=NOW, limit=10, worker="one")) == 10
    stats = await queue.stats(now=NOW)
    assert stats.queued + stats.in_flight == MANY
