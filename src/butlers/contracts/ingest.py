"""ingest.v1: what a source says came in."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from butlers.contracts.envelope import Count, Envelope, Identity, RequestId, Text, Timestamp, TraceContext, Value

IngestChannel = Literal["telegram", "email", "api", "mcp"]
Provider = Literal["telegram", "imap", "gmail", "internal"]
PolicyTier = Literal["default", "interactive", "high_priority"]
IngestionTier = Literal["full", "metadata"]

PROVIDERS_OF: dict[str, frozenset[str]] = {
    "telegram": frozenset({"telegram"}),
    "email": frozenset({"imap", "gmail"}),
    "api": frozenset({"internal"}),
    "mcp": frozenset({"internal"}),
}


class Source(Value):
    channel: IngestChannel
    provider: Provider
    endpoint_identity: Identity  # the bot, the mailbox or the API client's door

    @model_validator(mode="after")
    def _provider_serves_channel(self) -> Self:
        if self.provider not in PROVIDERS_OF[self.channel]:
            allowed = " or ".join(sorted(PROVIDERS_OF[self.channel]))
            raise ValueError(f"channel {self.channel} is served by provider {allowed}")
        return self


class Event(Value):
    external_event_id: Identity
    external_thread_id: Identity | None = None
    observed_at: Timestamp


class Sender(Value):
    identity: Identity
    display_name: Identity | None = None


class Attachment(Value):
    media_type: Identity
    storage_ref: Identity | None = None
    size_bytes: Count
    filename: Identity | None = None


class Payload(Value):
    raw: Any  # what the provider sent, verbatim
    normalized_text: Text
    attachments: list[Attachment] = Field(default_factory=list, max_length=100)

    @model_serializer(mode="wrap")
    def _keep_raw(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # Null is what the provider sent, not an absent field.
        return {"raw": None, **serialize(self)}


class Control(Value):
    idempotency_key: Identity | None = None
    trace_context: TraceContext = Field(default_factory=dict)
    policy_tier: PolicyTier = "default"
    ingestion_tier: IngestionTier = "full"
    pinned_target: Identity | None = None  # a butler's name: skip routing


class IngestEnvelope(Envelope):
    VERSION = "ingest.v1"

    schema_version: Literal["ingest.v1"]
    source: Source
    event: Event
    sender: Sender
    payload: Payload
    control: Control = Field(default_factory=Control)


class IngestReply(Value):
    """What the door answers, at once and for duplicates alike."""

    request_id: RequestId
    status: Literal["accepted"] = "accepted"
    duplicate: bool
