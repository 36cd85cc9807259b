"""The upper bound of storing: the same rows into the same kind of table, in batches, and nothing else."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from benchmarks.ingress.load import message
from butlers.clock import SystemClock
from butlers.ids import Uuid7Factory
from butlers.storage.database import Database

BATCH = 500
COLUMNS = (
    "request_id",
    "received_at",
    "request_context",
    "raw_payload",
    "normalized_text",
    "policy_tier",
    "dedupe_key",
    "submitted_by",
    "schema_version",
    "updated_at",
)
CREATE = """
    DROP TABLE IF EXISTS public.bare_inbox, public.bare_dedupe;
    CREATE TABLE public.bare_inbox (LIKE switchboard.message_inbox INCLUDING ALL);
    CREATE TABLE public.bare_dedupe (LIKE switchboard.ingress_dedupe INCLUDING ALL)
"""
KEEP = f"""
    INSERT INTO public.bare_inbox ({", ".join(COLUMNS)}) VALUES ({", ".join(f"${n + 1}" for n in range(len(COLUMNS)))})
"""
KNOW = "INSERT INTO public.bare_dedupe (dedupe_key, request_id, received_at, strategy) VALUES ($1, $2, $3, $4)"


class BareInserts:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._new_id = Uuid7Factory(SystemClock())

    async def prepare(self) -> None:
        await self._database.execute(CREATE)

    async def run(self, messages: int) -> float:
        """Seconds for so many messages."""
        rows, clock = self._rows(messages), SystemClock()
        began = clock.monotonic()
        for start in range(0, messages, BATCH):
            batch = rows[start : start + BATCH]
            async with self._database.transaction() as connection:
                await connection.executemany(KNOW, [(row[6], row[0], row[1], "idempotency_key") for row in batch])
                await connection.executemany(KEEP, batch)
        return clock.monotonic() - began

    def _rows(self, messages: int) -> list[tuple[Any, ...]]:
        run, now = uuid4().hex, datetime(2026, 1, 1, tzinfo=UTC)
        return [self._row(message(number, run), now) for number in range(messages)]

    def _row(self, document: dict[str, Any], now: datetime) -> tuple[Any, ...]:
        request_id, payload = self._new_id(), document["payload"]
        context = {
            "request_id": str(request_id),
            "received_at": now.isoformat(),
            "source_channel": "api",
            "source_endpoint_identity": "bench",
            "source_sender_identity": document["sender"]["identity"],
            "source_thread_identity": document["event"]["external_thread_id"],
            "trace_context": {},
        }
        key = uuid4().hex * 2
        text, raw = payload["normalized_text"], payload["raw"]
        return (request_id, now, context, raw, text, "default", key, "bench", "ingest.v1", now)
