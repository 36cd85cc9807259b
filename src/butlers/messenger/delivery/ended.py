"""An attempt that is over: what it means for its delivery, and how that is written down."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from butlers.channels.adapter import AttemptResult, Certainty, Sent
from butlers.contracts.delivery_state import OPEN, DeliveryStatus
from butlers.errors import ClassifiedError
from butlers.messenger.delivery.claim import ClaimedDelivery
from butlers.messenger.delivery.decision import Decision

CONFIRMED = "confirmed by "  # and who: stands for the provider's name of a part that a person says arrived


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """The state a delivery is in after an attempt."""

    status: DeliveryStatus
    next_attempt_at: datetime | None = None
    error: ClassifiedError | None = None
    decision: Decision | None = None

    @property
    def tells_owner(self) -> bool:
        return self.status == "uncertain"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """An attempt that is over and what it means."""

    delivery: ClaimedDelivery
    result: AttemptResult
    settlement: Settlement
    latency_ms: int
    receipt_id: UUID
    lost: bool = False  # nobody lived to report it

    def to_row(self) -> dict[str, Any]:
        return {
            "delivery_id": self.delivery.id,
            "claim_token": self.delivery.claim_token,
            "attempt_id": self.delivery.attempt_id,
            "latency_ms": self.latency_ms,
            **_settlement_row(self.settlement),
            **_result_row(self.result, self.receipt_id),
            **({"outcome": "lost"} if self.lost else {}),
        }


def _settlement_row(settlement: Settlement) -> dict[str, Any]:
    error = settlement.error
    return {
        "status": settlement.status,
        "next_attempt_at": settlement.next_attempt_at,
        "error_class": error.error_class.value if error else None,
        "error_message": error.message if error else None,
        "retryable": error.retryable if error else None,
        "terminal": settlement.status not in OPEN,
        "tell_owner": settlement.tells_owner,
        "decision": [settlement.decision.to_row()] if settlement.decision else None,
    }


def _result_row(result: AttemptResult, receipt_id: UUID) -> dict[str, Any]:
    if isinstance(result, Sent):
        return {
            "outcome": "sent",
            "certainty": Certainty.SENT.value,
            "provider_response": dict(result.response),
            "receipt_id": receipt_id,
            "part": result.part,
            "provider_delivery_id": result.provider_delivery_id,
            "target_identity": result.moved_to,
        }
    return {
        "outcome": "rejected" if result.answered else "failed",
        "certainty": result.certainty.value,
        "attempt_error_class": result.error.error_class.value,
        "attempt_error_message": result.error.message,
        "attempt_retryable": result.error.retryable,
        "provider_response": dict(result.response),
        "target_identity": result.moved_to,
    }
