"""The values of one delivery's life, from the intent to the outcome.

    NewDelivery --claimed--> ClaimedDelivery --attempted--> Ended (with its Settlement) --told--> Outcome

Each knows its row; none does anything. `Decision`s say on the way which rule said what.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from html import escape
from typing import Any, Self
from uuid import UUID

from butlers.channels.adapter import Outgoing
from butlers.channels.registry import channel_of
from butlers.contracts.delivery_state import PARKED, DeliveryStatus
from butlers.contracts.notify import NotifyEnvelope
from butlers.reliability.error_budget import BudgetMode
from butlers.storage.database import Record

BRAKE, BRAKE_PER_DAY = "brake:", "brake:day:"  # the names of buckets that stop a mail loop begin so
_BODY = re.compile(r"<body\b[^<>]*>", re.IGNORECASE)
_LONGEST_THREAD = 500  # characters that tell threads apart
_PRIORITIES = {"urgent": 0, "high": 1, "normal": 2, "low": 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Which rule said what, for whoever asks why."""

    at: datetime
    rule: str
    verdict: str
    detail: str = ""

    def to_row(self) -> dict[str, str]:
        return {"at": self.at.isoformat(), "rule": self.rule, "verdict": self.verdict, "detail": self.detail}


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionRequest:
    """What the rules of admission need to know about a delivery."""

    channel: str  # with its scope: telegram.bot
    recipient: str
    origin: str
    intent: str
    brakes: tuple[str, ...] = ()  # the buckets of an automatic answer to a mail


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstClaim:
    """The claim that a delivery is stored with when a worker has a free slot for it."""

    token: UUID
    attempt_id: UUID
    worker: str
    expires_at: datetime
    generation: int  # of the channel's circuit
    mode: BudgetMode


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedDelivery:
    """A delivery that this worker, and nobody else, may attempt now."""

    id: UUID
    claim_token: UUID
    attempt_id: UUID
    attempt: int
    channel: str  # without its scope
    identity_scope: str
    origin_butler: str
    request_id: UUID | None
    created_at: datetime
    not_after: datetime | None
    trace_context: Mapping[str, str]  # of the request that is answered
    outgoing: Outgoing
    generation: int  # of the channel's circuit, to be handed back with the result
    mode: BudgetMode
    in_doubt: bool  # an earlier attempt may have arrived
    last_error_class: str | None  # of the attempt before this one
    settled: bool = False  # somebody has said since what became of the attempt in doubt
    max_attempts: int | None = None  # the caller's own limit

    @property
    def scoped_channel(self) -> str:
        return f"{self.channel}.{self.identity_scope}"

    @property
    def labels(self) -> dict[str, str]:
        return {
            "channel": self.channel,
            "intent": self.outgoing.intent,
            "identity_scope": self.identity_scope,
            "origin_butler": self.origin_butler,
        }


def claimed(row: Record, token: UUID) -> ClaimedDelivery:
    return ClaimedDelivery(
        id=row["id"],
        claim_token=token,
        attempt_id=row["attempt_id"],
        attempt=row["attempts"],
        channel=row["channel"],
        identity_scope=row["identity_scope"],
        origin_butler=row["origin_butler"],
        request_id=row["request_id"],
        created_at=row["created_at"],
        not_after=row["not_after"],
        trace_context=(row["envelope"].get("request_context") or {}).get("trace_context") or {},
        generation=row["generation"],
        mode=BudgetMode(row["stance"]),
        in_doubt=row["in_doubt"],
        last_error_class=row["terminal_error_class"],
        settled=row["settled_at"] is not None,
        max_attempts=row["envelope"].get("max_attempts"),
        outgoing=outgoing_of(row),
    )


def outgoing_of(row: Record) -> Outgoing:
    """The message of a delivery's row; `parts_sent` are those on record."""
    delivery = row["envelope"].get("delivery") or {}
    return Outgoing(
        delivery_id=row["id"],
        idempotency_key=row["idempotency_key"],
        intent=row["intent"],
        target=row["target_identity"],
        address=row["address"],
        message=row["message"],
        subject=row["subject"],
        emoji=delivery.get("emoji"),
        html=_html_with_origin(delivery.get("html"), row["channel"], row["origin_butler"]),
        unsubscribe_url=delivery.get("unsubscribe_url"),
        source_event=row["source_event"] or {},
        parts_sent={int(part): name for part, name in (row["parts_sent"] or {}).items()},
    )


