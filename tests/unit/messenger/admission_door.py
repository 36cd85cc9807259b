"""The shared budgets in memory: what the admission keeps in its tables, with the same expiry."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime

from butlers.messenger.admission import rules
from butlers.messenger.admission.admission import AdmissionBatch
from butlers.messenger.admission.rules import AdmissionRequest, Admitted, Budgets, Limits, Refused
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
    request: AdmissionRequest,
    now: datetime,
    *,
    limits: Limits,
    budgets: Budgets | None = None,
    breaker: BreakerPolicy = BREAKER,
) -> Admitted | Refused:
    return rules.admit(request, limits=limits, breaker=breaker, budgets=budgets or Budgets(), now=now)


@dataclass(slots=True, kw_only=True)
class Door:
    limits: Limits
    budgets: Budgets = field(default_factory=Budgets)
    kept_until: dict[str, datetime] = field(default_factory=dict)

    def ask(self, request: AdmissionRequest, now: datetime) -> Admitted | Refused:
        """Judge, and keep what the admission would keep."""
        self._forget(now)
        verdict = admit(request, now, limits=self.limits, budgets=self.budgets)
        batch = AdmissionBatch()
        if isinstance(verdict, Refused):
            batch.keep_shares(request, rules.wanting(request, limits=self.limits, budgets=self.budgets, now=now), now)
        else:
            batch.charge(request, verdict, now)
        self._keep(batch)
        return verdict

    def is_admitted(self, request: AdmissionRequest, now: datetime) -> bool:
        return isinstance(self.ask(request, now), Admitted)

    def admitted(self, request: AdmissionRequest, now: datetime, *, tries: int) -> int:
        """How many of so many equal requests pass at one moment."""
        return sum(self.is_admitted(request, now) for _ in range(tries))

    def _keep(self, batch: AdmissionBatch) -> None:
        buckets = dict(self.budgets.buckets)
        shares: dict[str, dict[str, Bucket]] = {layer: dict(of) for layer, of in self.budgets.shares.items()}
        for name, (layer, origin, bucket, until) in batch.buckets.items():
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
