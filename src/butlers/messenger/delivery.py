"""The values of one delivery's life, from the intent to the outcome."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Self, get_args
from uuid import UUID

from butlers.contracts.notify import DeliveryOutcome, DeliveryStatus, NotifyEnvelope
from butlers.errors import ClassifiedError, from_wire
from butlers.messenger.admission import Wish
from butlers.messenger.channel import AttemptResult, Certainty, Outgoing, Sent
from butlers.reliability.error_budget import Stance
from butlers.storage.database import Record

OPEN: frozenset[str] = frozenset({"pending", "in_progress", "awaiting_retry"})
PARKED: frozenset[str] = frozenset({"pending_approval", "pending_missing_identifier"})
STATUSES: tuple[str, ...] = get_args(DeliveryStatus)
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
class Claim:
    """That a worker has a delivery in hand from the start."""

    token: UUID
    attempt_id: UUID
    worker: str
    expires_at: datetime
    generation: int  # of the channel's circuit
    stance: Stance


@dataclass(frozen=True, slots=True, kw_only=True)
class NewDelivery:
    """An intent that passed every check of its own and may be written down."""

    id: UUID
    idempotency_key: str
    notify: NotifyEnvelope
    target: str | None  # None: the contact's identifier is missing
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
    claim: Claim | None = None

    @property
    def channel(self) -> str:
        """The channel with its scope, as budgets and circuits know it."""
        return f"{self.notify.delivery.channel}.{self.identity_scope}"

    @property
    def wish(self) -> Wish:
        return Wish(
            channel=self.channel,
            recipient=self.target or "",
            origin=self.notify.origin_butler,
            intent=self.notify.delivery.intent,
        )

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
            **(_claim_row(self.claim) if self.claim is not None else {"attempts": 0}),
        }

    def claimed(self, claim: Claim, now: datetime) -> ClaimedDelivery:
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
            outgoing=Outgoing(
                delivery_id=self.id,
                idempotency_key=self.idempotency_key,
                intent=self.notify.delivery.intent,
                target=self.target or "",
                message=self.message,
                subject=self.subject,
                emoji=self.notify.delivery.emoji,
                source_event=self.source_event or {},
            ),
            generation=claim.generation,
            stance=claim.stance,
            in_doubt=False,
            last_error_class=None,
        )


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
    stance: Stance
    in_doubt: bool  # an earlier attempt may have arrived
    last_error_class: str | None  # of the attempt before this one

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """The state a delivery is in after an attempt."""

    status: DeliveryStatus
    next_attempt_at: datetime | None = None
    error: ClassifiedError | None = None
    decision: Decision | None = None

    @property
    def tells_owner(self) -> bool:
        return self.status == "uncertain"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """An attempt that is over and what it means."""

    delivery: ClaimedDelivery
    result: AttemptResult
    settlement: Settlement
    latency_ms: int
    receipt_id: UUID
    lost: bool = False  # nobody lived to report it

    def to_row(self) -> dict[str, Any]:
        return {
            "delivery_id": self.delivery.id,
            "claim_token": self.delivery.claim_token,
            "attempt_id": self.delivery.attempt_id,
            "latency_ms": self.latency_ms,
            **_settlement_row(self.settlement),
            **_result_row(self.result, self.receipt_id),
            **({"outcome": "lost"} if self.lost else {}),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a caller hears about a delivery."""

    delivery_id: UUID
    channel: str
    status: DeliveryStatus
    error: ClassifiedError | None = None
    provider_delivery_id: str | None = None
    duplicate_detection: bool = True
    action_id: UUID | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of_row(cls, row: Record) -> Self:
        return cls(
            delivery_id=row["id"],
            channel=row["channel"],
            status=row["status"],
            error=_terminal_error(row),
            provider_delivery_id=row["provider_delivery_id"],
            duplicate_detection=row["duplicate_detection"],
            action_id=row["action_id"],
        )

    def to_wire(self, *, deduplicated: bool) -> DeliveryOutcome:
        return DeliveryOutcome(
            channel=self.channel,  # type: ignore[arg-type]
            delivery_id=self.delivery_id,
            status=self.status,
            provider_delivery_id=self.provider_delivery_id,
            deduplicated=deduplicated,
            duplicate_detection=self.duplicate_detection,
            action_id=self.action_id,
        )


def channel_tool(notify: NotifyEnvelope) -> str:
    """The channel tool that a delivery amounts to."""
    channel, intent = notify.delivery.channel, notify.delivery.intent
    if intent == "reply":
        return "email_reply_to_thread" if channel == "email" else f"{channel}_reply_to_message"
    return f"{channel}_{'send_message' if intent == 'send' else 'react_to_message'}"


def restored(row: Record) -> NewDelivery:
    """A delivery as it was taken in, from its row."""
    return NewDelivery(
        id=row["id"],
        idempotency_key=row["idempotency_key"],
        notify=NotifyEnvelope.parse(row["envelope"]),
        target=row["target_identity"],
        identity_scope=row["identity_scope"],
        message=row["message"],
        subject=row["subject"],
        ordering_key=row["ordering_key"],
        source_event=row["source_event"],
        duplicate_detection=row["duplicate_detection"],
    )


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
        stance=Stance(row["stance"]),
        in_doubt=row["in_doubt"],
        last_error_class=row["terminal_error_class"],
        outgoing=_outgoing(row),
    )


def _claim_row(claim: Claim) -> dict[str, Any]:
    return {
        "status": "in_progress",
        "attempts": 1,
        "claim_token": claim.token,
        "claimed_by": claim.worker,
        "lease_expires_at": claim.expires_at,
        "attempt_id": claim.attempt_id,
    }


def _outgoing(row: Record) -> Outgoing:
    return Outgoing(
        delivery_id=row["id"],
        idempotency_key=row["idempotency_key"],
        intent=row["intent"],
        target=row["target_identity"],
        message=row["message"],
        subject=row["subject"],
        emoji=(row["envelope"].get("delivery") or {}).get("emoji"),
        source_event=row["source_event"] or {},
        parts_sent={int(part): name for part, name in (row["parts_sent"] or {}).items()},
    )


def _terminal_error(row: Record) -> ClassifiedError | None:
    if row["terminal_error_class"] is None or row["status"] in OPEN:
        return None
    return from_wire(
        row["terminal_error_class"], row["terminal_error_message"], retryable=bool(row["terminal_retryable"])
    )


def _settlement_row(settlement: Settlement) -> dict[str, Any]:
    error = settlement.error
    return {
        "status": settlement.status,
        "next_attempt_at": settlement.next_attempt_at,
        "error_class": error.error_class.value if error else None,
        "error_message": error.message if error else None,
        "retryable": error.retryable if error else None,
        "terminal": settlement.status not in OPEN,
        "tell_owner": settlement.tells_owner,
        "decision": [settlement.decision.to_row()] if settlement.decision else None,
    }


def _result_row(result: AttemptResult, receipt_id: UUID) -> dict[str, Any]:
    if isinstance(result, Sent):
        return {
            "outcome": "sent",
            "certainty": Certainty.SENT.value,
            "provider_response": dict(result.response),
            "receipt_id": receipt_id,
            "part": result.part,
            "provider_delivery_id": result.provider_delivery_id,
            "target_identity": result.moved_to,
        }
    return {
        "outcome": "rejected" if result.answered else "failed",
        "certainty": result.certainty.value,
        "attempt_error_class": result.error.error_class.value,
        "attempt_error_message": result.error.message,
        "attempt_retryable": result.error.retryable,
        "provider_response": dict(result.response),
        "target_identity": result.moved_to,
    }
