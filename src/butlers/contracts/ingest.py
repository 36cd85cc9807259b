"""ingest.v1: what a source says came in."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from butlers.channels.registry import providers_of
from butlers.contracts.envelope import (
    Count,
    Envelope,
    Identity,
    IngestChannel,
    Provider,
    RequestId,
    Text,
    Timestamp,
    TraceContext,
    Value,
)

PolicyTier = Literal["default", "interactive", "high_priority"]
IngestionTier = Literal["full", "metadata"]


class Source(Value):
    channel: IngestChannel = Field(description="the channel that the message came by")
    provider: Provider = Field(
        description="who runs the channel: telegram for telegram, imap or gmail for email, internal for api and mcp"
    )
    endpoint_identity: Identity = Field(description="the bot, the mailbox or the API client's door")

    @model_validator(mode="after")
    def _provider_serves_channel(self) -> Self:
        if self.provider not in (allowed := providers_of(self.channel)):
            raise ValueError(f"channel {self.channel} is served by provider {' or '.join(sorted(allowed))}")
        return self


class Event(Value):
    external_event_id: Identity = Field(description="the source's own id of the event; a repeat is one request")
    external_thread_id: Identity | None = Field(
        default=None, description="the conversation, as the source names it; where an answer goes"
    )
    observed_at: Timestamp = Field(description="when the source saw it: RFC 3339 with an offset")


class Sender(Value):
    identity: Identity = Field(description="who wrote it, as the channel names people")
    display_name: Identity | None = Field(default=None, description="the name that people see")


class Attachment(Value):
    media_type: Identity = Field(description="the kind of file, such as image/png")
    storage_ref: Identity | None = Field(default=None, description="where the file is kept")
    size_bytes: Count = Field(description="its size")
    filename: Identity | None = Field(default=None, description="its name")


class Payload(Value):
    raw: Any = Field(description="what the provider sent, verbatim")
    normalized_text: Text = Field(description="what was said, as plain text")
    attachments: list[Attachment] = Field(
        default_factory=list, max_length=100, description="the files that came with it"
    )

    @model_serializer(mode="wrap")
    def _keep_raw(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # Null is what the provider sent, not an absent field.
        return {"raw": None, **serialize(self)}


class Control(Value):
    idempotency_key: Identity | None = Field(
        default=None, description="a name for this event instead of external_event_id: a repeat is one request"
    )
    trace_context: TraceContext = Field(
        default_factory=dict, description="W3C trace context headers, passed on unchanged"
    )
    policy_tier: PolicyTier = Field(default="default", description="how urgent it is")
    ingestion_tier: IngestionTier = Field(
        default="full", description="full: the text is worked on; metadata: it is only recorded"
    )
    pinned_target: Identity | None = Field(default=None, description="a butler's name: skip routing")


class IngestEnvelope(Envelope):
    VERSION = "ingest.v1"

    schema_version: Literal["ingest.v1"] = Field(description="which envelope this is")
    source: Source = Field(description="where it came from")
    event: Event = Field(description="what happened there")
    sender: Sender = Field(description="who wrote it")
    payload: Payload = Field(description="what was said")
    control: Control = Field(default_factory=Control, description="how it is to be treated")


class IngestReply(Value):
    """What the door answers, at once and for duplicates alike."""

    request_id: RequestId = Field(description="the id of the request from here on")
    status: Literal["accepted"] = Field(default="accepted", description="the message is stored")
    duplicate: bool = Field(description="whether the door knew it already")
