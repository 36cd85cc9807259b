"""What to believe when butlers disagree.

Results of one `arbitration_group` are alternatives: when they differ, one stands, chosen by

    highest arbitration_priority  >  first butler name  >  first subrequest id

which always ends with one winner, because no two nodes share a subrequest id. Results outside every group that decide
the same matter differently (`result.key`, `result.decision`) have nobody to choose between them: both are shown, and
the disagreement is disclosed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from butlers.switchboard.fanout.outcome import SegmentOutcome
from butlers.switchboard.fanout.plan import FanoutPlan

_ONE_MATTER = "decision"  # results that name no key decide the one matter of the message


@dataclass(frozen=True, slots=True, kw_only=True)
class Arbitrated:
    """One group that disagreed, and whose result stands."""

    group: str
    winner: SegmentOutcome
    losers: tuple[SegmentOutcome, ...]
    by: str  # priority | butler | subrequest_id: what made the difference

    def to_wire(self) -> dict[str, Any]:
        return {
            "group": self.group,
            "winner": _named(self.winner),
            "losers": [_named(loser) for loser in self.losers],
            "by": self.by,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """One matter that butlers decided differently, with nobody to choose."""

    key: str
    between: tuple[SegmentOutcome, ...]

    def to_wire(self) -> dict[str, Any]:
        decided = [_named(one) | {"decision": (one.result or {})["decision"]} for one in self.between]
        return {"key": self.key, "between": decided}


def arbitrate(plan: FanoutPlan, outcomes: Iterable[SegmentOutcome]) -> list[Arbitrated]:
    """Every group whose results differ, in the order of the plan."""
    nodes = {node.segment_id: node for node in plan.nodes}
    groups: dict[str, list[SegmentOutcome]] = defaultdict(list)
    for outcome in outcomes:
        group = nodes[outcome.segment.segment_id].arbitration_group
        if group is not None and outcome.succeeded:
            groups[group].append(outcome)
    priorities = {name: node.arbitration_priority for name, node in nodes.items()}
    return [_judged(group, alike, priorities) for group, alike in groups.items() if _differ(map(_answer, alike))]


def unresolved(plan: FanoutPlan, outcomes: Iterable[SegmentOutcome]) -> list[Conflict]:
    """Matters outside every group that were decided differently."""
    ungrouped = {node.segment_id for node in plan.nodes if node.arbitration_group is None}
    matters: dict[str, list[SegmentOutcome]] = defaultdict(list)
    for outcome in outcomes:
        if outcome.succeeded and outcome.segment.segment_id in ungrouped and "decision" in (outcome.result or {}):
            matters[str((outcome.result or {}).get("key", _ONE_MATTER))].append(outcome)
    return [
        Conflict(key=key, between=tuple(sorted(deciders, key=_name)))
        for key, deciders in sorted(matters.items())
        if _differ((one.result or {})["decision"] for one in deciders)
    ]


def _judged(group: str, alternatives: Sequence[SegmentOutcome], priorities: Mapping[str, int]) -> Arbitrated:
    ranked = sorted(alternatives, key=lambda one: (-priorities[one.segment.segment_id], *_name(one)))
    first, second = ranked[0], ranked[1]
    if priorities[first.segment.segment_id] != priorities[second.segment.segment_id]:
        by = "priority"
    else:
        by = "butler" if first.segment.butler != second.segment.butler else "subrequest_id"
    return Arbitrated(group=group, winner=first, losers=tuple(ranked[1:]), by=by)


def _name(outcome: SegmentOutcome) -> tuple[str, str]:
    return outcome.segment.butler, str(outcome.subrequest_id)


def _answer(outcome: SegmentOutcome) -> Any:
    """What is compared: what was decided, else what was said."""
    result = outcome.result or {}
    return result.get("decision", result.get("answer"))


def _differ(values: Iterable[Any]) -> bool:
    first, *others = values
    return any(other != first for other in others)


def _named(outcome: SegmentOutcome) -> dict[str, Any]:
    return {
        "butler": outcome.segment.butler,
        "segment_id": outcome.segment.segment_id,
        "subrequest_id": str(outcome.subrequest_id),
    }
