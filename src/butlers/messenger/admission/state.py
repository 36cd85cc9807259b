"""What an admission reads, and what it decides by it: recipient, idempotency, budgets, circuit. Pure.

The intake decides with the state locked; the dry run decides with the same state merely read.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from uuid import UUID

from butlers.channels.registry import canonical_address
from butlers.contracts.envelope import invalid
from butlers.messenger import channel_health
from butlers.messenger.admission import rules
from butlers.messenger.admission.rules import Admitted, Budgets, Limits, Refused, Throttled
from butlers.messenger.delivery import Decision, NewDelivery
from butlers.messenger.recipients import RecipientPolicy, RecipientRule, RecipientRules, not_permitted, suppressed
from butlers.reliability.circuit_breaker import BreakerPolicy
from butlers.reliability.error_budget import Stance
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


def decide(
    new: NewDelivery, policy: AdmissionPolicy, state: AdmissionState, now: datetime
) -> Known | Admitted | Refused:
    """Recipient, idempotency, admission, breaker: in this order, without an effect."""
    if (settled := before_admission(new, policy, state)) is not None:
        return settled
    return rules.admit(
        moved(new, state.recipients).admission_request,
        limits=policy.limits,
        breaker=policy.breaker,
        budgets=state.budgets,
        now=now,
    )


def before_admission(new: NewDelivery, policy: AdmissionPolicy, state: AdmissionState) -> Known | Refused | None:
    """What is settled without a budget. A repeat gets its first answer, also when that answer was what suppressed
    the recipient; the configured lists come before everything.
    """
    channel, there = new.notify.delivery.channel, moved(new, state.recipients).target
    for target in dict.fromkeys((new.target, there)):
        if target is not None and (problem := not_permitted(policy.recipients, channel=channel, target=target)):
            return _refused("not_permitted", problem)
    if (known := state.known.get(new.idempotency_key)) is not None:
        return Known(delivery_id=known)
    problem = suppressed(state.recipients.get((channel, there or "")), wrote_at=_wrote_at(new))
    return _refused("suppressed", problem) if problem else None


def _wrote_at(new: NewDelivery) -> datetime | None:
    context = new.notify.request_context
    return context.received_at if context is not None and new.notify.delivery.intent != "send" else None


def _refused(rule: str, problem: str) -> Refused:
    return Refused(rule=rule, error=invalid("delivery.recipient", problem))


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
    known = dict(entry.rsplit(" ", 1) for entry in row["known"])
    channels = row["channels"]
    shares: dict[str, dict[str, Bucket]] = {}
    for stored in row["buckets"]:
        if stored["layer"] is not None:
            shares.setdefault(stored["layer"], {})[stored["origin_butler"]] = _bucket(stored)
    return AdmissionState(
        known={key: UUID(identity) for key, identity in known.items()},
        recipients={(rule["channel"], rule["target"]): _recipient_rule(rule) for rule in row["recipients"]},
        busy=frozenset(row["busy"]),
        budgets=Budgets(
            in_flight=row["in_flight"],
            buckets={stored["name"]: _bucket(stored) for stored in row["buckets"] if stored["layer"] is None},
            shares=shares,
            throttles={t["scope"]: Throttled(until=t["until"], reason=t["reason"]) for t in row["throttles"]},
            breakers={state["name"]: channel_health.from_row(state) for state in channels},
            stances={state["name"]: Stance(state["stance"]) for state in channels},
        ),
    )


def _bucket(stored: Record) -> Bucket:
    return Bucket(
        capacity=stored["capacity"],
        refill_per_second=stored["refill_per_second"],
        tokens=stored["tokens"],
        updated_at=stored["updated_at"],
    )


def _recipient_rule(stored: Record) -> RecipientRule:
    return RecipientRule(
        rule=stored["rule"], moved_to=stored["moved_to"], reason=stored["reason"], since=stored["since"]
    )
