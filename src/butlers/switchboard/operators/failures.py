"""Which parts of an ended request belong into the dead letters, and whether running them again can help.

Every failure of an accepted request is set aside, so that nothing is lost silently. What was refused because of its
content would be refused again: it is kept, and says why it cannot be replayed. A request that an operator stopped has
not failed: it is on record in the audit, and `retry` takes it up again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid5

from butlers.errors import ClassifiedError, ErrorClass, Quarantined

Outcome = Mapping[str, Any]  # one entry of `dispatch_outcomes`

WHOLE = ""  # the request itself, when it failed before anybody had a part of it
ROUND = "~"  # `s1~2`: the second time that an operator had `s1` worked on anew
REFUSED_AGAIN = "the content was refused, and would be refused again; correct it and hand it in anew"
_UNDECIDED = frozenset({ErrorClass.CLASSIFICATION_ERROR.value, ErrorClass.ROUTING_ERROR.value})
_SPENT = frozenset({ErrorClass.TIMEOUT.value, ErrorClass.OVERLOAD_REJECTED.value})


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One part that failed for good."""

    segment_id: str  # as it was first called
    subrequest_id: UUID | None
    target_butler: str | None
    category: str  # retries_exhausted | non_retryable | budget_exhausted | classification | quarantined
    error_class: str
    reason: str
    attempts: int | None  # None: as often as the request was claimed
    ineligible_reason: str | None  # None: a replay may help


def failures_of(
    request_id: UUID,
    *,
    outcomes: Iterable[Outcome],
    error: ClassifiedError | None,
    category: str | None = None,
) -> list[Failure]:
    """The parts that failed; the request as a whole when it failed and none of its parts did."""
    parts = [_part(request_id, outcome, category) for outcome in outcomes if failed(outcome)]
    if parts or error is None:
        return parts
    return [_whole(error, category)]


def failed(outcome: Outcome) -> bool:
    return bool(outcome.get("error")) and not skipped(outcome)


def skipped(outcome: Outcome) -> bool:
    return bool(outcome.get("skipped")) or outcome.get("status") == "skipped"


def succeeded(outcome: Outcome) -> bool:
    return not outcome.get("error") and not skipped(outcome)


def first_name(segment_id: str) -> str:
    """`s1` of `s1~2`."""
    return segment_id.partition(ROUND)[0]


def _part(request_id: UUID, outcome: Outcome, category: str | None) -> Failure:
    error, segment_id = outcome["error"], str(outcome["segment_id"])
    subrequest = outcome.get("subrequest_id")
    return Failure(
        segment_id=first_name(segment_id),
        subrequest_id=UUID(str(subrequest)) if subrequest else uuid5(request_id, segment_id),
        target_butler=outcome.get("target_butler"),
        category=category or _category(error, answered=outcome.get("raw_response") is not None),
        error_class=error["class"],
        reason=error["message"],
        attempts=outcome.get("attempts") or 0,
        ineligible_reason=_obstacle(error["class"]),
    )


def _whole(error: ClassifiedError, category: str | None) -> Failure:
    return Failure(
        segment_id=WHOLE,
        subrequest_id=None,
        target_butler=None,
        category=category or _category(error.describe(), answered=False),
        error_class=error.error_class.value,
        reason=error.message,
        attempts=None,
        ineligible_reason=_obstacle(error.error_class.value),
    )


def _category(error: Mapping[str, Any], *, answered: bool) -> str:
    if error["message"].startswith(Quarantined.OPENING):
        return "quarantined"
    if error["class"] in _UNDECIDED:
        return "classification"
    if error.get("retryable"):
        return "retries_exhausted"
    # Nobody answered and trying again is ruled out: the request has used up what it may take.
    return "budget_exhausted" if error["class"] in _SPENT and not answered else "non_retryable"


def _obstacle(error_class: str) -> str | None:
    return REFUSED_AGAIN if error_class == ErrorClass.VALIDATION_ERROR else None
