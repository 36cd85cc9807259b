"""Which deliveries of a batch a worker gets in hand at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from uuid import UUID

from butlers.messenger.admission import Budgets
from butlers.messenger.delivery import Claim, ClaimedDelivery, NewDelivery
from butlers.messenger.handover import Offer
from butlers.messenger.judgement import Snapshot
from butlers.reliability.circuit_breaker import Breaker, BreakerState
from butlers.reliability.error_budget import Stance


class Hands:
    """The free hands of one batch. Nothing overtakes: only the oldest of a free conversation is handed over."""

    def __init__(self, *, offer: Offer | None, new_id: Callable[[], UUID], now: datetime) -> None:
        self._now = now
        self._offer = offer
        self._new_id = new_id
        self._slots = offer.slots if offer is not None else 0
        self._first: dict[str, UUID] = {}
        self._handed: list[NewDelivery] = []

    def look(self, new: Sequence[NewDelivery], snapshot: Snapshot) -> None:
        """See which deliveries are the first of a conversation in which nothing else is on its way."""
        for delivery in new:
            if delivery.ordering_key not in snapshot.busy:
                oldest = self._first.setdefault(delivery.ordering_key, delivery.id)
                self._first[delivery.ordering_key] = min(oldest, delivery.id)

    def claim(self, new: NewDelivery, budgets: Budgets) -> Claim | None:
        """What makes it in hand, if there is a free one for it."""
        breaker = budgets.breakers.get(new.channel, Breaker())
        stale = new.notify.not_after is not None and self._now > new.notify.not_after
        free = self._slots > 0 and breaker.state is BreakerState.CLOSED and not stale
        if self._offer is None or not free or self._first.get(new.ordering_key) != new.id:
            return None
        if new.channel not in self._offer.channels:
            return None
        self._slots -= 1
        return Claim(
            token=self._offer.token,
            attempt_id=self._new_id(),
            worker=self._offer.worker,
            expires_at=self._offer.expires_at,
            generation=breaker.generation,
            stance=budgets.stances.get(new.channel, Stance.NORMAL),
        )

    def keep(self, taken: NewDelivery) -> None:
        if taken.claim is not None:
            self._handed.append(taken)

    def handed(self) -> list[ClaimedDelivery]:
        return [new.claimed(new.claim, self._now) for new in self._handed if new.claim is not None]
