"""Messenger's tables with rows of the test's own making, and its tools over them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from butlers.butler.identity import Caller
from butlers.butler.toolbox import ToolBox
from butlers.clock import ManualClock
from butlers.ids import Uuid7Factory
from butlers.messenger.config import BreakersSection
from butlers.messenger.tools.dead_letters import DeadLetterTools
from butlers.messenger.tools.deliveries import DeliveryRecords, RecipientTools, TrackingTools
from butlers.messenger.tools.health import HealthTools
from butlers.messenger.tools.why import WhyTools
from butlers.operations.operation import Role
from butlers.reliability.dead_letter import ReplayPolicy
from butlers.storage.database import Database
from butlers.storage.migrations import MigrationSet

SCHEMA = "messenger"
TABLES = [MigrationSet(schema=SCHEMA, package="butlers.messenger", component="messenger")]
START = datetime(2026, 3, 1, 12, tzinfo=UTC)
OPERATOR = Caller(name="ann", role=Role.OPERATOR)
SWITCHBOARD = Caller(name="switchboard", role=Role.BUTLER)
HEALTH = Caller(name="health", role=Role.BUTLER)
LIMITS = {
    "global": 60.0,
    "channel:telegram.bot": 30.0,
    "channel:email.bot": 20.0,
    "recipient": 10.0,
    "in_flight": 100.0,
}


@dataclass(slots=True, kw_only=True)
class StoredState:
    database: Database
    clock: ManualClock = field(default_factory=lambda: ManualClock(START))
    lineage: Any = None  # what Switchboard knows: an answer, or the error it raises
    woken: int = 0
    new_id: Uuid7Factory = field(init=False)
    tools: ToolBox = field(init=False)

    def __post_init__(self) -> None:
        self.new_id = Uuid7Factory(self.clock)
        records = DeliveryRecords.of(self.database, SCHEMA)
        letters = DeadLetterTools(
            records=records,
            clock=self.clock,
            new_id=self.new_id,
            wake=self._wake,
            policy=ReplayPolicy(max_replays=3),
        )
        channels = ["telegram.bot", "email.bot"]
        health = HealthTools(
            records=records, clock=self.clock, channels=channels, breaker=BreakersSection(), limits=LIMITS
        )
        groups = (
            TrackingTools(records=records, clock=self.clock, lineage=self._lineage),
            letters,
            health,
            WhyTools(records=records, clock=self.clock, dead_letters=letters),
            RecipientTools(records=records, clock=self.clock),
        )
        self.tools = ToolBox(tool for group in groups for tool in group.tools())

    async def _lineage(self, _request_id: UUID) -> Mapping[str, Any]:
        if isinstance(self.lineage, BaseException):
            raise self.lineage
        known: Mapping[str, Any] = self.lineage or {}
        return known

    def _wake(self) -> None:
        self.woken += 1

    async def call(self, tool: str, caller: Caller = OPERATOR, **arguments: Any) -> dict[str, Any]:
        given = {name: str(value) if isinstance(value, UUID) else value for name, value in arguments.items()}
        return await self.tools.call(f"messenger_{tool}", caller, given)

    # --- rows --------------------------------------------------------------------------------------------------------

    async def delivery(self, **columns: Any) -> UUID:
        """One delivery of the health butler, delivered just now unless said otherwise."""
        moment = columns.pop("created_at", self.clock.now())
        row = {
            "id": self.new_id(),
            "idempotency_key": f"delivery-{uuid4().hex}",
            "origin_butler": "health",
            "channel": "telegram",
            "intent": "send",
            "target_identity": "7",
            "ordering_key": "telegram:7",
            "message": "[health] hello",
            "envelope": {"schema_version": "notify.v1", "origin_butler": "health", "delivery": {"message": "hello"}},
            "status": "delivered",
            "attempts": 1,
            "next_attempt_at": moment,
            "created_at": moment,
            "updated_at": moment,
        } | columns
        await self.insert("delivery_requests", row)
        identity: UUID = row["id"]
        return identity

    async def attempt(self, delivery: UUID, number: int = 1, **columns: Any) -> None:
        started = columns.pop("started_at", self.clock.now())
        row = {
            "id": uuid4(),
            "delivery_id": delivery,
            "attempt_number": number,
            "worker": "w",
            "started_at": started,
            "completed_at": started + timedelta(milliseconds=columns.get("latency_ms", 40)),
            "latency_ms": 40,
            "outcome": "sent",
            "certainty": "sent",
        } | columns
        await self.insert("delivery_attempts", row)

    async def failed_attempt(self, delivery: UUID, number: int = 1, **columns: Any) -> None:
        refusal = {
            "outcome": "rejected",
            "certainty": "not_sent",
            "error_class": "target_unavailable",
            "error_message": "Bad Gateway",
            "retryable": True,
            "provider_response": {"status_code": 502},
        }
        await self.attempt(delivery, number, **(refusal | columns))

    async def receipt(self, delivery: UUID, **columns: Any) -> None:
        row = {
            "id": uuid4(),
            "delivery_id": delivery,
            "part": 1,
            "provider_delivery_id": "42",
            "receipt_type": "sent",
            "received_at": self.clock.now(),
        }
        await self.insert("delivery_receipts", row | columns)

    async def dead_letter(self, delivery: UUID | None = None, **columns: Any) -> UUID:
        """A delivery that used up its three attempts."""
        moment = columns.pop("created_at", self.clock.now())
        if delivery is None:
            delivery = await self.delivery(status="dead_lettered", attempts=3, terminal_at=moment, created_at=moment)
            for number in (1, 2, 3):
                await self.failed_attempt(delivery, number)
        row = {
            "id": self.new_id(),
            "delivery_id": delivery,
            "origin_butler": "health",
            "channel": "telegram",
            "intent": "send",
            "target_identity": "7",
            "quarantine_reason": "retries_exhausted",
            "error_class": "target_unavailable",
            "error_summary": "Bad Gateway",
            "total_attempts": 3,
            "original_envelope": {"origin_butler": "health", "delivery": {"message": "hello"}},
            "all_attempt_outcomes": [{"attempt_number": number} for number in (1, 2, 3)],
            "created_at": moment,
        } | columns
        await self.insert("delivery_dead_letter", row)
        identity: UUID = row["id"]
        return identity

    async def insert(self, table: str, row: Mapping[str, Any]) -> None:
        places = ", ".join(f"${number}" for number in range(1, len(row) + 1))
        await self.database.execute(f"insert into {SCHEMA}.{table} ({', '.join(row)}) values ({places})", *row.values())

    async def row(self, table: str, identity: UUID) -> dict[str, Any]:
        found = await self.database.fetchrow(f"select * from {SCHEMA}.{table} where id = $1", identity)
        assert found is not None
        return dict(found)
