"""Which failures are set aside, under which heading, and whether a replay can help."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid5

import pytest

from butlers.errors import (
    ClassificationError,
    ClassifiedError,
    InternalError,
    OverloadRejected,
    RoutingError,
    TargetUnavailable,
    TimeoutExceeded,
    ValidationError,
)
from butlers.switchboard.operators.dead_letters import failures_of, first_name

REQUEST = UUID("01890000-0000-7000-8000-000000000001")
ANSWERED = {"status": "error"}


def outcome(error: ClassifiedError | None, **more: Any) -> dict[str, Any]:
    described = error.describe() if error else None
    return {"segment_id": "s1", "target_butler": "finance", "attempts": 3, "error": described} | more


def test_what_went_well_or_was_skipped_leaves_no_letter() -> None:
    outcomes = [outcome(None), outcome(None, skipped="s1 failed"), outcome(InternalError("x"), skipped="aborted")]
    assert failures_of(REQUEST, outcomes=outcomes, error=None) == []


def test_each_part_that_failed_is_one_failure() -> None:
    outcomes = [
        outcome(TargetUnavailable("away")),
        outcome(None, segment_id="s2"),
        outcome(InternalError("broken"), segment_id="s3~2", raw_response=ANSWERED),
    ]
    first, third = failures_of(REQUEST, outcomes=outcomes, error=TargetUnavailable("away"))
    assert (first.segment_id, first.target_butler, first.attempts) == ("s1", "finance", 3)
    assert first.subrequest_id == uuid5(REQUEST, "s1")
    assert (third.segment_id, third.subrequest_id) == ("s3", uuid5(REQUEST, "s3~2"))


def test_a_request_that_failed_before_anybody_had_it_is_one_failure() -> None:
    [whole] = failures_of(REQUEST, outcomes=[], error=RoutingError("nobody"))
    assert (whole.segment_id, whole.subrequest_id, whole.attempts) == ("", None, None)


@pytest.mark.parametrize(
    ("error", "answered", "category"),
    [
        (TargetUnavailable("away"), None, "retries_exhausted"),
        (TimeoutExceeded("slow"), None, "retries_exhausted"),
        (InternalError("broken"), ANSWERED, "non_retryable"),
        (ValidationError("wrong"), ANSWERED, "non_retryable"),
        (RoutingError("nobody"), None, "classification"),
        (ClassificationError("unclear"), None, "classification"),
        (TimeoutExceeded("time is up", retryable=False), None, "budget_exhausted"),
        (OverloadRejected("calls are used up", retryable=False), None, "budget_exhausted"),
        (OverloadRejected("never again", retryable=False), ANSWERED, "non_retryable"),
    ],
)
def test_the_heading_says_why_it_is_over(error: ClassifiedError, answered: Any, category: str) -> None:
    [part] = failures_of(REQUEST, outcomes=[outcome(error, raw_response=answered)], error=error)
    assert part.category == category


def test_whoever_knows_better_names_the_heading() -> None:
    [whole] = failures_of(REQUEST, outcomes=[], error=InternalError("x"), category="budget_exhausted")
    assert whole.category == "budget_exhausted"


def test_only_what_was_refused_for_its_content_cannot_be_replayed() -> None:
    for error in (TargetUnavailable("x"), InternalError("x"), RoutingError("x")):
        assert failures_of(REQUEST, outcomes=[], error=error)[0].ineligible_reason is None
    [refused] = failures_of(REQUEST, outcomes=[outcome(ValidationError("no text"))], error=None)
    assert "would be refused again" in (refused.ineligible_reason or "")


def test_the_first_name_of_a_part() -> None:
    assert [first_name(name) for name in ("s1", "s1~1", "s12~10")] == ["s1", "s1", "s12"]
