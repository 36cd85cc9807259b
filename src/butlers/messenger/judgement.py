"""Recipient, idempotency, admission, breaker: what happens to a delivery, given the shared state. Pure.

The intake judges with the state locked; the dry run judges with the same state merely read.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from uuid import UUID

from butlers.contracts.envelope import invalid
from butlers.messenger import admission
from butlers.messenger.addresses import canonical
from butlers.messenger.admission import Admitted, Budgets, Limits, Refused
from butlers.messenger.delivery import Decision, NewDelivery
from butlers.messenger.recipients import RecipientPolicy, RecipientRules, not_permitted, suppressed
from butlers.reliability.circuit_breaker import BreakerPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The shared state that a judgement looks at."""

    known: dict[str, UUID]  # idempotency key -> delivery
    recipients: RecipientRules
    budgets: Budgets
    busy: frozenset[str] = frozenset()  # conversations in which something is on its way


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """The key has a delivery already."""

    delivery_id: UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class Parked:
    """It is on record and waits for a person."""

    delivery_id: UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionPolicy:
    limits: Limits
    breaker: BreakerPolicy
    recipients: RecipientPolicy


def judge(new: NewDelivery, policy: AdmissionPolicy, snapshot: Snapshot, now: datetime) -> Known | Admitted | Refused:
    """Recipient, idempotency, admission, breaker: in this order, without any deed."""
    if (settled := before_admission(new, policy, snapshot)) is not None:
        return settled
    return admission.admit(
        moved(new, snapshot.recipients).wish,
        limits=policy.limits,
        breaker=policy.breaker,
        budgets=snapshot.budgets,
        now=now,
    )


def before_admission(new: NewDelivery, policy: AdmissionPolicy, snapshot: Snapshot) -> Known | Refused | None:
    """What is settled without a budget. A repeat gets its first answer, also when that answer was what suppressed
    the recipient; the configured lists come before everything.
    """
    channel, there = new.notify.delivery.channel, moved(new, snapshot.recipients).target
    for target in dict.fromkeys((new.target, there)):
        if target is not None and (problem := not_permitted(policy.recipients, channel=channel, target=target)):
            return _refused("not_permitted", problem)
    if (known := snapshot.known.get(new.idempotency_key)) is not None:
        return Known(delivery_id=known)
    problem = suppressed(snapshot.recipients.get((channel, there or "")), wrote_at=_wrote_at(new))
    return _refused("suppressed", problem) if problem else None


def _wrote_at(new: NewDelivery) -> datetime | None:
    context = new.notify.request_context
    return context.received_at if context is not None and new.notify.delivery.intent != "send" else None


def _refused(rule: str, problem: str) -> Refused:
    return Refused(rule=rule, error=invalid("delivery.recipient", problem))


def moved(new: NewDelivery, rules: RecipientRules) -> NewDelivery:
    """Addressed to where the recipient has moved."""
    rule = rules.get((new.notify.delivery.channel, new.target or ""))
    if rule is None or rule.moved_to is None:
        return new
    decision = Decision(at=rule.since, rule="recipient", verdict="moved", detail="the provider named a new address")
    # Message ids belong to the conversation that was left.
    event = {name: value for name, value in (new.source_event or {}).items() if name != "message_id"}
    there = canonical(new.notify.delivery.channel, rule.moved_to)
    decisions = (*new.decisions, decision)
    return replace(new, target=there, address=rule.moved_to, source_event=event or None, decisions=decisions)
