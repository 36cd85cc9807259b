"""What providers say about a message after they took it: sent, delivered, read, bounced."""

from __future__ import annotations

from butlers.messenger.receipts.door import receipt_routes
from butlers.messenger.receipts.intake import ReceiptIntake
from butlers.messenger.receipts.receipt import Receipt, ReceiptOutcome, UnknownDelivery

__all__ = ["Receipt", "ReceiptIntake", "ReceiptOutcome", "UnknownDelivery", "receipt_routes"]
