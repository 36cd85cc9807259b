"""notify.v1 and notify_response.v1: a butler asks for a message to leave, Messenger says what became of it."""

from __future__ import annotations

from typing import Literal, Self
from uuid import UUID

from pydantic import Field, model_validator

from butlers.contracts.context import RequestContext, SourceChannel
from butlers.contracts.envelope import Envelope, Identity, RequestId, Text, Timestamp, TraceContext, Value, invalid
from butlers.contracts.route import WireError

Intent = Literal["send", "reply", "react"]
Channel = Literal["telegram", "email", "sms", "chat"]
Priority = Literal["urgent", "high", "normal", "low"]
DeliveryStatus = Literal[
    "pending",
    "in_progress",
    "awaiting_retry",
    "delivered",
    "failed",
    "dead_lettered",
    "uncertain",
    "expired",
    "pending_approval",
    "pending_missing_identifier",
]

_SOURCE = ("source_channel", "source_endpoint_identity", "source_sender_identity", "source_thread_identity")
REPLY_NEEDS = ("request_id", "source_channel", "source_endpoint_identity", "source_sender_identity")
NEEDS_THREAD = frozenset({"telegram"})  # channels that cannot answer without knowing the conversation


class NotifyContext(Value):
    """The lineage of an answer. A proactive message has none, so every field may be absent."""

    request_id: RequestId | None = None
    received_at: Timestamp | None = None
    source_channel: SourceChannel | None = None
    source_endpoint_identity: Identity | None = None
    source_sender_identity: Identity | None = None
    source_thread_identity: Identity | None = None
    trace_context: TraceContext = Field(default_factory=dict)

    @classmethod
    def answering(cls, context: RequestContext) -> Self:
        """The lineage of an answer to a request."""
        return cls(
            request_id=context.request_id,
            received_at=context.received_at,
            source_channel=context.source_channel,
            source_endpoint_identity=context.source_endpoint_identity,
            source_sender_identity=context.source_sender_identity,
            source_thread_identity=context.source_thread_identity,
            trace_context=context.trace_context,
        )

    def contradicts(self, record: NotifyContext) -> bool:
        """Whether it says something else about the source; what it leaves out contradicts nothing."""
        return any(getattr(self, name) not in (None, getattr(record, name)) for name in _SOURCE)


class Delivery(Value):
    intent: Intent
    channel: Channel
    message: Text
    recipient: Identity | None = None
    subject: Identity | None = None
    emoji: Identity | None = None


class NotifyEnvelope(Envelope):
    VERSION = "notify.v1"

    schema_version: Literal["notify.v1"] = "notify.v1"
    origin_butler: Identity
    delivery: Delivery
    request_context: NotifyContext | None = None
    contact_id: UUID | None = None
    idempotency_key: Identity | None = None
    not_after: Timestamp | None = None
    priority: Priority = "normal"

    @model_validator(mode="after")
    def _reply_has_lineage(self) -> Self:
        if self.delivery.intent == "send":
            return self
        needed: tuple[str, ...] = REPLY_NEEDS
        if self.delivery.channel in NEEDS_THREAD:
            needed = (*needed, "source_thread_identity")
        missing = [name for name in needed if getattr(self.request_context, name, None) is None]
        if missing:
            listed = ", ".join(f"request_context.{name}" for name in missing)
            raise ValueError(f"intent {self.delivery.intent} on {self.delivery.channel} needs {listed}")
        return self

    @model_validator(mode="after")
    def _react_has_emoji(self) -> Self:
        if (self.delivery.intent == "react") != (self.delivery.emoji is not None):
            raise ValueError("delivery.emoji goes with intent react, and only with it")
        return self

    def on_record(self, record: NotifyContext | None) -> Self:
        """As it goes on, given what is on record of its request. An answer needs a request, and may not tell another
        story of it; a message that merely names one we do not know keeps what it says of itself.
        """
        answers = self.delivery.intent != "send"
        if record is None:
            if answers:
                raise invalid("request_context.request_id", "no such request: there is nothing to answer")
            return self
        if answers and (self.request_context or NotifyContext()).contradicts(record):
            raise invalid("request_context", "no such request: it is on record with other words about its source")
        return self.model_copy(update={"request_context": record})

    @property
    def request_id(self) -> RequestId | None:
        return self.request_context.request_id if self.request_context else None


class NotifyResponseContext(Value):
    request_id: RequestId | None = None


class DeliveryOutcome(Value):
    channel: Channel
    delivery_id: UUID
    status: DeliveryStatus
    provider_delivery_id: str | None = None
    deduplicated: bool = False  # an earlier delivery answered for this one
    duplicate_detection: bool = True  # false: no request_id and no key, so a repeat would be sent again
    action_id: UUID | None = None  # the pending action that somebody has to decide


class NotifyResponse(Envelope):
    VERSION = "notify_response.v1"

    schema_version: Literal["notify_response.v1"] = "notify_response.v1"
    request_context: NotifyResponseContext = Field(default_factory=NotifyResponseContext)
    status: Literal["ok", "error"]
    delivery: DeliveryOutcome | None = None
    error: WireError | None = None

    @model_validator(mode="after")
    def _status_agrees(self) -> Self:
        if (self.status == "error") != (self.error is not None):
            raise ValueError("status error needs an error, status ok must have none")
        if self.status == "ok" and self.delivery is None:
            raise ValueError("status ok needs a delivery")
        return self
