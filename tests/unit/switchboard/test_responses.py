"""What Switchboard makes of a butler's answer."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from butlers.errors import InternalError, OverloadRejected, ValidationError
from butlers.switchboard.dispatch.plan import SegmentOutcome, parse_response, read_response, subrequest_id
from tests.unit.switchboard.fanout.parts import segment

REQUEST = UUID("01a1e150-b5f2-768e-8f34-66c68d12a2b7")
OTHER = UUID("01a1e150-b5f2-768e-8f34-66c68d12a2b8")


def answer(**fields: Any) -> dict[str, Any]:
    return {
        "schema_version": "route_response.v1",
        "request_context": {"request_id": str(REQUEST)},
        "status": "ok",
        "result": {"answer": "yes"},
        "timing": {"duration_ms": 1},
    } | fields


def failed(error_class: str) -> dict[str, Any]:
    error = {"class": error_class, "message": "no", "retryable": True, "retry_after_seconds": 2.5}
    return answer(status="error", error=error)


def read(raw: dict[str, Any]) -> SegmentOutcome:
    part = segment(1, "finance")
    return read_response(raw, SegmentOutcome(segment=part, subrequest_id=subrequest_id(REQUEST, part)), REQUEST)


def test_a_result_is_taken() -> None:
    assert read(answer()).result == {"answer": "yes"}


def test_an_answer_to_another_request_is_refused_whatever_it_brings() -> None:
    for document in (answer(), failed("timeout")):
        with pytest.raises(ValidationError, match="another request"):
            parse_response(document, OTHER)


@pytest.mark.parametrize("version", [None, "route_response.v2", "route_response.v0", "surprise"])
def test_an_unknown_or_missing_version_is_a_validation_error(version: str | None) -> None:
    with pytest.raises(ValidationError) as refused:
        parse_response(answer(schema_version=version), REQUEST)
    assert [field.field for field in refused.value.fields] == ["schema_version"]


def test_an_error_keeps_its_class_and_hints() -> None:
    error = read(failed("overload_rejected")).error
    assert isinstance(error, OverloadRejected)
    assert (error.retryable, error.retry_after) == (True, 2.5)


def test_a_class_nobody_knows_is_an_internal_error() -> None:
    outcome = read(failed("coffee_spilled"))
    assert isinstance(outcome.error, InternalError)
    assert outcome.original_class == "coffee_spilled"
