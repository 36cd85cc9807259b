"""Between the intake and the worker: who waits for an outcome, and what is handed over without a detour.

A delivery whose conversation is free, on a channel that is well, for which the worker has a free hand, is written down
as claimed in the very transaction that takes it on. The rest is written down as pending and claimed in its turn. Either
way the row is durable before anything leaves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol
from uuid import UUID

from butlers.messenger.delivery import ClaimedDelivery, Outcome


class Expectation:
    """Somebody wants to hear how a delivery went."""

    def __init__(self) -> None:
        self._ended = asyncio.Event()
        self._outcome: Outcome | None = None

    def tell(self, outcome: Outcome | None) -> None:
        """The delivery may have changed; with the outcome where it is known at first hand."""
        self._outcome = outcome
        self._ended.set()

    async def heard(self, at_most_s: float) -> Outcome | None:
        """The outcome when it is known in time; None when the row has to be looked at."""
        try:
            async with asyncio.timeout(at_most_s):
                await self._ended.wait()
        except TimeoutError:
            return None
        self._ended.clear()
        return self._outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """Free hands of a worker, kept for a batch until it is committed."""

    slots: int
    token: UUID
    worker: str
    expires_at: datetime
    channels: Collection[str]  # with scope, which the worker serves


class Executor(Protocol):
    """Whoever makes the attempts."""

    def wake(self) -> None:
        """Something waits to be claimed."""

    def expect(self, delivery_id: UUID) -> Expectation:
        """Be told about a delivery; it may be made by another process, so look at the row now and then."""

    def offer(self, wanted: int) -> Offer: ...

    def take(self, offer: Offer, handed: Sequence[ClaimedDelivery]) -> None:
        """Start what was handed over and is committed; the other slots of the offer are free again."""
