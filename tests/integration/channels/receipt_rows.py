"""Deliveries to receive receipts for, and what became of them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

from butlers.storage.database import Database
from butlers.storage.migrations import MigrationSet

SCHEMA = "messenger"
MIGRATIONS = [MigrationSet(schema=SCHEMA, package="butlers.messenger", component="messenger")]
NOW = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)


class Rows:
    def __init__(self, database: Database) -> None:
        self.database = database

    async def delivery(
        self, status: str = "delivered", *, channel: str = "sms", target: str = "+1555", tell_owner: bool = False
    ) -> UUID:
        identifier = uuid4()
        await self.database.execute(
            """insert into messenger.delivery_requests
               (id, idempotency_key, origin_butler, channel, intent, target_identity, ordering_key, message, envelope,
                status, next_attempt_at, created_at, updated_at, tell_owner, terminal_error_class)
               values ($1, $2, 'health', $3, 'send', $4, $4, 'hi', '{}', $5, $6, $6, $6, $7, $8)""",
            identifier,
            identifier.hex,
            channel,
            target,
            status,
            NOW,
            tell_owner,
            "timeout" if status == "uncertain" else None,
        )
        return identifier

    async def attempt(self, delivery: UUID, certainty: str, *, number: int = 1) -> None:
        await self.database.execute(
            """insert into messenger.delivery_attempts
               (id, delivery_id, attempt_number, worker, started_at, completed_at, outcome, certainty)
               values ($1, $2, $3, 'w', $4, $4, 'failed', $5)""",
            uuid4(),
            delivery,
            number,
            NOW,
            certainty,
        )

    async def sent(self, delivery: UUID, provider_delivery_id: str, *, part: int = 1) -> None:
        """As our own worker writes it."""
        await self.database.execute(
            """insert into messenger.delivery_receipts
               (id, delivery_id, part, provider_delivery_id, receipt_type, received_at)
               values ($1, $2, $3, $4, 'sent', $5)""",
            uuid4(),
            delivery,
            part,
            provider_delivery_id,
            NOW,
        )

    async def of(self, delivery: UUID) -> dict[str, Any]:
        row = await self.database.fetchrow("select * from messenger.delivery_requests where id = $1", delivery)
        assert row is not None
        return dict(row)

    async def receipts(self) -> list[dict[str, Any]]:
        rows = await self.database.fetch("select * from messenger.delivery_receipts order by part, receipt_type")
        return [dict(row) for row in rows]

    async def rules(self) -> list[dict[str, Any]]:
        rows = await self.database.fetch("select * from messenger.recipient_rules order by target")
        return [dict(row) for row in rows]
