"""Reading a butler's route_response.v1.

A missing or unknown version, or another request's id, is a `validation_error` and never guessed at. An error class that
is not one of those that butlers share (two of the taxonomy are Switchboard's alone) becomes `internal_error`, and the
butler's own word is kept for the audit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from butlers.contracts.envelope import holds_nul
from butlers.contracts.route import RouteEnvelope, RouteResponse, WireError
from butlers.errors import ClassifiedError, ErrorClass, ValidationError, from_wire

SHARED_CLASSES = frozenset(ErrorClass) - {ErrorClass.CLASSIFICATION_ERROR, ErrorClass.ROUTING_ERROR}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What the calls to one butler came to."""

    attempts: int = 0
    result: Mapping[str, Any] | None = None
    target_ms: int | None = None
    error: ClassifiedError | None = None
    original_class: str | None = None
    raw: Mapping[str, Any] | None = None


def read_reply(raw: Mapping[str, Any], envelope: RouteEnvelope) -> Reply:
    """What an answer brings; one that is no answer to this request is a `validation_error`, and kept as it came."""
    try:
        response = parse_response(raw, envelope.request_context.request_id)
    except ValidationError as error:
        about = ValidationError(f"{envelope.target.butler}'s answer: {error.message}", fields=error.fields)
        return Reply(error=about, raw=_storable(raw))
    reply = Reply(raw=raw, target_ms=response.timing.duration_ms)
    try:
        return replace(reply, result=result_of(response))
    except ClassifiedError as error:
        return replace(reply, error=error, original_class=_unknown_class(response.error))


def _unknown_class(error: WireError | None) -> str | None:
    return error.error_class if error and error.error_class not in SHARED_CLASSES else None


def _storable(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """As it came, or as escaped text where the database could not hold it."""
    try:
        json.dumps(raw, ensure_ascii=False, allow_nan=False).encode()
    except ValueError:
        return {"text": json.dumps(raw)}
    return {"text": json.dumps(raw)} if holds_nul(raw) else raw


def parse_response(raw: Mapping[str, Any], request_id: UUID) -> RouteResponse:
    """A route_response.v1 that answers this request."""
    response = RouteResponse.parse(raw)
    if response.request_context is not None and response.request_context.request_id != request_id:
        raise ValidationError("the response belongs to another request")
    return response


def result_of(response: RouteResponse) -> Mapping[str, Any]:
    """What a response brings, or the error it carries."""
    if response.error is not None:
        error = response.error
        own = error.error_class if error.error_class in SHARED_CLASSES else ErrorClass.INTERNAL_ERROR.value
        raise from_wire(own, error.message, retryable=error.retryable, retry_after=error.retry_after_seconds)
    return response.result or {}
