"""Segments, plans and outcomes for the tests of this folder."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from butlers.errors import ClassifiedError, InternalError, TargetUnavailable
from butlers.switchboard.dispatch.plan import FanoutNode, FanoutPlan, SegmentOutcome, subrequest_id
from butlers.switchboard.routing.decision import Decision, Segment

REQUEST = UUID("01a1e150-b5f2-768e-8f34-66c68d12a2b7")


def segment(number: int, butler: str) -> Segment:
    return Segment(segment_id=f"s{number}", butler=butler, start=0, end=1, confidence=1.0, rationale="a test")


def decision(*butlers: str) -> Decision:
    segments = tuple(segment(number, butler) for number, butler in enumerate(butlers, 1))
    return Decision(router="local", segments=segments, why="a test")


def node(number: int, butler: str, **fields: Any) -> FanoutNode:
    return FanoutNode(segment=segment(number, butler), **fields)


def plan(*nodes: FanoutNode, **fields: Any) -> FanoutPlan:
    return FanoutPlan(nodes=nodes, **fields)


def ok(number: int, butler: str, answer: Any = "yes", **result: Any) -> SegmentOutcome:
    one = segment(number, butler)
    return SegmentOutcome(
        segment=one, subrequest_id=subrequest_id(REQUEST, one), attempts=1, result={"answer": answer, **result}
    )


def failed(number: int, butler: str, error: ClassifiedError | None = None, **fields: Any) -> SegmentOutcome:
    one = segment(number, butler)
    error = error or InternalError("it broke")
    return SegmentOutcome(segment=one, subrequest_id=subrequest_id(REQUEST, one), attempts=1, error=error, **fields)


def away(number: int, butler: str) -> SegmentOutcome:
    return failed(number, butler, TargetUnavailable("nobody is there"))
