"""route.v1 and route_response.v1: Switchboard asks a butler, the butler answers."""

from __future__ import annotations

from typing import Any, Literal, Self
from uuid import UUID

from pydantic import Field, model_validator

from butlers.contracts.envelope import Count, Envelope, Identity, RequestContext, RequestId, Text, TraceContext, Value
from butlers.contracts.ingest import Attachment
from butlers.errors import ClassifiedError

FanoutMode = Literal["parallel", "ordered", "conditional"]


class RouteInput(Value):
    prompt: Text = Field(description="what the butler is to deal with")
    context: dict[str, Any] | None = Field(default=None, description="what else is known")
    conversation_history: list[dict[str, Any]] | None = Field(
        default=None, description="earlier messages of the conversation, oldest first"
    )
    attachments: list[Attachment] | None = Field(default=None, description="the files that came with the message")


class Subrequest(Value):
    subrequest_id: UUID = Field(description="one UUID per part of a request")
    segment_id: Identity = Field(description="which part of the text it is")
    fanout_mode: FanoutMode = Field(default="parallel", description="how the parts of the request are carried out")


class Target(Value):
    butler: Identity = Field(description="the butler that is meant")
    tool: Literal["route.execute"] = Field(default="route.execute", description="the tool that takes it")


class RouteEnvelope(Envelope):
    VERSION = "route.v1"

    schema_version: Literal["route.v1"] = Field(default="route.v1", description="which envelope this is")
    request_context: RequestContext = Field(description="where the request came from")
    input: RouteInput = Field(description="the work")
    subrequest: Subrequest = Field(description="which part of the request this is")
    target: Target = Field(description="who is to do it")
    trace_context: TraceContext = Field(
        default_factory=dict, description="W3C trace context headers, passed on unchanged"
    )


class ResponseContext(Value):
    request_id: RequestId = Field(description="the id that the request got at the door: a UUID of version 7")


class WireError(Value):
    """An error as it travels. The class is free text on the way in: unknown ones are normalised by the reader."""

    error_class: Identity = Field(alias="class", description="the kind of failure")
    message: str = Field(description="what happened, in words")
    retryable: bool = Field(description="whether the same call may succeed later")
    retry_after_seconds: float | None = Field(default=None, description="not before so many seconds")
    fields: list[dict[str, str]] | None = Field(default=None, description="the fields that are wrong: field and error")

    @classmethod
    def of(cls, error: ClassifiedError) -> Self:
        return cls.model_validate(error.describe())


class Timing(Value):
    duration_ms: Count = Field(description="milliseconds it took")


class RouteResponse(Envelope):
    VERSION = "route_response.v1"

    schema_version: Literal["route_response.v1"] = Field(
        default="route_response.v1", description="which envelope this is"
    )
    request_context: ResponseContext | None = Field(
        default=None, description="the request that is answered; absent when it had no readable id"
    )
    status: Literal["ok", "error"] = Field(description="ok, or error with an error")
    result: dict[str, Any] | None = Field(default=None, description="what the butler did")
    error: WireError | None = Field(default=None, description="what went wrong")
    timing: Timing = Field(description="how long it took")

    @model_validator(mode="after")
    def _status_agrees(self) -> Self:
        if (self.status == "error") != (self.error is not None):
            raise ValueError("status error needs an error, status ok must have none")
        if self.status == "ok" and self.request_context is None:
            raise ValueError("status ok needs request_context")
        return self
