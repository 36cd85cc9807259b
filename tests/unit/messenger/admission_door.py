"""The shared budgets in memory: what the book keeps in its tables, with the same expiry."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime

from butlers.messenger import admission
from butlers.messenger.admission import Admitted, Budgets, Limits, Refused, Wish
from butlers.messenger.ledger import Page
from butlers.reliability.circuit_breaker import BreakerPolicy
from butlers.reliability.token_bucket import Bucket

BREAKER = BreakerPolicy()
PLENTY = 1e6


def limits(
    *,
    in_flight: float = PLENTY,
    total: float = PLENTY,
    channel: float = PLENTY,
    recipient: float = PLENTY,
    reply_multiplier: float = 2.0,
) -> Limits:
    """Everything is plenty unless it is said."""
    return Limits(
        max_in_flight=int(in_flight),
        global_per_minute=total,
        channel_per_minute={"default": channel},
        recipient_per_minute=recipient,
        reply_multiplier=reply_multiplier,
    )


def admit(
    wish: Wish, now: datetime, *, limits: Limits, budgets: Budgets | None = None, breaker: BreakerPolicy = BREAKER
) -> Admitted | Refused:
    return admission.admit(wish, limits=limits, breaker=breaker, budgets=budgets or Budgets(), now=now)


@dataclass(slots=True, kw_only=True)
class Door:
    limits: Limits
    budgets: Budgets = field(default_factory=Budgets)
    kept_until: dict[str, datetime] = field(default_factory=dict)

    def ask(self, wish: Wish, now: datetime) -> Admitted | Refused:
        """Judge, and keep what the book would keep."""
        self._forget(now)
        verdict = admit(wish, now, limits=self.limits, budgets=self.budgets)
        page = Page()
        if isinstance(verdict, Refused):
            page.keep(wish, admission.wanting(wish, limits=self.limits, budgets=self.budgets, now=now), now)
        else:
            page.draw(wish, verdict, now)
        self._keep(page)
        return verdict

    def is_admitted(self, wish: Wish, now: datetime) -> bool:
        return isinstance(self.ask(wish, now), Admitted)

    def admitted(self, wish: Wish, now: datetime, *, tries: int) -> int:
        """How many of so many equal wishes pass at one moment."""
        return sum(self.is_admitted(wish, now) for _ in range(tries))

    def _keep(self, page: Page) -> None:
        buckets = dict(self.budgets.buckets)
        shares: dict[str, dict[str, Bucket]] = {layer: dict(of) for layer, of in self.budgets.shares.items()}
        for name, (layer, origin, bucket, until) in page.buckets.items():
            self.kept_until[name] = until
            if layer is None or origin is None:
                buckets[name] = bucket
            else:
                shares.setdefault(layer, {})[origin] = bucket
        self.budgets = replace(self.budgets, buckets=buckets, shares=shares)

    def _forget(self, now: datetime) -> None:
        shares = {
            layer: {name: use for name, use in of.items() if self.kept_until[f"share:{layer}/{name}"] > now}
            for layer, of in self.budgets.shares.items()
        }
        self.budgets = replace(self.budgets, shares=shares)
