"""One message on its way to its row: what makes two messages one request, and the row's values."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, Self
from uuid import UUID

from pydantic_core import to_json

from butlers.butler.identity import Caller
from butlers.channels.channel import Dedupe
from butlers.channels.registry import channel_of
from butlers.contracts.envelope import RequestContext
from butlers.contracts.ingest import IngestEnvelope
from butlers.operations.operation import Role
from butlers.reliability.idempotency import content_key, event_key
from butlers.switchboard.ingress.admission import Outcome

Strategy = Literal["event", "idempotency_key", "content"]

LONGEST_THREAD_KEY = 300
_SHED = to_json(
    {
        "class": "overload_rejected",
        "message": "more messages wait than may wait; this one is not worked on",
        "retryable": True,
    }
).decode()


@dataclass(frozen=True, slots=True, kw_only=True)
class DedupeIdentity:
    key: str
    strategy: Strategy


def dedupe_identity(envelope: IngestEnvelope, *, submitted_by: Caller) -> DedupeIdentity:
    source, event, control = envelope.source, envelope.event, envelope.control
    submitter = "caller" if submitted_by.role is Role.OPERATOR else f"{submitted_by.role.value}:{submitted_by.name}"
    inbound = channel_of(source.channel).inbound
    strategy: Strategy
    if inbound is not None and inbound.dedupe is Dedupe.EVENT:
        strategy, name = "event", event.external_event_id
    elif control.idempotency_key is not None:
        strategy, name = "idempotency_key", control.idempotency_key
    else:
        key = content_key(
            channel=f"{source.channel}:{submitter}",
            endpoint_identity=source.endpoint_identity,
            sender_identity=envelope.sender.identity,
            payload=f"{control.pinned_target or ''}\n{envelope.payload.normalized_text}",
            window=0,  # the window slides: the age of the stored row is compared instead
            external_event_id=event.external_event_id,
        )
        return DedupeIdentity(key=key, strategy="content")
    key = event_key(
        channel=f"{source.channel}:{strategy}:{submitter}",
        endpoint_identity=source.endpoint_identity,
        external_event_id=name,
    )
    return DedupeIdentity(key=key, strategy=strategy)


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A message as it came to the door; what else its row needs is made for a whole batch (decision 0070)."""

    envelope: IngestEnvelope
    submitted_by: Caller
    received_at: datetime
    started: float  # on the monotonic clock
    trace_context: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    envelope: IngestEnvelope
    context: RequestContext
    identity: DedupeIdentity
    submitted_by: str
    started: float  # on the monotonic clock

    @classmethod
    def of(cls, offer: Offer, request_id: UUID) -> Self:
        envelope, caller = offer.envelope, offer.submitted_by
        context = RequestContext(
            request_id=request_id,
            received_at=offer.received_at,
            source_channel=envelope.source.channel,
            source_endpoint_identity=envelope.source.endpoint_identity,
            source_sender_identity=envelope.sender.identity,
            source_thread_identity=envelope.event.external_thread_id,
            trace_context=offer.trace_context,
        )
        identity = dedupe_identity(envelope, submitted_by=caller)
        return cls(
            envelope=envelope, context=context, identity=identity, submitted_by=caller.name, started=offer.started
        )

    def row(self, *, shed: bool, signal_pending: bool) -> tuple[Any, ...]:
        """Its values, in the order of the query `admit_events`. JSON goes as text: in an array of a column, a list
        would be taken for a dimension more.
        """
        payload, control, context = self.envelope.payload, self.envelope.control, self.context
        keep_raw = control.ingestion_tier == "full" and payload.raw is not None
        thread_key = None  # what orders the messages of one thread; a message without one stands alone
        if context.source_thread_identity is not None:
            thread_key = f"{context.source_channel}:{context.source_endpoint_identity}:{context.source_thread_identity}"
            if len(thread_key) > LONGEST_THREAD_KEY:
                thread_key = hashlib.sha256(thread_key.encode("utf-8", "surrogatepass")).hexdigest()
        return (
            self.identity.key,
            self.identity.strategy,
            context.request_id,
            context.received_at,
            to_json(context.to_wire()).decode(),
            to_json(payload.raw).decode() if keep_raw else None,
            payload.normalized_text,
            to_json([attachment.to_wire() for attachment in payload.attachments]).decode(),
            control.policy_tier,
            control.pinned_target,
            self.submitted_by,
            self.envelope.schema_version,
            context.source_channel,
            thread_key,
            "errored" if shed else "accepted",
            _SHED if shed else None,
            signal_pending,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """What became of one submission."""

    request_id: UUID | None  # the canonical one; None: rejected, nothing is stored
    outcome: Outcome | None  # None: it was known already
