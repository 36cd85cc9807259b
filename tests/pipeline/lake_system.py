"""A database with the services' tables, somebody who writes into them, and a lake beside it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from uuid import UUID, uuid4

from pyspark.sql import SparkSession

from butlers.messenger.deliveries import migrations as messenger_migrations
from butlers.pipeline.job import JobContext, JobResult, Window
from butlers.pipeline.jobs import lake
from butlers.pipeline.lake.events import Event
from butlers.pipeline.lake.log import LakeLog, LakeState
from butlers.storage.database import Connection, open_connection
from butlers.storage.embedded import EmbeddedPostgres
from butlers.storage.migrations import MigrationSet
from butlers.storage.retention import add_months, ensure_month_partitions
from tests.database import cloned_database_uri

MIGRATIONS = (
    MigrationSet(schema="switchboard", package="butlers.switchboard", component="switchboard"),
    messenger_migrations("messenger"),
    MigrationSet(schema="pipeline", package="butlers.pipeline"),
)
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
MARCH = Window(start=datetime(2026, 3, 1, tzinfo=UTC), end=datetime(2026, 4, 1, tzinfo=UTC))
JOBS = {job.name: job for job in lake.JOBS}

_HEARTBEATS = """
INSERT INTO switchboard.connector_heartbeat_log
    (id, connector_type, endpoint_identity, instance_id, state, error_message, uptime_s, messages_ingested,
     messages_failed, source_api_calls, checkpoint_saves, dedupe_accepted, received_at, sent_at)
SELECT gen_random_uuid(), 'telegram', 'bot', '00000000-0000-0000-0000-000000000001', 'healthy', 'SECRET', 1, number,
       0, 0, 0, 0, $2::timestamptz, $2::timestamptz
FROM generate_series(1, $1) AS number
"""

_MESSAGE = """
INSERT INTO switchboard.message_inbox
    (request_id, received_at, request_context, raw_payload, normalized_text, attachments, policy_tier, dedupe_key,
     submitted_by, routing_output, dispatch_outcomes, aggregated_reply, lifecycle_error, override, schema_version,
     thread_key, source_channel, updated_at)
VALUES ($1::uuid, $2, '{"source_endpoint_identity": "bot", "source_sender_identity": "SECRET"}', '{"text": "SECRET"}',
        'SECRET', '["SECRET"]', 'default', 'SECRET' || $1::uuid::text, 'connector',
        '{"router": "llm", "fallback_reason": null,
          "segments": [{"butler": "finance", "rationale": "SECRET"}, {"butler": "travel", "rationale": "SECRET"}]}',
        '[{"segment_id": "s1", "target_butler": "finance", "success": false, "result": {"text": "SECRET"},
           "error": {"class": "timeout", "message": "SECRET"}}]',
        '{"text": "SECRET"}', '{"class": "timeout", "message": "SECRET"}',
        '{"action": "retry", "operator": "SECRET", "reason": "SECRET"}', 'ingest.v1', 'SECRET', 'telegram', $2)
"""
_DELIVERY = """
INSERT INTO messenger.delivery_requests
    (id, idempotency_key, origin_butler, channel, intent, target_identity, address, ordering_key, message, subject,
     envelope, decisions, terminal_error_message, next_attempt_at, created_at, updated_at)
VALUES ($1::uuid, 'SECRET' || $1::uuid::text, 'finance', 'telegram', 'send', 'SECRET', 'SECRET', 'SECRET', 'SECRET',
        'SECRET', '{"text": "SECRET"}', '["SECRET"]', 'SECRET', $2, $2, $2)
"""
_ATTEMPT = """
INSERT INTO messenger.delivery_attempts
    (id, delivery_id, attempt_number, worker, started_at, error_message, provider_response)
VALUES ($1, $2, 1, 'worker', $3, 'SECRET', '{"text": "SECRET"}')
"""
_RECEIPT = """
INSERT INTO messenger.delivery_receipts
    (id, delivery_id, provider_delivery_id, receipt_type, received_at, metadata)
VALUES ($1, $2, 'SECRET', 'bounced', $3, '{"text": "SECRET", "permanent": true}')
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeSystem:
    dsn: str
    lake: Path
    writer: Connection

    async def beat(self, count: int = 1, *, at: datetime = NOON, by: Connection | None = None) -> None:
        await (by or self.writer).execute(_HEARTBEATS, count, at)

    async def accept(self) -> None:
        """One message in the inbox, with texts in every column that may hold one."""
        await self.writer.execute(_MESSAGE, uuid4(), NOON)

    async def deliver(self) -> UUID:
        """One delivery with an attempt and a receipt, likewise."""
        delivery = uuid4()
        await self.writer.execute(_DELIVERY, delivery, NOON)
        await self.writer.execute(_ATTEMPT, uuid4(), delivery, NOON)
        await self.writer.execute(_RECEIPT, uuid4(), delivery, NOON)
        return delivery

    async def another_writer(self) -> Connection:
        return await open_connection(self.dsn)

    def run(self, spark: SparkSession, job: str, *, window: Window = MARCH, **arguments: str) -> JobResult:
        context = JobContext(
            spark=spark, dsn=self.dsn, lake=self.lake, run_id=uuid4(), window=window, arguments=arguments
        )
        return JOBS[job].run(context)

    def state(self, event: Event) -> LakeState:
        return LakeLog(self.lake / event.name).state()

    async def server(self) -> str:
        return str(await self.writer.fetchval("SELECT system_identifier::text FROM pg_control_system()"))

    async def ids(self, table: str) -> list[UUID]:
        return [row["id"] for row in await self.writer.fetch(f"SELECT id FROM {table}")]


@asynccontextmanager
async def lake_system(server: EmbeddedPostgres, folder: Path) -> AsyncIterator[LakeSystem]:
    async with cloned_database_uri(server, MIGRATIONS) as dsn:
        writer = await open_connection(dsn)
        try:
            for table in ("connector_heartbeat_log", "message_inbox"):
                await ensure_month_partitions(writer, "switchboard", table, date(2026, 3, 1), 1)
            yield LakeSystem(dsn=dsn, lake=folder / "lake", writer=writer)
        finally:
            await writer.close()


def add_months_from(moment: datetime, months: int) -> datetime:
    month = add_months(moment.date(), months)
    return moment.replace(year=month.year, month=month.month, day=1)
