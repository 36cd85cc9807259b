"""route.v1 and route_response.v1: Switchboard asks a butler, the butler answers."""

from __future__ import annotations

from typing import Any, Literal, Self
from uuid import UUID

from pydantic import Field, model_validator

from butlers.contracts.context import RequestContext
from butlers.contracts.envelope import Count, Envelope, Identity, RequestId, Text, TraceContext, Value
from butlers.contracts.ingest import Attachment
from butlers.errors import ClassifiedError, ErrorClass

FanoutMode = Literal["parallel", "ordered", "conditional"]


class RouteInput(Value):
    prompt: Text
    context: dict[str, Any] | None = None
    conversation_history: list[dict[str, Any]] | None = None
    attachments: list[Attachment] | None = None


class Subrequest(Value):
    subrequest_id: UUID
    segment_id: Identity
    fanout_mode: FanoutMode = "parallel"


class Target(Value):
    butler: Identity
    tool: Literal["route.execute"] = "route.execute"


class RouteEnvelope(Envelope):
    VERSION = "route.v1"

    schema_version: Literal["route.v1"] = "route.v1"
    request_context: RequestContext
    input: RouteInput
    subrequest: Subrequest
    target: Target
    trace_context: TraceContext = Field(default_factory=dict)


class ResponseContext(Value):
    request_id: RequestId


class WireError(Value):
    """An error as it travels. The class is free text on the way in: unknown ones are normalised by the reader."""

    error_class: Identity = Field(alias="class")
    message: str
    retryable: bool
    retry_after_seconds: float | None = None
    fields: list[dict[str, str]] | None = None

    @classmethod
    def of(cls, error: ClassifiedError) -> Self:
        return cls.model_validate(error.describe())

    def known_class(self) -> ErrorClass:
        """The class in our taxonomy; whatever we do not know is an internal error."""
        try:
            return ErrorClass(self.error_class)
        except ValueError:
            return ErrorClass.INTERNAL_ERROR


class Timing(Value):
    duration_ms: Count


class RouteResponse(Envelope):
    VERSION = "route_response.v1"

    schema_version: Literal["route_response.v1"] = "route_response.v1"
    request_context: ResponseContext | None = None  # absent only when the request had no readable id
    status: Literal["ok", "error"]
    result: dict[str, Any] | None = None
    error: WireError | None = None
    timing: Timing

    @model_validator(mode="after")
    def _status_agrees(self) -> Self:
        if (self.status == "error") != (self.error is not None):
            raise ValueError("status error needs an error, status ok must have none")
        if self.status == "ok" and self.request_context is None:
            raise ValueError("status ok needs request_context")
        return self
