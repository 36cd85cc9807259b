"""How one segment ended: read from a butler's route_response.v1, stored, and read again by the next worker."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self
from uuid import UUID, uuid5

from butlers.contracts.envelope import holds_nul
from butlers.contracts.route import FanoutMode, RouteResponse
from butlers.errors import ClassifiedError, ErrorClass, ValidationError, from_wire
from butlers.switchboard.routing.decision import Segment

# The classes that a butler may name; the others are Switchboard's own.
SHARED_CLASSES = frozenset(ErrorClass) - {ErrorClass.CLASSIFICATION_ERROR, ErrorClass.ROUTING_ERROR}


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentOutcome:
    """How one segment ended."""

    segment: Segment
    subrequest_id: UUID
    fanout_mode: FanoutMode = "parallel"
    duration_ms: int = 0  # as seen from here, repeats and waiting included
    attempts: int = 0
    result: Mapping[str, Any] | None = None
    target_ms: int | None = None  # what the butler says it took
    error: ClassifiedError | None = None
    original_class: str | None = None  # the butler's word for its error where we have none; for the audit
    raw_response: Mapping[str, Any] | None = None  # as the butler sent it, for the audit
    skipped: str | None = None  # why it was never dispatched

    @property
    def succeeded(self) -> bool:
        return self.error is None and self.skipped is None

    @property
    def worth_repeating(self) -> bool:
        """No answer came, so a repeat is new to the butler or known to its record; or it said when to ask again."""
        if self.error is None or not self.error.retryable:
            return False
        return self.raw_response is None or self.error.retry_after is not None

    def to_wire(self) -> dict[str, Any]:
        return {
            "segment_id": self.segment.segment_id,
            "subrequest_id": str(self.subrequest_id),
            "target_butler": self.segment.butler,
            "fanout_mode": self.fanout_mode,
            "success": self.succeeded,
            "skipped": self.skipped,
            "duration_ms": self.duration_ms,
            "attempts": self.attempts,
            "result": self.result,
            "timing": None if self.target_ms is None else {"duration_ms": self.target_ms},
            "error": self.error.describe() if self.error else None,
            "original_class": self.original_class,
            "raw_response": self.raw_response if self.error else None,
        }

    @classmethod
    def from_wire(cls, stored: Mapping[str, Any], segments: Sequence[Segment], request_id: UUID) -> Self:
        """What an earlier worker has stored of one of these segments; an earlier version of us stored less of it."""
        segment = next(one for one in segments if one.segment_id == stored["segment_id"])
        error = stored.get("error")
        return cls(
            segment=segment,
            subrequest_id=subrequest_id(request_id, segment),
            fanout_mode=stored.get("fanout_mode", "parallel"),
            duration_ms=stored.get("duration_ms", 0),
            attempts=stored.get("attempts", 0),
            result=stored.get("result"),
            target_ms=(stored.get("timing") or {}).get("duration_ms"),
            error=None if error is None else _stored_error(error),
            original_class=stored.get("original_class"),
            raw_response=stored.get("raw_response"),
            skipped=stored.get("skipped"),
        )


def _stored_error(stored: Mapping[str, Any]) -> ClassifiedError:
    retry_after = stored.get("retry_after_seconds")
    return from_wire(stored["class"], stored["message"], retryable=stored["retryable"], retry_after=retry_after)


def skipped(request_id: UUID, segment: Segment, mode: FanoutMode, reason: str) -> SegmentOutcome:
    """The end of a segment that the plan left out."""
    return SegmentOutcome(
        segment=segment, subrequest_id=subrequest_id(request_id, segment), fanout_mode=mode, skipped=reason
    )


def subrequest_id(request_id: UUID, segment: Segment) -> UUID:
    """The same for every repeat."""
    return uuid5(request_id, segment.segment_id)


def read_response(raw: Mapping[str, Any], outcome: SegmentOutcome, request_id: UUID) -> SegmentOutcome:
    """The outcome with what an answer brings; one that is no answer to this request is a `validation_error`, and kept
    as it came, or as escaped text where the database could not hold it.
    """
    try:
        response = parse_response(raw, request_id)
    except ValidationError as error:
        about = ValidationError(f"{outcome.segment.butler}'s answer: {error.message}", fields=error.fields)
        try:
            json.dumps(raw, ensure_ascii=False, allow_nan=False).encode()
            storable = not holds_nul(raw)
        except ValueError:
            storable = False
        return replace(outcome, error=about, raw_response=raw if storable else {"text": json.dumps(raw)})
    outcome = replace(outcome, raw_response=raw, target_ms=response.timing.duration_ms)
    try:
        return replace(outcome, result=result_of(response))
    except ClassifiedError as error:
        told = response.error.error_class if response.error else None
        return replace(outcome, error=error, original_class=None if told in SHARED_CLASSES else told)


def parse_response(raw: Mapping[str, Any], request_id: UUID) -> RouteResponse:
    """A route_response.v1 that answers this request."""
    response = RouteResponse.parse(raw)
    if response.request_context is not None and response.request_context.request_id != request_id:
        raise ValidationError("the response belongs to another request")
    return response


def result_of(response: RouteResponse) -> Mapping[str, Any]:
    """What a response brings, or the error it carries."""
    if (error := response.error) is not None:
        own = error.error_class if error.error_class in SHARED_CLASSES else ErrorClass.INTERNAL_ERROR.value
        raise from_wire(own, error.message, retryable=error.retryable, retry_after=error.retry_after_seconds)
    return response.result or {}