def _html_with_origin(html: str | None, channel: str, origin: str) -> str | None:
    """With `[origin]` as its first words; where there is a subject line, that has it and the HTML stays as it is."""
    if html is None or channel_of(channel).has_subject:
        return html
    mark = f"<p>[{escape(origin)}]</p>"
    body = _BODY.search(html)
    return f"{html[: body.end()]}{mark}{html[body.end() :]}" if body is not None else f"{mark}{html}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewDelivery:
    """An intent that passed every check of its own and may be written down."""

    id: UUID
    idempotency_key: str
    notify: NotifyEnvelope
    target: str | None  # canonical; None: the contact's identifier is missing
    identity_scope: str
    message: str
    subject: str | None
    ordering_key: str
    source_event: Mapping[str, Any] | None
    duplicate_detection: bool
    decisions: tuple[Decision, ...] = ()
    status: DeliveryStatus = "pending"
    admitted: bool = True
    replay_of: UUID | None = None
    action_id: UUID | None = None
    claim: FirstClaim | None = None
    address: str | None = None  # the target as it was given

    @property
    def channel(self) -> str:
        """The channel with its scope, as budgets and circuits know it."""
        return f"{self.notify.delivery.channel}.{self.identity_scope}"

    @property
    def admission_request(self) -> AdmissionRequest:
        return AdmissionRequest(
            channel=self.channel,
            recipient=self.target or "",
            origin=self.notify.origin_butler,
            intent=self.notify.delivery.intent,
            brakes=self.brakes,
        )

    @property
    def brakes(self) -> tuple[str, ...]:
        """The buckets of an answer where two machines could answer each other: a reply, or a message to the sender. A
        responder that changes its address still answers in the thread.
        """
        delivery, context = self.notify.delivery, self.notify.request_context
        outbound = channel_of(delivery.channel).outbound
        if outbound is None or outbound.correspondent is None:
            return ()
        correspondent = outbound.correspondent(self.target or "")
        if delivery.intent != "reply":
            if context is None or context.source_channel != delivery.channel:
                return ()
            if correspondent != outbound.correspondent(context.source_sender_identity or ""):
                return ()
        thread = context.source_thread_identity if context else None
        of_thread = (f"{BRAKE}thread:{thread[:_LONGEST_THREAD]}",) if thread else ()
        return f"{BRAKE}correspondent:{correspondent}", f"{BRAKE_PER_DAY}correspondent:{correspondent}", *of_thread

    @property
    def labels(self) -> dict[str, str]:
        delivery = self.notify.delivery
        return {
            "channel": delivery.channel,
            "intent": delivery.intent,
            "identity_scope": self.identity_scope,
            "origin_butler": self.notify.origin_butler,
        }

    def decided(self, *decisions: Decision) -> Self:
        return replace(self, decisions=(*self.decisions, *decisions))

    def to_row(self) -> dict[str, Any]:
        notify, delivery, claim = self.notify, self.notify.delivery, self.claim
        return {
            "id": self.id,
            "idempotency_key": self.idempotency_key,
            "request_id": notify.request_id,
            "origin_butler": notify.origin_butler,
            "channel": delivery.channel,
            "identity_scope": self.identity_scope,
            "intent": delivery.intent,
            "target_identity": self.target,
            "address": self.address,
            "contact_id": notify.contact_id,
            "ordering_key": self.ordering_key,
            "message": self.message,
            "subject": self.subject,
            "envelope": notify.to_wire(),
            "source_event": self.source_event,
            "priority": notify.priority,
            # Answers first: whoever asked is waiting. Then by priority.
            "rank": _PRIORITIES[notify.priority] + (len(_PRIORITIES) if delivery.intent == "send" else 0),
            "not_after": notify.not_after,
            "duplicate_detection": self.duplicate_detection,
            "status": self.status if claim is None else "in_progress",
            "admitted": self.admitted,
            "replay_of": self.replay_of,
            "action_id": self.action_id,
            "decisions": [decision.to_row() for decision in self.decisions],
            "tell_owner": self.status in PARKED,
            "attempts": 0 if claim is None else 1,
            "attempt_id": claim and claim.attempt_id,
            "claim_token": claim and claim.token,
            "claimed_by": claim and claim.worker,
            "lease_expires_at": claim and claim.expires_at,
        }

    @property
    def outgoing(self) -> Outgoing:
        """As its channel sees it."""
        return Outgoing(
            delivery_id=self.id,
            idempotency_key=self.idempotency_key,
            intent=self.notify.delivery.intent,
            target=self.target or "",
            address=self.address,
            message=self.message,
            subject=self.subject,
            emoji=self.notify.delivery.emoji,
            html=_html_with_origin(self.notify.delivery.html, self.notify.delivery.channel, self.notify.origin_butler),
            unsubscribe_url=self.notify.delivery.unsubscribe_url,
            source_event=self.source_event or {},
        )

    def claimed(self, claim: FirstClaim, now: datetime) -> ClaimedDelivery:
        """As the worker that has it in hand sees it."""
        context = self.notify.request_context
        return ClaimedDelivery(
            id=self.id,
            claim_token=claim.token,
            attempt_id=claim.attempt_id,
            attempt=1,
            channel=self.notify.delivery.channel,
            identity_scope=self.identity_scope,
            origin_butler=self.notify.origin_butler,
            request_id=self.notify.request_id,
            created_at=now,
            not_after=self.notify.not_after,
            trace_context=context.trace_context if context is not None else {},
            outgoing=self.outgoing,
            generation=claim.generation,
            mode=claim.mode,
            in_doubt=False,
            last_error_class=None,
            max_attempts=self.notify.max_attempts,
        )


def channel_tool(notify: NotifyEnvelope) -> str:
    """The channel tool that a delivery amounts to."""
    channel, intent = notify.delivery.channel, notify.delivery.intent
    if intent == "reply":
        return channel_of(channel).reply_tool
    return f"{channel}_{'send_message' if intent == 'send' else 'react_to_message'}"


def restored(row: Record) -> NewDelivery:
    """A delivery as it was taken in, from its row."""
    return NewDelivery(
        id=row["id"],
        idempotency_key=row["idempotency_key"],
        notify=NotifyEnvelope.parse(row["envelope"]),
        target=row["target_identity"],
        address=row["address"],
        identity_scope=row["identity_scope"],
        message=row["message"],
        subject=row["subject"],
        ordering_key=row["ordering_key"],
        source_event=row["source_event"],
        duplicate_detection=row["duplicate_detection"],
    )
