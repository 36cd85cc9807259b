"""One message on its way to its row."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
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


@dataclass(frozen=True, slots=True, kw_only=True)
class DedupeIdentity:
    key: str
    strategy: Strategy


def dedupe_identity(envelope: IngestEnvelope, *, submitted_by: Caller) -> DedupeIdentity:
    source, submitter = envelope.source, submitter_of(submitted_by)
    inbound = channel_of(source.channel).inbound
    if inbound is not None and inbound.dedupe is Dedupe.EVENT:
        return _named("event", envelope, envelope.event.external_event_id, submitter)
    if envelope.control.idempotency_key is not None:
        return _named("idempotency_key", envelope, envelope.control.idempotency_key, submitter)
    key = content_key(
        channel=f"{source.channel}:{submitter}",
        endpoint_identity=source.endpoint_identity,
        sender_identity=envelope.sender.identity,
        payload=f"{envelope.control.pinned_target or ''}\n{envelope.payload.normalized_text}",
        window=0,  # the window slides: the age of the stored row is compared instead
        external_event_id=envelope.event.external_event_id,
    )
    return DedupeIdentity(key=key, strategy="content")


def submitter_of(caller: Caller) -> str:
    return "caller" if caller.role is Role.OPERATOR else f"{caller.role.value}:{caller.name}"


def _named(strategy: Strategy, envelope: IngestEnvelope, name: str, submitter: str) -> DedupeIdentity:
    key = event_key(
        channel=f"{envelope.source.channel}:{strategy}:{submitter}",
        endpoint_identity=envelope.source.endpoint_identity,
        external_event_id=name,
    )
    return DedupeIdentity(key=key, strategy=strategy)


LONGEST_THREAD_KEY = 300
_SHED = to_json(
    {
        "class": "overload_rejected",
        "message": "more messages wait than may wait; this one is not worked on",
        "retryable": True,
    }
).decode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A message as it came to the door."""

    envelope: IngestEnvelope
    submitted_by: Caller
    received_at: datetime
    started: float  # by the monotonic clock
    trace_context: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    envelope: IngestEnvelope
    context: RequestContext
    identity: DedupeIdentity
    submitted_by: str
    started: float

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

    @property
    def channel(self) -> str:
        return self.envelope.source.channel

    @property
    def tier(self) -> str:
        return self.envelope.control.policy_tier

    def row(self, *, shed: bool, signal_pending: bool) -> tuple[Any, ...]:
        """Its values, in the order of the query `admit_events`."""
        payload, control, context = self.envelope.payload, self.envelope.control, self.context
        keep_raw = control.ingestion_tier == "full" and payload.raw is not None
        return (
            self.identity.key,
            self.identity.strategy,
            context.request_id,
            context.received_at,
            _json(context.to_wire()),
            _json(payload.raw) if keep_raw else None,
            payload.normalized_text,
            _json([attachment.to_wire() for attachment in payload.attachments]),
            control.policy_tier,
            control.pinned_target,
            self.submitted_by,
            self.envelope.schema_version,
            context.source_channel,
            thread_key(context),
            "errored" if shed else "accepted",
            _SHED if shed else None,
            signal_pending,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """What became of one submission."""

    request_id: UUID | None  # the canonical one; None: rejected, nothing is stored
    outcome: Outcome | None  # None: it was known already


def columns(rows: Sequence[tuple[Any, ...]]) -> list[list[Any]]:
    """Rows turned into one array per column: the database takes them apart faster than a document."""
    return [list(column) for column in zip(*rows, strict=True)]


def thread_key(context: RequestContext) -> str | None:
    """What orders the messages of one thread, or None for a message that stands alone."""
    if context.source_thread_identity is None:
        return None
    key = f"{context.source_channel}:{context.source_endpoint_identity}:{context.source_thread_identity}"
    return key if len(key) <= LONGEST_THREAD_KEY else hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def _json(value: Any) -> str:
    # As text: in an array, a list would be taken for a dimension more.
    return to_json(value).decode()
