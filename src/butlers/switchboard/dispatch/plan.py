"""The parts of one message: how they depend on each other, what a plan asks for next, and how each part ended. Pure."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Literal, Self
from uuid import UUID, uuid5

from butlers.contracts.envelope import holds_nul
from butlers.contracts.route import FanoutMode, RouteResponse, WireError
from butlers.errors import ClassifiedError, ErrorClass, ValidationError, from_wire
from butlers.switchboard.config import PlanNodeSection, PlanSection
from butlers.switchboard.routing.decision import Decision, Segment

RunIf = Literal["success", "completed", "always"]
Join = Literal["wait_for_all", "first_success"]
Abort = Literal["continue", "on_required_failure", "on_any_failure"]


class End(StrEnum):
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    AWAY = "away"  # failed, and a repeat may help: the request may be put off for it


_ACCEPTED: Mapping[str, frozenset[End | None]] = {  # None: skipped
    "success": frozenset({End.SUCCEEDED}),
    "completed": frozenset({End.SUCCEEDED, End.FAILED}),
    "always": frozenset({End.SUCCEEDED, End.FAILED, None}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FanoutNode:
    segment: Segment
    depends_on: tuple[str, ...] = ()  # segment ids
    run_if: RunIf = "success"  # conditional plans only
    required: bool = True  # its failure fails the request
    arbitration_group: str | None = None
    arbitration_priority: int = 0


_STORED = ("depends_on", "run_if", "required", "arbitration_group", "arbitration_priority")


@dataclass(frozen=True, slots=True, kw_only=True)
class FanoutPlan:
    mode: FanoutMode = "parallel"
    join: Join = "wait_for_all"
    abort: Abort = "continue"
    nodes: tuple[FanoutNode, ...]  # dependencies stand before what depends on them

    def to_wire(self) -> dict[str, Any]:
        return {
            "mode": self.mode,
            "join": self.join,
            "abort": self.abort,
            "nodes": [
                {"segment_id": node.segment.segment_id} | {name: getattr(node, name) for name in _STORED}
                for node in self.nodes
            ],
        }

    @classmethod
    def from_wire(cls, stored: Mapping[str, Any], segments: Sequence[Segment]) -> FanoutPlan:
        """The plan that was stored beside the decision these segments belong to."""
        known = {segment.segment_id: segment for segment in segments}
        nodes = tuple(
            FanoutNode(
                segment=known[node["segment_id"]],
                **{name: node[name] for name in _STORED} | {"depends_on": tuple(node["depends_on"])},
            )
            for node in stored["nodes"]
        )
        return cls(mode=stored["mode"], join=stored["join"], abort=stored["abort"], nodes=nodes)


def make_plan(decision: Decision, sections: Sequence[PlanSection], *, strict: bool) -> FanoutPlan:
    """The configured plan for exactly these butlers, else all at once; strict: a required failure stops the rest."""
    targets = {segment.butler for segment in decision.segments}
    section = next((one for one in sections if set(one.butlers) == targets), None)
    if section is None:
        plan = FanoutPlan(nodes=tuple(FanoutNode(segment=segment) for segment in decision.segments))
    else:
        nodes = tuple(_node(segment, section, decision.segments) for segment in decision.segments)
        plan = FanoutPlan(mode=section.mode, join=section.join, abort=section.abort, nodes=_sorted(nodes))
    if strict and plan.abort == "continue" and plan.join == "wait_for_all":
        return replace(plan, abort="on_required_failure")
    return plan


def _node(segment: Segment, section: PlanSection, segments: Iterable[Segment]) -> FanoutNode:
    configured = next((node for node in section.node if node.butler == segment.butler), None)
    configured = configured or PlanNodeSection(butler=segment.butler)
    depends_on = tuple(other.segment_id for other in segments if other.butler in configured.depends_on)
    return FanoutNode(segment=segment, **configured.model_dump(exclude={"butler"}) | {"depends_on": depends_on})


def _sorted(nodes: Sequence[FanoutNode]) -> tuple[FanoutNode, ...]:
    """Dependencies first, which is possible because the configuration holds no cycles; else the order of the text."""
    left, placed, order = list(nodes), set[str](), list[FanoutNode]()
    while left:
        following = next(node for node in left if placed.issuperset(node.depends_on))
        left.remove(following)
        placed.add(following.segment.segment_id)
        order.append(following)
    return tuple(order)


def advance(
    plan: FanoutPlan, ended: Mapping[str, End | None], running: Collection[str] = (), *, may_put_off: bool = True
) -> tuple[list[FanoutNode], dict[str, str]]:
    """What is to be started now, and what is left out for good: segment ids, and why."""
    # Nothing waits for a target that is away when the request is not put off, or when another one may step in.
    if not may_put_off or plan.join == "first_success":
        ended = {name: End.FAILED if end is End.AWAY else end for name, end in ended.items()}
    stopped = _stopped(plan, ended)
    skipped: dict[str, str] = {}
    start: list[FanoutNode] = []
    butlers: dict[str, str] = {}  # by segment id, of the nodes so far
    for node in plan.nodes:  # dependencies stand first, so what became of them is known
        name, before = node.segment.segment_id, node.depends_on  # what has to be through first
        if plan.mode == "ordered":
            before = tuple(butlers)
        butlers[name] = node.segment.butler
        if name in ended or name in running:
            continue
        if stopped is not None:
            skipped[name] = stopped
            continue
        if any(ended.get(other, End.AWAY) is End.AWAY and other not in skipped for other in before):
            continue
        unmet = next((other for other in before if ended.get(other) not in _ACCEPTED[node.run_if]), None)
        if plan.mode == "conditional" and unmet is not None:
            became = "did not succeed" if unmet in ended else "was skipped"
            skipped[name] = f"it depends on {butlers[unmet]}, which {became}"
        else:
            start.append(node)
    return start, skipped


def _stopped(plan: FanoutPlan, ended: Mapping[str, End | None]) -> str | None:
    """Why nothing more is started, if that is so."""
    if plan.join == "first_success":  # a failure is what the next alternative is there for
        first = next((node for node in plan.nodes if ended.get(node.segment.segment_id) is End.SUCCEEDED), None)
        return f"{first.segment.butler} has dealt with it" if first else None
    if plan.abort == "continue":
        return None
    fatal = (node for node in plan.nodes if node.required or plan.abort == "on_any_failure")
    failed = next((node for node in fatal if ended.get(node.segment.segment_id) is End.FAILED), None)
    return f"stopped because {failed.segment.butler} failed" if failed else None


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
    def end(self) -> End | None:
        """None: it was never dispatched."""
        if self.error is None:
            return End.SUCCEEDED if self.skipped is None else None
        # No answer came, so a repeat is new to the butler or known to its record; or it said when to ask again.
        may_repeat = self.raw_response is None or self.error.retry_after is not None
        return End.AWAY if self.error.retryable and may_repeat else End.FAILED

    def to_wire(self) -> dict[str, Any]:
        return {
            "segment_id": self.segment.segment_id,
            "subrequest_id": str(self.subrequest_id),
            "target_butler": self.segment.butler,
            "fanout_mode": self.fanout_mode,
            "success": self.end is End.SUCCEEDED,
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
    if response.error is None:
        return replace(outcome, result=response.result or {})
    error_class = response.error.error_class
    original_class = None if error_class in SHARED_CLASSES else error_class
    return replace(outcome, error=own_error(response.error), original_class=original_class)


def parse_response(raw: Mapping[str, Any], request_id: UUID) -> RouteResponse:
    """A route_response.v1 that answers this request."""
    response = RouteResponse.parse(raw)
    if response.request_context is not None and response.request_context.request_id != request_id:
        raise ValidationError("the response belongs to another request")
    return response


def own_error(error: WireError) -> ClassifiedError:
    """A butler's error as one of ours; a class that is not for butlers to name is an internal error."""
    own = error.error_class if error.error_class in SHARED_CLASSES else ErrorClass.INTERNAL_ERROR.value
    return from_wire(own, error.message, retryable=error.retryable, retry_after=error.retry_after_seconds)
