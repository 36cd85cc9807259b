"""How one segment ended, as it is stored and as the next worker reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self
from uuid import UUID, uuid5

from butlers.contracts.route import FanoutMode
from butlers.errors import ClassifiedError, from_wire
from butlers.switchboard.routing.decision import Segment


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
        """Nobody answered, so nobody has seen it or a record answers the repeat; or it was said when to ask again."""
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
        return cls(
            segment=segment,
            subrequest_id=subrequest_id(request_id, segment),
            fanout_mode=stored.get("fanout_mode", "parallel"),
            duration_ms=stored.get("duration_ms", 0),
            attempts=stored.get("attempts", 0),
            result=stored.get("result"),
            target_ms=(stored.get("timing") or {}).get("duration_ms"),
            error=_stored_error(stored.get("error")),
            original_class=stored.get("original_class"),
            raw_response=stored.get("raw_response"),
            skipped=stored.get("skipped"),
        )


def skipped(request_id: UUID, segment: Segment, mode: FanoutMode, reason: str) -> SegmentOutcome:
    """The end of a segment that the plan left out."""
    return SegmentOutcome(
        segment=segment, subrequest_id=subrequest_id(request_id, segment), fanout_mode=mode, skipped=reason
    )


def subrequest_id(request_id: UUID, segment: Segment) -> UUID:
    """The same for every repeat."""
    return uuid5(request_id, segment.segment_id)


def _stored_error(stored: Mapping[str, Any] | None) -> ClassifiedError | None:
    if stored is None:
        return None
    return from_wire(
        stored["class"],
        stored["message"],
        retryable=stored["retryable"],
        retry_after=stored.get("retry_after_seconds"),
    )
