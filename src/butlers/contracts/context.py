"""The request context: assigned once at the door, never changed downstream."""

from __future__ import annotations

from pydantic import Field

from butlers.contracts.channels import SourceChannel
from butlers.contracts.envelope import Identity, RequestId, Timestamp, TraceContext, Value


class RequestContext(Value):
    """Who asked what, where and when; the same for every subrequest of one request."""

    request_id: RequestId = Field(description="the id that the request got at the door: a UUID of version 7")
    received_at: Timestamp = Field(description="when the door took the request in: RFC 3339 with an offset")
    source_channel: SourceChannel = Field(description="the channel that the request came in by")
    source_endpoint_identity: Identity = Field(description="the bot or mailbox that it came in by")
    source_sender_identity: Identity = Field(description="who wrote it, as the channel names people")
    source_thread_identity: Identity | None = Field(
        default=None, description="the conversation it belongs to, as the channel names it"
    )
    trace_context: TraceContext = Field(
        default_factory=dict, description="W3C trace context headers, passed on unchanged"
    )

    @property
    def speaker(self) -> str:
        """Whom the channel has authenticated, as one name: a sender at another endpoint or channel is another."""
        endpoint = self.source_endpoint_identity.replace("%", "%25").replace(":", "%3A")
        return f"{self.source_channel}:{endpoint}:{self.source_sender_identity}"
