"""receipt.v1: what a provider says about a message after it took it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, Self
from uuid import UUID

from pydantic import Field, StringConstraints, model_validator

from butlers.contracts.envelope import Envelope, Identity, Timestamp
from butlers.errors import FieldError, ValidationError

ReceiptType = Literal["sent", "delivered", "read", "bounced"]


class Receipt(Envelope):
    """The delivery is named by our id, or by the provider's own; ours is known before the provider's is stored."""

    VERSION = "receipt.v1"

    schema_version: Literal["receipt.v1"] = "receipt.v1"
    receipt_type: ReceiptType
    delivery_id: UUID | None = None
    provider_delivery_id: Identity | None = None
    part: Annotated[int, Field(ge=1, le=10_000)] | None = None  # of a message in several parts
    permanent: bool = False  # of a bounce: this recipient will never get anything
    reason: Annotated[Identity, StringConstraints(max_length=200)] | None = None
    occurred_at: Timestamp | None = None

    @model_validator(mode="after")
    def _names_a_delivery(self) -> Self:
        if self.delivery_id is None and self.provider_delivery_id is None:
            raise ValueError("delivery_id or provider_delivery_id is required")
        return self

    @model_validator(mode="after")
    def _only_a_bounce_is_permanent(self) -> Self:
        if self.permanent and self.receipt_type != "bounced":
            raise ValueError("permanent goes with receipt_type bounced only")
        return self

    @property
    def arrived(self) -> bool:
        """Whether it says that the provider has the message."""
        return self.receipt_type != "bounced"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiptOutcome:
    """What a receipt changed."""

    delivery_id: UUID
    receipt_type: ReceiptType
    repeated: bool = False  # it was on record already
    settled: bool = False  # the delivery was uncertain until now
    suppressed: bool = False  # the recipient is not written to any more, since now


class UnknownDelivery(ValidationError):
    """No delivery of this channel goes by that name."""

    def __init__(self, field: str) -> None:
        error = "names no delivery of this channel"
        super().__init__(f"{field}: {error}", fields=(FieldError(field=field, error=error),))
