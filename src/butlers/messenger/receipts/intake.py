"""Receipts that arrive after the provider's first answer: by webhook, by bounce mail, by whatever way.

    find the delivery -> lock it -> write the receipt -> settle what was uncertain -> suppress a dead recipient

All of it is one transaction. Every step may be repeated, and receipts may come in any order: `read` before `delivered`,
or either before our own worker has written down that it sent.

A receipt settles an uncertain delivery only when it is about a part nobody knew anything of: that part 1 of 2 arrived
is no news about part 2, which got lost. A receipt may also overtake the attempt it is about; whoever ends an attempt as
uncertain asks `settle_reported`, in the same transaction, whether the provider has spoken already.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from butlers.channels.registry import canonical_address
from butlers.clock import Clock
from butlers.contracts.envelope import invalid
from butlers.errors import ErrorClass
from butlers.messenger.receipts.receipt import Receipt, ReceiptOutcome, UnknownDelivery
from butlers.storage.database import Database, Executor
from butlers.storage.queries import Queries
from butlers.telemetry import get_logger

log = get_logger("butlers.messenger.receipts")

BOUNCED = "the provider says that the message came back"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Subject:
    """The delivery a receipt is about, and which part of it."""

    id: UUID
    channel: str
    target: str | None
    part: int


class ReceiptIntake:
    """Writes receipts into one schema."""

    def __init__(
        self,
        *,
        database: Database,
        schema: str,
        clock: Clock,
        new_id: Callable[[], UUID],
        heard: Callable[[str, str], None] | None = None,  # is told channel and type of each new receipt
    ) -> None:
        self._heard = heard
        self._database = database
        self._queries = Queries.load("butlers.messenger.receipts", schema=schema)
        self._clock = clock
        self._new_id = new_id

    async def record(self, channel: str, receipt: Receipt) -> ReceiptOutcome:
        """Keep what a provider says; raises `UnknownDelivery` when it is about nothing of ours."""
        now = self._clock.now()
        async with self._database.transaction() as connection:
            subject = await self._subject(connection, channel, receipt)
            known = await connection.fetchval(self._queries.provider_id_of_part, subject.id, subject.part)
            new = await self._write(connection, subject, receipt, known, now)
            settled = known is None and await self._settle(connection, subject, receipt, now)
            suppressed = receipt.permanent and await self._suppress(connection, subject, receipt, now)
        if new and self._heard is not None:
            self._heard(channel, receipt.receipt_type)
        log.info("receipt recorded", delivery_id=subject.id, channel=channel, outcome=receipt.receipt_type)
        if suppressed:
            log.warning("recipient suppressed", delivery_id=subject.id, channel=channel, reason="bounced")
        return ReceiptOutcome(
            delivery_id=subject.id,
            receipt_type=receipt.receipt_type,
            repeated=not new,
            settled=settled,
            suppressed=suppressed,
        )

    async def settle_reported(self, connection: Executor, delivery_id: UUID) -> bool:
        """Settle a delivery that was just left uncertain, if its receipt came before the attempt had ended."""
        now = self._clock.now()
        if not await connection.fetchval(self._queries.is_reported, delivery_id):
            return False
        if await connection.fetchval(self._queries.settle, delivery_id, "delivered", now, None, None, None) is None:
            return False
        await self._note(connection, delivery_id, "delivered", "the provider had reported it before", now)
        return True

    async def _subject(self, connection: Executor, channel: str, receipt: Receipt) -> _Subject:
        delivery_id, part, field = receipt.delivery_id, receipt.part, "delivery_id"
        if delivery_id is None:
            field = "provider_delivery_id"
            delivery_id, part = await self._named_by_provider(connection, channel, receipt)
        row = await connection.fetchrow(self._queries.delivery_by_id, delivery_id, channel)
        if row is None:
            raise UnknownDelivery(field)
        return _Subject(id=row["id"], channel=row["channel"], target=row["target_identity"], part=part or 1)

    async def _named_by_provider(self, connection: Executor, channel: str, receipt: Receipt) -> tuple[UUID, int]:
        name = receipt.provider_delivery_id
        rows = await connection.fetch(self._queries.deliveries_by_provider_id, name, channel)
        if not rows:
            raise UnknownDelivery("provider_delivery_id")
        if len(rows) > 1:
            raise invalid("provider_delivery_id", "stands for more than one message; give the delivery_id")
        return rows[0]["delivery_id"], rows[0]["part"]

    async def _write(
        self, connection: Executor, subject: _Subject, receipt: Receipt, known: str | None, now: datetime
    ) -> bool:
        written = await connection.fetchval(
            self._queries.record_receipt,
            self._new_id(),
            subject.id,
            subject.part,
            receipt.provider_delivery_id or known or str(subject.id),
            receipt.receipt_type,
            now,
            metadata_of(receipt),
        )
        return written is not None

    async def _settle(self, connection: Executor, subject: _Subject, receipt: Receipt, now: datetime) -> bool:
        """A message that arrived was sent, and one that came back for good was too, but need not be sent again."""
        if not receipt.arrived and not receipt.permanent:
            return False
        status = "delivered" if receipt.arrived else "failed"
        error = (None, None, None) if receipt.arrived else (ErrorClass.TARGET_UNAVAILABLE.value, BOUNCED, False)
        settled = await connection.fetchval(self._queries.settle, subject.id, status, now, *error)
        if settled is None:
            return False
        await self._note(connection, subject.id, status, f"the provider reported it {receipt.receipt_type}", now)
        return True

    async def _suppress(self, connection: Executor, subject: _Subject, receipt: Receipt, now: datetime) -> bool:
        if subject.target is None:
            return False
        reason, target = receipt.reason or BOUNCED, canonical_address(subject.channel, subject.target)
        added = await connection.fetchval(self._queries.suppress_recipient, subject.channel, target, reason, now)
        if added is None:
            return False
        await self._note(connection, subject.id, "suppressed", f"bounced for good: {reason}", now)
        return True

    async def _note(self, connection: Executor, delivery_id: UUID, verdict: str, detail: str, now: datetime) -> None:
        decision = {"at": now.isoformat(), "rule": "provider receipt", "verdict": verdict, "detail": detail}
        await connection.execute(self._queries.note_decision, delivery_id, [decision], now)


def metadata_of(receipt: Receipt) -> dict[str, Any]:
    """What is kept of a receipt beside its own columns; `reported` tells it from what our worker wrote itself."""
    kept = receipt.to_wire()
    return {"reported": True} | {name: kept[name] for name in ("permanent", "reason", "occurred_at") if kept.get(name)}
