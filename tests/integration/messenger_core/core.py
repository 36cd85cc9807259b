"""Messenger's admission and its delivery rows on a real database, without the system around them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from butlers.channels.adapter import AttemptResult, NotSent, Sent
from butlers.clock import ManualClock
from butlers.contracts.delivery_state import TRANSITIONS, DeliveryStatus
from butlers.errors import TargetUnavailable
from butlers.ids import Uuid7Factory
from butlers.messenger.admission import Admission, DeliveryExecutor, Taken
from butlers.messenger.attempt import Ended, Settlement
from butlers.messenger.config import BreakersSection, DeliverySection, RecipientsSection
from butlers.messenger.deliveries import Deliveries
from butlers.messenger.delivery import ClaimedDelivery, NewDelivery
from butlers.messenger.receipts import ReceiptIntake
from butlers.messenger.release import Readmission
from butlers.storage.database import Database
from butlers.storage.migrations import MigrationSet
from butlers.storage.queries import Queries
from tests.unit.messenger.admission_door import limits
from tests.unit.messenger.given import new_delivery

SCHEMA = "messenger"
TABLES = [MigrationSet(schema=SCHEMA, package="butlers.messenger", component="messenger")]
START = datetime(2026, 3, 1, 12, tzinfo=UTC)
BREAKER = BreakersSection(failure_threshold=3, recovery_timeout_s=60.0, probe_limit=1, success_threshold=2)
PLENTY = limits()
LEASE_S = 30.0
SENT = Sent(provider_delivery_id="m1")
DOWN = NotSent(error=TargetUnavailable("502 Bad Gateway"))


def transition_guard() -> str:
    """SQL: a change of a delivery's status that `contracts/delivery_state.py` does not know is refused."""
    known = [f"('{before}', '{after}')" for before, following in TRANSITIONS.items() for after in following]
    return f"""
        CREATE FUNCTION {SCHEMA}.guard_transition() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            IF (OLD.status, NEW.status) NOT IN ({", ".join(sorted(known))}) THEN
                RAISE EXCEPTION 'a delivery cannot go from % to %', OLD.status, NEW.status;
            END IF;
            RETURN NEW;
        END $$;
        CREATE TRIGGER guard_transition BEFORE UPDATE ON {SCHEMA}.delivery_requests
            FOR EACH ROW WHEN (OLD.status <> NEW.status) EXECUTE FUNCTION {SCHEMA}.guard_transition();
    """


