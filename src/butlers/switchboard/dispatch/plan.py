"""How the parts of one message depend on each other, and what a plan asks for next. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Literal

from butlers.contracts.route import FanoutMode
from butlers.switchboard.config import PlanNodeSection, PlanSection
from butlers.switchboard.routing.decision import Decision, Segment

RunIf = Literal["success", "completed", "always"]
Join = Literal["wait_for_all", "first_success"]
Abort = Literal["continue", "on_required_failure", "on_any_failure"]


class End(StrEnum):
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    AWAY = "away"  # failed, and the request may be put off for it


_WANTED: Mapping[str, frozenset[End | None]] = {  # None: skipped
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

    @property
    def segment_id(self) -> str:
        return self.segment.segment_id


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
                {
                    "segment_id": node.segment.segment_id,
                    "depends_on": list(node.depends_on),
                    "run_if": node.run_if,
                    "required": node.required,
                    "arbitration_group": node.arbitration_group,
                    "arbitration_priority": node.arbitration_priority,
                }
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
                depends_on=tuple(node["depends_on"]),
                run_if=node["run_if"],
                required=node["required"],
                arbitration_group=node["arbitration_group"],
                arbitration_priority=node["arbitration_priority"],
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
    wanted = next((node for node in section.node if node.butler == segment.butler), None)
    wanted = wanted or PlanNodeSection(butler=segment.butler)
    return FanoutNode(
        segment=segment,
        depends_on=tuple(other.segment_id for other in segments if other.butler in wanted.depends_on),
        run_if=wanted.run_if,
        required=wanted.required,
        arbitration_group=wanted.arbitration_group,
        arbitration_priority=wanted.arbitration_priority,
    )


def _sorted(nodes: Sequence[FanoutNode]) -> tuple[FanoutNode, ...]:
    """Dependencies first, which is possible because the configuration holds no cycles; else the order of the text."""
    left, placed, order = list(nodes), set[str](), list[FanoutNode]()
    while left:
        following = next(node for node in left if placed.issuperset(node.depends_on))
        left.remove(following)
        placed.add(following.segment_id)
        order.append(following)
    return tuple(order)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    start: tuple[FanoutNode, ...]
    skipped: Mapping[str, str]  # segment id -> why
    over: bool  # nothing runs and nothing can be started


def advance(plan: FanoutPlan, ended: Mapping[str, End], running: Collection[str] = ()) -> Progress:
    """The next step."""
    if plan.join == "first_success":  # alternatives: the next one does not wait for a target that is away
        ended = {name: End.FAILED if end is End.AWAY else end for name, end in ended.items()}
    stopped = _stopped(plan, ended)
    skipped: dict[str, str] = {}
    start: list[FanoutNode] = []
    for position, node in enumerate(plan.nodes):  # dependencies stand first, so what became of them is known
        if node.segment_id in ended or node.segment_id in running:
            continue
        if stopped is not None:
            skipped[node.segment_id] = stopped
            continue
        before = _before(plan, position)
        if any(ended.get(one.segment_id, End.AWAY) is End.AWAY and one.segment_id not in skipped for one in before):
            continue
        if plan.mode == "conditional" and (unmet := _unmet(node, before, ended)) is not None:
            skipped[node.segment_id] = unmet
        else:
            start.append(node)
    return Progress(start=tuple(start), skipped=skipped, over=not start and not running)


def _before(plan: FanoutPlan, position: int) -> tuple[FanoutNode, ...]:
    """What has to be through first."""
    if plan.mode == "parallel":
        return ()
    if plan.mode == "ordered":
        return plan.nodes[:position]
    return tuple(node for node in plan.nodes if node.segment_id in plan.nodes[position].depends_on)


def _unmet(node: FanoutNode, before: Iterable[FanoutNode], ended: Mapping[str, End]) -> str | None:
    wanted = _WANTED[node.run_if]
    other = next((other for other in before if ended.get(other.segment_id) not in wanted), None)
    if other is None:
        return None
    became = "did not succeed" if other.segment_id in ended else "was skipped"
    return f"it depends on {other.segment.butler}, which {became}"


def _stopped(plan: FanoutPlan, ended: Mapping[str, End]) -> str | None:
    """Why nothing more is started, if that is so."""
    if plan.join == "first_success":  # a failure is what the next alternative is there for
        first = next((node for node in plan.nodes if ended.get(node.segment_id) is End.SUCCEEDED), None)
        return f"{first.segment.butler} has dealt with it" if first else None
    if plan.abort == "continue":
        return None
    fatal = (node for node in plan.nodes if node.required or plan.abort == "on_any_failure")
    failed = next((node for node in fatal if ended.get(node.segment_id) is End.FAILED), None)
    return f"stopped because {failed.segment.butler} failed" if failed else None
