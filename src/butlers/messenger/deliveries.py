"""The delivery rows: what was asked, what was tried, what came of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, get_args
from uuid import UUID

from butlers.clock import Clock
from butlers.contracts.notify import DeliveryOutcome, DeliveryStatus, NotifyEnvelope
from butlers.errors import ClassifiedError, LeaseLost
from butlers.messenger.channel import AttemptResult, Certainty, Outgoing, Sent
from butlers.storage.database import Database, Executor, Record
from butlers.storage.migrations import MigrationSet
from butlers.storage.queries import Queries

OPEN: frozenset[str] = frozenset({"pending", "in_progress", "awaiting_retry"})
STATUSES: tuple[str, ...] = get_args(DeliveryStatus)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewDelivery:
    """An intent that passed every check and may be written down."""

    idempotency_key: str
    notify: NotifyEnvelope
    target: str
    message: str
    subject: str | None
    source_event: Mapping[str, Any] | None
    duplicate_detection: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedDelivery:
    """A delivery that this worker, and nobody else, may attempt now."""

    id: UUID
    claim_token: UUID
    attempt_id: UUID
    attempt: int
    channel: str
    origin_butler: str
    request_id: UUID | None
    created_at: datetime
    not_after: datetime | None
    trace_context: Mapping[str, str]  # of the request that is answered
    outgoing: Outgoing

    @property
    def labels(self) -> dict[str, str]:
        return {
            "channel": self.channel,
            "intent": self.outgoing.intent,
            "identity_scope": "bot",
            "origin_butler": self.origin_butler,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """The state a delivery is in after an attempt."""

    status: DeliveryStatus
    next_attempt_at: datetime | None = None
    error: ClassifiedError | None = None


class Deliveries:
    """Reads and writes the rows of one schema."""

    def __init__(self, *, database: Database, schema: str, clock: Clock, new_id: Callable[[], UUID]) -> None:
        self._database = database
        self._queries = Queries.load("butlers.messenger", schema=schema)
        self._clock = clock
        self._new_id = new_id

    async def record(self, new: NewDelivery) -> tuple[UUID, bool]:
        """Write the intent down. Returns its delivery, and whether it is new."""
        notify, now = new.notify, self._clock.now()
        created: UUID | None = await self._database.fetchval(
            self._queries.record_request,
            self._new_id(),
            new.idempotency_key,
            notify.request_id,
            notify.origin_butler,
            notify.delivery.channel,
            notify.delivery.intent,
            new.target,
            f"{notify.delivery.channel}:{new.target}",
            new.message,
            new.subject,
            notify.to_wire(),
            new.source_event,
            notify.priority,
            notify.not_after,
            new.duplicate_detection,
            now,
        )
        if created is not None:
            return created, True
        known = await self._database.fetchrow(self._queries.request_by_key, new.idempotency_key)
        if known is None:
            raise LeaseLost("a delivery vanished between two reads of its key")
        existing: UUID = known["id"]
        return existing, False

    async def get(self, delivery_id: UUID) -> Record | None:
        return await self._database.fetchrow(self._queries.request_by_id, delivery_id)

    async def claim_due(self, *, limit: int, worker: str, lease_s: float) -> list[ClaimedDelivery]:
        """Take what is due and put each attempt on record, in one transaction."""
        now, token = self._clock.now(), self._new_id()
        expires = now + timedelta(seconds=lease_s)
        async with self._database.transaction() as connection:
            rows = await connection.fetch(self._queries.claim_due, now, limit, token, worker, expires)
            claimed = [_claimed(row, token, self._new_id()) for row in rows]
            for delivery in claimed:
                await connection.execute(
                    self._queries.begin_attempt, delivery.attempt_id, delivery.id, delivery.attempt, worker, now
                )
        return claimed

    async def finish(
        self, delivery: ClaimedDelivery, result: AttemptResult, settlement: Settlement, latency_ms: int
    ) -> None:
        """Write the attempt's outcome, the receipt and the delivery's new state together."""
        now = self._clock.now()
        async with self._database.transaction() as connection:
            await self._settle(connection, delivery.id, delivery.claim_token, settlement, now)
            await self._end_attempt(connection, delivery.attempt_id, result, latency_ms, now)
            if isinstance(result, Sent):
                await connection.execute(
                    self._queries.record_receipt,
                    self._new_id(),
                    delivery.id,
                    1,
                    result.provider_delivery_id,
                    "sent",
                    now,
                    {},
                )

    async def _settle(
        self, connection: Executor, delivery_id: UUID, token: UUID, settlement: Settlement, now: datetime
    ) -> None:
        error = settlement.error
        written = await connection.fetchval(
            self._queries.settle_request,
            delivery_id,
            token,
            settlement.status,
            settlement.next_attempt_at,
            error.error_class.value if error else None,
            error.message if error else None,
            error.retryable if error else None,
            None if settlement.status in OPEN else now,
            now,
        )
        if written is None:
            raise LeaseLost(f"delivery {delivery_id} was taken over")

    async def _end_attempt(
        self, connection: Executor, attempt_id: UUID, result: AttemptResult, latency_ms: int, now: datetime
    ) -> None:
        sent = isinstance(result, Sent)
        error = None if isinstance(result, Sent) else result.error
        await connection.execute(
            self._queries.end_attempt,
            attempt_id,
            now,
            latency_ms,
            "sent" if sent else ("rejected" if getattr(result, "answered", False) else "failed"),
            Certainty.SENT.value if isinstance(result, Sent) else result.certainty.value,
            error.error_class.value if error else None,
            error.message if error else None,
            error.retryable if error else None,
            dict(result.response),
        )

    async def renew(self, tokens: list[UUID], lease_s: float) -> None:
        expires = self._clock.now() + timedelta(seconds=lease_s)
        await self._database.execute(self._queries.renew_claims, tokens, expires)

    async def claim_abandoned(
        self, *, limit: int, worker: str, lease_s: float, in_hand: Sequence[UUID]
    ) -> list[tuple[ClaimedDelivery, str]]:
        """Deliveries of dead workers, each with the name of the worker whose evidence counts; ours are not dead."""
        now, token = self._clock.now(), self._new_id()
        expires = now + timedelta(seconds=lease_s)
        rows = await self._database.fetch(
            self._queries.claim_abandoned, now, limit, token, worker, expires, list(in_hand)
        )
        return [(_claimed(row, token, row["attempt_id"]), row["attempt_worker"]) for row in rows]

    async def open_attempts_of(self, worker: str) -> int:
        count: int = await self._database.fetchval(self._queries.open_attempts_of, worker)
        return count

    async def next_due(self) -> datetime | None:
        moment: datetime | None = await self._database.fetchval(self._queries.next_due)
        return moment

    async def counts_by_status(self) -> dict[str, int]:
        rows = await self._database.fetch(self._queries.counts_by_status)
        return dict.fromkeys(STATUSES, 0) | {row["status"]: row["deliveries"] for row in rows}

    async def trace(self, request_id: UUID) -> list[dict[str, Any]]:
        """All deliveries of a request, each with its attempts and receipts."""
        deliveries = [dict(row) for row in await self._database.fetch(self._queries.deliveries_of_request, request_id)]
        ids = [delivery["id"] for delivery in deliveries]
        attempts = await self._database.fetch(self._queries.attempts_of_deliveries, ids)
        receipts = await self._database.fetch(self._queries.receipts_of_deliveries, ids)
        for delivery in deliveries:
            delivery["attempts"] = [_without_owner(row) for row in attempts if row["delivery_id"] == delivery["id"]]
            delivery["receipts"] = [_without_owner(row) for row in receipts if row["delivery_id"] == delivery["id"]]
        return deliveries


def outcome_of(row: Record, *, deduplicated: bool) -> DeliveryOutcome:
    return DeliveryOutcome(
        channel=row["channel"],
        delivery_id=row["id"],
        status=row["status"],
        provider_delivery_id=row["provider_delivery_id"],
        deduplicated=deduplicated,
        duplicate_detection=row["duplicate_detection"],
    )


def migrations(schema: str) -> MigrationSet:
    return MigrationSet(schema=schema, package="butlers.messenger", component="messenger")


def _claimed(row: Record, token: UUID, attempt_id: UUID) -> ClaimedDelivery:
    return ClaimedDelivery(
        id=row["id"],
        claim_token=token,
        attempt_id=attempt_id,
        attempt=row["attempts"],
        channel=row["channel"],
        origin_butler=row["origin_butler"],
        request_id=row["request_id"],
        created_at=row["created_at"],
        not_after=row["not_after"],
        trace_context=(row["envelope"].get("request_context") or {}).get("trace_context") or {},
        outgoing=Outgoing(
            delivery_id=row["id"],
            idempotency_key=row["idempotency_key"],
            intent=row["intent"],
            target=row["target_identity"],
            message=row["message"],
            subject=row["subject"],
            emoji=(row["envelope"].get("delivery") or {}).get("emoji"),
            source_event=row["source_event"] or {},
        ),
    )


def _without_owner(row: Record) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key != "delivery_id"}
