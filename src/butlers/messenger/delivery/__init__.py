"""The values of one delivery's life, from the intent to the outcome.

    NewDelivery --claimed--> ClaimedDelivery --attempted--> Ended (with its Settlement) --told--> Outcome

Each knows its row; none does anything. `Decision`s say on the way which rule said what.
"""

from __future__ import annotations

from butlers.messenger.delivery.claim import ClaimedDelivery, FirstClaim, claimed, outgoing_of
from butlers.messenger.delivery.decision import Decision
from butlers.messenger.delivery.ended import CONFIRMED, Ended, Settlement
from butlers.messenger.delivery.new import NewDelivery, channel_tool, restored
from butlers.messenger.delivery.outcome import Outcome

__all__ = [
    "CONFIRMED",
    "ClaimedDelivery",
    "Decision",
    "Ended",
    "FirstClaim",
    "NewDelivery",
    "Outcome",
    "Settlement",
    "channel_tool",
    "claimed",
    "outgoing_of",
    "restored",
]
