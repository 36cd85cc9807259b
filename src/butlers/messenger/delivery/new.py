"""A delivery as it is taken in, on its way to its row and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Self
from uuid import UUID

from butlers.channels.adapter import Outgoing
from butlers.channels.registry import channel_of
from butlers.contracts.delivery_state import PARKED, DeliveryStatus
from butlers.contracts.notify import NotifyEnvelope
from butlers.messenger.admission.rules import AdmissionRequest, brakes
from butlers.messenger.delivery.claim import ClaimedDelivery, FirstClaim
from butlers.messenger.delivery.decision import Decision
from butlers.storage.database import Record

_PRIORITIES = {"urgent": 0, "high": 1, "normal": 2, "low": 3}


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
            brakes=self._brakes() if self.is_braked else (),
        )

    @property
    def is_braked(self) -> bool:
        """Whether it is an answer where two machines could answer each other: a reply, or a message to the sender."""
        delivery, context = self.notify.delivery, self.notify.request_context
        if self._correspondent is None or delivery.intent == "reply":
            return self._correspondent is not None
        if context is None or context.source_channel != delivery.channel:
            return False
        return self._correspondent(self.target or "") == self._correspondent(context.source_sender_identity or "")

    @property
    def _correspondent(self) -> Callable[[str], str] | None:
        outbound = channel_of(self.notify.delivery.channel).outbound
        return outbound.correspondent if outbound is not None else None

    def _brakes(self) -> tuple[str, ...]:
        context = self.notify.request_context
        thread = context.source_thread_identity if context is not None else None
        correspondent = self._correspondent(self.target or "") if self._correspondent is not None else ""
        return brakes(correspondent=correspondent, thread=thread)

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
        notify, delivery = self.notify, self.notify.delivery
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
            "status": self.status,
            "admitted": self.admitted,
            "replay_of": self.replay_of,
            "action_id": self.action_id,
            "decisions": [decision.to_row() for decision in self.decisions],
            "tell_owner": self.status in PARKED,
            **(self.claim.to_row() if self.claim is not None else {"attempts": 0}),
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
            stance=claim.stance,
            in_doubt=False,
            last_error_class=None,
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
