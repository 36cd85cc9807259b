"""Rows as Messenger leaves them, written directly: what is measured must not depend on who wrote it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from butlers.clock import ManualClock
from butlers.messenger.service_levels import ServiceLevels
from butlers.reliability.error_budget import BudgetPolicy
from butlers.storage.database import Database
from butlers.storage.migrations import MigrationSet
from butlers.telemetry.telemetry import Telemetry

SCHEMA = "messenger"
TABLES = (MigrationSet(schema=SCHEMA, package="butlers.messenger", component="messenger"),)
NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
HOUR_AGO = NOW - timedelta(hours=1)
CHANNELS = ("email.bot", "telegram.bot")


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    database: Database
    clock: ManualClock
    telemetry: Telemetry

    def levels(self, *, policy: BudgetPolicy | None = None, schema: str = SCHEMA) -> ServiceLevels:
        return ServiceLevels(
            database=self.database,
            schema=schema,
            clock=self.clock,
            telemetry=self.telemetry,
            policy=policy or BudgetPolicy(),
            channels=CHANNELS,
            max_in_flight=100,
        )

    async def slis(self) -> dict[str, Any]:
        return await self.levels().slis(HOUR_AGO, NOW)

    async def delivery(self, status: str = "delivered", *, ended: datetime | None = None, **columns: Any) -> UUID:
        """A delivery to person 7 by Telegram that ended a minute ago, unless said otherwise."""
        is_open = status in ("pending", "in_progress", "awaiting_retry", "pending_approval")
        values: dict[str, Any] = {
            "id": (identity := uuid4()),
            "idempotency_key": f"delivery-{identity}",
            "origin_butler": "general",
            "channel": "telegram",
            "intent": "send",
            "target_identity": "7",
            "ordering_key": "telegram:7",
            "message": "hello",
            "envelope": {},
            "status": status,
            "next_attempt_at": ago(120),
            "created_at": ago(120),
            "updated_at": NOW,
            "terminal_at": None if is_open else ended or ago(60),
        }
        await self._insert("delivery_requests", values | columns)
        return identity

    async def attempt(
        self,
        delivery: UUID | None = None,
        outcome: str | None = "sent",
        *,
        started: datetime | None = None,
        **columns: Any,
    ) -> None:
        """An attempt that began a minute ago and took no time, of a delivery of its own if none is given."""
        moment = started or ago(60)
        delivery = delivery or await self.delivery("awaiting_retry")
        number = await self.database.fetchval(
            f"select count(*) + 1 from {SCHEMA}.delivery_attempts where delivery_id = $1", delivery
        )
        values = {
            "id": uuid4(),
            "delivery_id": delivery,
            "attempt_number": number,
            "worker": "test",
            "started_at": moment,
            "completed_at": moment if outcome else None,
            "outcome": outcome,
            "certainty": "sent" if outcome == "sent" else "not_sent" if outcome else None,
        }
        await self._insert("delivery_attempts", values | columns)

    async def attempts(self, good: int, bad: int, *, started: datetime | None = None) -> None:
        """So many that came through, and so many that the provider was not there for, all of one delivery."""
        delivery = await self.delivery("awaiting_retry")
        for number in range(good + bad):
            if number < good:
                await self.attempt(delivery, started=started)
            else:
                await self.attempt(
                    delivery, "failed", started=started, error_class="target_unavailable", retryable=True
                )

    async def admission(self, outcome: str, requests: int, *, minute: datetime | None = None, **columns: Any) -> None:
        values = {
            "minute": (minute or ago(60)).replace(second=0),
            "channel": "telegram",
            "intent": "send",
            "origin_butler": "general",
            "outcome": outcome,
            "requests": requests,
        }
        await self._insert("admission_outcomes", values | columns)

    async def dead_letter(self, *, created: datetime | None = None, **columns: Any) -> UUID:
        delivery = await self.delivery("dead_lettered", terminal_error_class="target_unavailable")
        values = {
            "id": uuid4(),
            "delivery_id": delivery,
            "origin_butler": "general",
            "channel": "telegram",
            "intent": "send",
            "quarantine_reason": "retries_exhausted",
            "error_class": "target_unavailable",
            "error_summary": "away",
            "total_attempts": 3,
            "original_envelope": {},
            "all_attempt_outcomes": [],
            "created_at": created or ago(60),
        }
        await self._insert("delivery_dead_letter", values | columns)
        return delivery

    async def suppress(self, target: str, *, channel: str = "telegram") -> None:
        values = {
            "channel": channel,
            "target": target,
            "rule": "suppressed",
            "reason": "blocked us",
            "decided_by": "provider",
            "since": ago(60),
        }
        await self._insert("recipient_rules", values)

    async def state(self, name: str) -> dict[str, Any]:
        row = await self.database.fetchrow(f"select *, xmin from {SCHEMA}.channel_states where name = $1", name)
        return dict(row) if row else {}

    async def _insert(self, table: str, values: dict[str, Any]) -> None:
        places = ", ".join(f"${number}" for number in range(1, len(values) + 1))
        await self.database.execute(
            f"insert into {SCHEMA}.{table} ({', '.join(values)}) values ({places})", *values.values()
        )
