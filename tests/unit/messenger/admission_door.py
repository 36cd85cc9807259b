"""The shared budgets in memory: what the admission keeps in its tables, with the same expiry."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime

from butlers.messenger import admission_rules as rules
from butlers.messenger.admission import AdmissionBatch
from butlers.messenger.admission_rules import Admitted, Budgets, Refused
from butlers.messenger.config import DeliverySection, LimitsSection
from butlers.messenger.delivery import AdmissionRequest
from butlers.reliability.token_bucket import Bucket

PLENTY = 1e6


def limits(
    *,
    in_flight: float = PLENTY,
    total: float = PLENTY,
    channel: float = PLENTY,
    recipient: float = PLENTY,
    reply_multiplier: float = 2.0,
) -> DeliverySection:
    """Everything is plenty unless it is said."""
    section = LimitsSection(
        max_in_flight=int(in_flight),
        global_per_minute=total,
        channel_per_minute=dict.fromkeys(LimitsSection().channel_per_minute, channel),
        recipient_per_minute=recipient,
        reply_multiplier=reply_multiplier,
    )
    return DeliverySection(limits=section)


def admit(
    request: AdmissionRequest,
    now: datetime,
    *,
    limits: DeliverySection,
    budgets: Budgets | None = None,
) -> Admitted | Refused:
    return rules.admit(request, limits, budgets or Budgets(), now)


@dataclass(slots=True, kw_only=True)
class Door:
    limits: DeliverySection
    budgets: Budgets = field(default_factory=Budgets)
    kept_until: dict[str, datetime] = field(default_factory=dict)

    def ask(self, request: AdmissionRequest, now: datetime) -> Admitted | Refused:
        """Judge, and keep what the admission would keep."""
        self._forget(now)
        verdict = admit(request, now, limits=self.limits, budgets=self.budgets)
        batch = AdmissionBatch()
        if isinstance(verdict, Refused):
            meter = rules.Meter(request=request, policy=self.limits, budgets=self.budgets, now=now)
            batch.keep_shares(request, meter.shares(), now)
        else:
            batch.charge(request, verdict, self.budgets, now)
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
