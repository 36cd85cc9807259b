"""Deliveries that wait for a person: an approval, or an identifier that is missing.

A parked delivery has its row and its key, so a repeat of the request finds it. Releasing it means that it passes the
same admission as any other, once; the decision and the release are one transaction.
"""

from __future__ import annotations

from butlers.messenger.parking.parking import MISSING_IDENTIFIER, Parking, tool_args

__all__ = ["MISSING_IDENTIFIER", "Parking", "tool_args"]
