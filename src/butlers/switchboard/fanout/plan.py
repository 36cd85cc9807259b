"""How the parts of one message depend on each other, as a value.

    parallel     everything at once (the default: wait for all, go on when one fails)
    ordered      one after the other, in the order of the text or of `depends_on`
    conditional  a part starts when those it depends on have come to what `run_if` asks for

A plan of the configuration speaks of butlers, a plan that is executed speaks of segments: one butler may get two parts
of a message, and who depends on that butler depends on both. The plan is stored with the decision, so that a repeat
after a crash executes the same one even when the configuration has changed meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from butlers.butler.routing_config import PlanNodeSection, PlanSection
from butlers.contracts.route import FanoutMode
from butlers.switchboard.routing.decision import Decision, Segment

RunIf = Literal["success", "completed", "always"]
Join = Literal["wait_for_all", "first_success"]
Abort = Literal["continue", "on_required_failure", "on_any_failure"]


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
            "nodes": [_node_to_wire(node) for node in self.nodes],
        }

    @classmethod
    def from_wire(cls, stored: Mapping[str, Any], segments: Sequence[Segment]) -> FanoutPlan:
        """The plan that was stored beside the decision these segments belong to."""
        known = {segment.segment_id: segment for segment in segments}
        nodes = tuple(_node_from_wire(node, known) for node in stored["nodes"])
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


def _node_to_wire(node: FanoutNode) -> dict[str, Any]:
    return {
        "segment_id": node.segment_id,
        "depends_on": list(node.depends_on),
        "run_if": node.run_if,
        "required": node.required,
        "arbitration_group": node.arbitration_group,
        "arbitration_priority": node.arbitration_priority,
    }


def _node_from_wire(stored: Mapping[str, Any], segments: Mapping[str, Segment]) -> FanoutNode:
    return FanoutNode(
        segment=segments[stored["segment_id"]],
        depends_on=tuple(stored["depends_on"]),
        run_if=stored["run_if"],
        required=stored["required"],
        arbitration_group=stored["arbitration_group"],
        arbitration_priority=stored["arbitration_priority"],
    )
