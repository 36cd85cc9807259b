"""What an admission reads, and what it decides by it: recipient, idempotency, budgets, circuit. Pure.

The intake decides with the state locked; the dry run decides with the same state merely read.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Self
from uuid import UUID

from butlers.channels.registry import canonical_address
from butlers.contracts.envelope import invalid
from butlers.messenger import channel_health
from butlers.messenger.admission import rules
from butlers.messenger.admission.rules import Admitted, AnswerBrake, Budgets, Limits, Refused, Throttled
from butlers.messenger.config import DeliverySection
from butlers.messenger.delivery import Decision, NewDelivery
from butlers.messenger.recipients import RecipientPolicy, RecipientRule, RecipientRules, not_permitted, suppressed
from butlers.reliability.circuit_breaker import BreakerPolicy
from butlers.reliability.error_budget import BudgetMode
from butlers.reliability.token_bucket import Bucket
from butlers.storage.database import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionState:
    """The shared state, as of one moment."""

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

    @classmethod
    def of(cls, delivery: DeliverySection) -> Self:
        brake = AnswerBrake(**delivery.answer_brake.model_dump())
        return cls(
            limits=Limits(**delivery.limits.model_dump(), answer_brake=brake),
            breaker=delivery.breaker.policy(),
            recipients=RecipientPolicy(**delivery.recipients.model_dump()),
        )


def decide(
    new: NewDelivery, policy: AdmissionPolicy, state: AdmissionState, now: datetime
) -> Known | Admitted | Refused:
    """Recipient, idempotency, admission, breaker: in this order, without an effect."""
    if (settled := before_admission(new, policy, state)) is not None:
        return settled
    request = moved(new, state.recipients).admission_request
    return rules.admit(request, limits=policy.limits, breaker=policy.breaker, budgets=state.budgets, now=now)


def before_admission(new: NewDelivery, policy: AdmissionPolicy, state: AdmissionState) -> Known | Refused | None:
    """What is settled without a budget. A repeat gets its first answer, also when that answer was what suppressed
    the recipient; the configured lists come before everything.
    """
    channel, context = new.notify.delivery.channel, new.notify.request_context
    there = moved(new, state.recipients).target
    for target in dict.fromkeys((new.target, there)):
        if target is not None and (problem := not_permitted(policy.recipients, channel=channel, target=target)):
            return Refused(rule="not_permitted", error=invalid("delivery.recipient", problem))
    if (known := state.known.get(new.idempotency_key)) is not None:
        return Known(delivery_id=known)
    wrote_at = context.received_at if context is not None and new.notify.delivery.intent != "send" else None
    problem = suppressed(state.recipients.get((channel, there or "")), wrote_at=wrote_at)
    return Refused(rule="suppressed", error=invalid("delivery.recipient", problem)) if problem else None


def moved(new: NewDelivery, recipients: RecipientRules) -> NewDelivery:
    """Addressed to where the recipient has moved."""
    rule = recipients.get((new.notify.delivery.channel, new.target or ""))
    if rule is None or rule.moved_to is None:
        return new
    decision = Decision(at=rule.since, rule="recipient", verdict="moved", detail="the provider named a new address")
    # Message ids belong to the conversation that was left.
    event = {name: value for name, value in (new.source_event or {}).items() if name != "message_id"}
    there = canonical_address(new.notify.delivery.channel, rule.moved_to)
    decisions = (*new.decisions, decision)
    return replace(new, target=there, address=rule.moved_to, source_event=event or None, decisions=decisions)


def state_of_row(row: Record) -> AdmissionState:
    """The answer of the query `admission_state`."""
    known = (entry.rsplit(" ", 1) for entry in row["known"])
    buckets: dict[str, Bucket] = {}
    shares: dict[str, dict[str, Bucket]] = {}
    for stored in row["buckets"]:
        bucket = Bucket(
            capacity=stored["capacity"],
            refill_per_second=stored["refill_per_second"],
            tokens=stored["tokens"],
            updated_at=stored["updated_at"],
        )
        if stored["layer"] is None:
            buckets[stored["name"]] = bucket
        else:
            shares.setdefault(stored["layer"], {})[stored["origin_butler"]] = bucket
    return AdmissionState(
        known={key: UUID(identity) for key, identity in known},
        recipients={
            (rule["channel"], rule["target"]): RecipientRule(
                rule=rule["rule"], moved_to=rule["moved_to"], reason=rule["reason"], since=rule["since"]
            )
            for rule in row["recipients"]
        },
        busy=frozenset(row["busy"]),
        budgets=Budgets(
            in_flight=row["in_flight"],
            buckets=buckets,
            shares=shares,
            throttles={t["scope"]: Throttled(until=t["until"], reason=t["reason"]) for t in row["throttles"]},
            breakers={state["name"]: channel_health.from_row(state) for state in row["channels"]},
            modes={state["name"]: BudgetMode(state["stance"]) for state in row["channels"]},
        ),
    )
