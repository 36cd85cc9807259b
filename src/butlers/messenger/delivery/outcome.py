"""A delivery as an answer: from its row, on the wire."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self
from uuid import UUID

from butlers.contracts.delivery_state import OPEN, DeliveryStatus
from butlers.contracts.notify import DeliveryOutcome
from butlers.errors import ClassifiedError, from_wire
from butlers.storage.database import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a caller hears about a delivery."""

    delivery_id: UUID
    channel: str
    status: DeliveryStatus
    error: ClassifiedError | None = None
    provider_delivery_id: str | None = None
    duplicate_detection: bool = True
    action_id: UUID | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of_row(cls, row: Record) -> Self:
        return cls(
            delivery_id=row["id"],
            channel=row["channel"],
            status=row["status"],
            error=_terminal_error(row),
            provider_delivery_id=row["provider_delivery_id"],
            duplicate_detection=row["duplicate_detection"],
            action_id=row["action_id"],
        )

    def to_wire(self, *, deduplicated: bool) -> DeliveryOutcome:
        return DeliveryOutcome(
            channel=self.channel,
            delivery_id=self.delivery_id,
            status=self.status,
            provider_delivery_id=self.provider_delivery_id,
            deduplicated=deduplicated,
            duplicate_detection=self.duplicate_detection,
            action_id=self.action_id,
        )


def _terminal_error(row: Record) -> ClassifiedError | None:
    if row["terminal_error_class"] is None or row["status"] in OPEN:
        return None
    return from_wire(
        row["terminal_error_class"], row["terminal_error_message"], retryable=bool(row["terminal_retryable"])
    )