@dataclass(slots=True, kw_only=True)
class Core:
    database: Database
    second: Database  # another process's pool on the same database
    clock: ManualClock = field(default_factory=lambda: ManualClock(START))
    new_id: Uuid7Factory = field(init=False)
    queries: Queries = field(init=False)

    def __post_init__(self) -> None:
        self.new_id = Uuid7Factory(self.clock)
        self.queries = Queries.load("butlers.messenger", schema=SCHEMA)

    def queries_of(self, part: str) -> Queries:
        return Queries.load(f"butlers.messenger.{part}", schema=SCHEMA)

    def admission(
        self,
        given: DeliverySection = PLENTY,
        *,
        database: Database | None = None,
        recipients: RecipientsSection | None = None,
        executor: DeliveryExecutor | None = None,
    ) -> Admission:
        changes = {"breaker": BREAKER, "recipients": recipients or RecipientsSection()}
        policy = given.model_copy(update=changes)
        return Admission(
            database=database or self.database,
            schema=SCHEMA,
            clock=self.clock,
            policy=policy,
            new_id=self.new_id,
            executor=executor,
        )

    def readmission(
        self,
        given: DeliverySection = PLENTY,
        *,
        database: Database | None = None,
        recipients: RecipientsSection | None = None,
    ) -> Readmission:
        admission = self.admission(given, database=database, recipients=recipients)
        queries = self.queries_of("release")
        return Readmission(database=database or self.database, queries=queries, admission=admission, clock=self.clock)

    def deliveries(self, *, database: Database | None = None, breaker: BreakersSection = BREAKER) -> Deliveries:
        database = database or self.database
        return Deliveries(
            database=database,
            schema=SCHEMA,
            clock=self.clock,
            new_id=self.new_id,
            breaker=breaker,
            settle_reported=self.receipts(database).settle_reported,
        )

    def receipts(self, database: Database | None = None) -> ReceiptIntake:
        return ReceiptIntake(database=database or self.database, schema=SCHEMA, clock=self.clock, new_id=self.new_id)

    def new(self, target: str | None = "7", **words: Any) -> NewDelivery:
        """A delivery nobody has seen yet."""
        return new_delivery(self.new_id(), target=target, **words)

    async def take(self, target: str | None = "7", **words: Any) -> UUID:
        """A delivery that is on record and may be sent."""
        entry = await self.admission().submit(self.new(target, **words))
        assert isinstance(entry, Taken)
        return entry.delivery.id

    async def claim(self, *, limit: int = 100, worker: str = "w1") -> list[ClaimedDelivery]:
        return await self.deliveries().claim_due(limit=limit, worker=worker, lease_s=LEASE_S)

    async def claim_one(self, **options: Any) -> ClaimedDelivery:
        (delivery,) = await self.claim(**options)
        return delivery

    async def finish(self, *ends: Ended) -> list[bool]:
        return await self.deliveries().finish(ends)

    def end(
        self,
        delivery: ClaimedDelivery,
        result: AttemptResult = SENT,
        status: DeliveryStatus | None = None,
        *,
        retry_in: float = 5.0,
        lost: bool = False,
    ) -> Ended:
        """The end of an attempt: delivered when it was sent, tried again when it was not, unless it is said."""
        status = status or ("delivered" if isinstance(result, Sent) else "awaiting_retry")
        due = self.clock.now() + timedelta(seconds=retry_in) if status == "awaiting_retry" else None
        error = result.error if isinstance(result, NotSent) else None
        settlement = Settlement(status=status, next_attempt_at=due, error=error)
        receipt = self.new_id()
        return Ended(
            delivery=delivery, result=result, settlement=settlement, latency_ms=5, receipt_id=receipt, lost=lost
        )

    async def until_a_statement_waits(self) -> None:
        """Until a statement in this database waits for a lock."""
        waits = "datname = current_database() AND wait_event_type = 'Lock'"
        async with asyncio.timeout(10):
            while not await self.database.fetchval(f"SELECT count(*) FROM pg_stat_activity WHERE {waits}"):
                pass

    # --- rows --------------------------------------------------------------------------------------------------------

    async def rows(self, table: str, order: str = "1") -> list[dict[str, Any]]:
        return [dict(row) for row in await self.database.fetch(f"select * from {SCHEMA}.{table} order by {order}")]

    async def row(self, delivery_id: UUID) -> dict[str, Any]:
        found = await self.database.fetchrow(f"select * from {SCHEMA}.delivery_requests where id = $1", delivery_id)
        assert found is not None
        return dict(found)

    async def statuses(self) -> dict[UUID, str]:
        return {row["id"]: row["status"] for row in await self.rows("delivery_requests")}

    async def tokens(self) -> dict[str, float]:
        """What the buckets hold, as it is stored."""
        return {row["name"]: row["tokens"] for row in await self.rows("rate_buckets") if row["name"] != "lock"}

    async def outcomes(self) -> dict[tuple[str, str], int]:
        """How requests fared: (outcome, rule) -> how many."""
        found: dict[tuple[str, str], int] = {}
        for row in await self.rows("admission_outcomes"):
            label = row["outcome"], row["rule"]
            found[label] = found.get(label, 0) + row["requests"]
        return found

    async def begin_as(self, delivery_id: UUID, status: str) -> None:
        """Gives a delivery another beginning than `take` does; nothing leads there later."""
        table = f"{SCHEMA}.delivery_requests"
        async with self.database.transaction() as connection:
            await connection.execute(f"alter table {table} disable trigger guard_transition")
            await connection.execute(f"update {table} set status = $2 where id = $1", delivery_id, status)
            await connection.execute(f"alter table {table} enable trigger guard_transition")

    async def set(self, table: str, column: str, value: Any, *, where: str = "true") -> None:
        await self.database.execute(f"update {SCHEMA}.{table} set {column} = $1 where {where}", value)

    async def insert(self, table: str, **row: Any) -> None:
        places = ", ".join(f"${number}" for number in range(1, len(row) + 1))
        await self.database.execute(f"insert into {SCHEMA}.{table} ({', '.join(row)}) values ({places})", *row.values())
