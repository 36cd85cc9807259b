"""What a claim reads when many deliveries wait."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from butlers.storage.database import Database
from butlers.storage.queries import Queries
from butlers.webhooks.deliveries import WEBHOOK_CLAIMS
from tests.integration.webhooks.sending import Sending

SOME = 30_000
SLOTS = 4
MOST_PAGES = 400  # that a claim of eight deliveries reads and writes, indexes included


async def _fill(sending: Sending, endpoint: UUID, state: str, first_s: int) -> None:
    """Deliveries of one state, each a second later than the one before."""
    await sending.database.execute(
        """
        INSERT INTO webhooks.deliveries
            (id, endpoint_id, event_id, event_type, payload, state, next_attempt_at, created_at, updated_at)
        SELECT gen_random_uuid(), $1, $2::text || n, 'delivery.delivered', '{"type": "delivery.delivered"}', $2,
            $4::timestamptz + ($3::integer + n) * interval '1 second', $4, $4
        FROM generate_series(1, $5::integer) AS n
        """,
        endpoint,
        state,
        first_s,
        sending.clock.now(),
        SOME,
        timeout=120,
    )


async def _pages_of_a_claim(sending: Sending, mode: str, expected: int) -> int:
    """How many pages a claim reads, by the server's own account. What it takes, it gives back."""
    sql = WEBHOOK_CLAIMS.fill(Queries.load("butlers.webhooks", schema="webhooks").claim_due, "webhooks")
    now = sending.clock.now()
    values = f"'{now}', gen_random_uuid(), 'worker', '{now + timedelta(seconds=60)}', {SLOTS}"
    async with sending.database.connection() as connection:
        change = connection.transaction()
        await change.start()
        await connection.execute(f"SET LOCAL plan_cache_mode = {mode}")
        await connection.execute(f"PREPARE taking (timestamptz, uuid, text, timestamptz, bigint) AS {sql}")
        shown = await connection.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE taking ({values})")
        await connection.execute("DEALLOCATE taking")
        await change.rollback()
    plan: dict[str, Any] = shown[0]["Plan"]
    assert plan["Actual Rows"] == expected
    return int(plan["Shared Hit Blocks"]) + int(plan["Shared Read Blocks"])


async def _check_pages(sending: Sending, expected: int) -> None:
    """With and without statistics, in both plans."""
    database: Database = sending.database
    assert await database.fetchval("SELECT pg_relation_size('webhooks.deliveries') / 8192") > 3 * MOST_PAGES
    pages: list[int] = []
    for prepare in ("SELECT 1", "VACUUM ANALYZE webhooks.deliveries"):
        await database.execute(prepare, timeout=120)
        for mode in ("force_custom_plan", "force_generic_plan"):
            pages.append(await _pages_of_a_claim(sending, mode, expected))
    assert max(pages) < MOST_PAGES, pages


@pytest.mark.parametrize(("first_s", "expected"), [(-SOME - 10, 2 * SLOTS), (10, 0)], ids=["due", "due later"])
async def test_a_claim_from_a_long_backlog_reads_only_what_it_takes(sending: Sending, first_s: int, expected: int):
    for name in ("one", "two"):
        endpoint = await sending.endpoint(f"https://{name}.example/")
        await _fill(sending, endpoint, "delivered", -SOME - 10)
        await _fill(sending, endpoint, "pending", first_s)
    await _check_pages(sending, expected)


async def test_a_claim_takes_the_oldest_up_to_the_free_slots_of_each_endpoint(sending: Sending):
    for name in ("one", "two"):
        await sending.endpoint(f"https://{name}.example/")
    await sending.publish(6)
    taken = [
        await sending.deliveries.claim_due(per_endpoint=slots, worker="one", lease_s=60) for slots in (2, 2, 3, 9, 9)
    ]
    assert [len(some) for some in taken] == [4, 0, 2, 6, 0]
    assert len({one.id for some in taken for one in some}) == 12
    sending.clock.advance(60)
    assert len(await sending.deliveries.claim_due(per_endpoint=2, worker="two", lease_s=60)) == 4
