"""The request context: assigned once at the door, never changed downstream."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from butlers.contracts.envelope import Identity, RequestId, Timestamp, TraceContext, Value

SourceChannel = Literal["telegram", "email", "slack", "api", "mcp"]


class RequestContext(Value):
    """Who asked what, where and when; the same for every subrequest of one request."""

    request_id: RequestId
    received_at: Timestamp
    source_channel: SourceChannel
    source_endpoint_identity: Identity  # the ingress mailbox or bot, never the caller
    source_sender_identity: Identity
    source_thread_identity: Identity | None = None
    trace_context: TraceContext = Field(default_factory=dict)
