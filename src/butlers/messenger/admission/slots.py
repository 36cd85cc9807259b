"""Between the admission and the worker: which deliveries of a batch are claimed with their admission, and who waits for
an outcome.

A delivery whose conversation is free, on a channel whose circuit is closed, for which the worker has a free slot, is
stored as claimed in the transaction that admits it. The rest is stored as pending and claimed in its turn. Either way
the row is durable before anything leaves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol
from uuid import UUID

from butlers.messenger.admission.rules import Budgets
from butlers.messenger.delivery import ClaimedDelivery, FirstClaim, NewDelivery
from butlers.messenger.settlement import Outcome
from butlers.reliability.circuit_breaker import Breaker, BreakerState
from butlers.reliability.error_budget import BudgetMode


@dataclass(eq=False)
class OutcomeWaiter:
    """A caller waits for the outcome of a delivery."""

    _ended: asyncio.Event = field(default_factory=asyncio.Event)
    _outcome: Outcome | None = None

    def report(self, outcome: Outcome | None) -> None:
        """The delivery may have changed; `outcome` is None where only its row tells."""
        self._outcome = outcome
        self._ended.set()

    async def wait(self, at_most_s: float) -> Outcome | None:
        """The outcome when it is known in time; None when the caller has to look at the row."""
        try:
            async with asyncio.timeout(at_most_s):
                await self._ended.wait()
        except TimeoutError:
            return None
        self._ended.clear()
        return self._outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimSlots:
    """Free slots of a worker, reserved for a batch until it is committed."""

    count: int
    token: UUID
    worker: str
    expires_at: datetime
    channels: Collection[str]  # with scope, that the worker serves


class DeliveryExecutor(Protocol):
    """The worker that makes the attempts."""

    def wake(self) -> None:
        """Something waits to be claimed."""

    def expect(self, delivery_id: UUID) -> OutcomeWaiter:
        """Wait for a delivery's outcome; another process may make it, so the caller looks at the row now and then."""

    def reserve_slots(self, wanted: int) -> ClaimSlots: ...

    def start_claimed(self, slots: ClaimSlots, claimed: Sequence[ClaimedDelivery]) -> None:
        """Start what is claimed and committed; the other slots are free again."""


class SlotAssignment:
    """Assigns the slots of one batch. Nothing overtakes: only the oldest delivery of a free conversation gets one."""

    def __init__(
        self,
        slots: ClaimSlots | None,
        *,
        batch: Sequence[NewDelivery],
        busy: Collection[str],  # conversations in which something else is on its way
        new_id: Callable[[], UUID],
        now: datetime,
    ) -> None:
        self._slots = slots
        self._free = slots.count if slots is not None else 0
        self._new_id = new_id
        self._now = now
        self._first: dict[str, UUID] = {}  # of each free conversation
        for delivery in batch:
            if delivery.ordering_key not in busy:
                oldest = self._first.setdefault(delivery.ordering_key, delivery.id)
                self._first[delivery.ordering_key] = min(oldest, delivery.id)

    def claim(self, new: NewDelivery, budgets: Budgets) -> FirstClaim | None:
        """The claim that the delivery is stored with; None when it is claimed in its turn."""
        breaker = budgets.breakers.get(new.channel, Breaker())
        stale = new.notify.not_after is not None and self._now > new.notify.not_after
        free = self._free > 0 and breaker.state is BreakerState.CLOSED and not stale
        if self._slots is None or not free or self._first.get(new.ordering_key) != new.id:
            return None
        if new.channel not in self._slots.channels:
            return None
        self._free -= 1
        return FirstClaim(
            token=self._slots.token,
            attempt_id=self._new_id(),
            worker=self._slots.worker,
            expires_at=self._slots.expires_at,
            generation=breaker.generation,
            mode=budgets.modes.get(new.channel, BudgetMode.NORMAL),
        )
