"""Where a delivery can stand."""

from __future__ import annotations

from typing import get_args

from butlers.contracts.notify import DeliveryStatus

OPEN: frozenset[str] = frozenset({"pending", "in_progress", "awaiting_retry"})
PARKED: frozenset[str] = frozenset({"pending_approval", "pending_missing_identifier"})
STATUSES: tuple[str, ...] = get_args(DeliveryStatus)

CONFIRMED = "confirmed by "  # and who: stands for the provider's name of a part that a person says arrived
