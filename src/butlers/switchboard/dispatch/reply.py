"""What the butlers answered together: which answer wins when they disagree, what is stored, and what a person reads."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from butlers.errors import ClassifiedError, ErrorClass
from butlers.switchboard.dispatch.outcome import SegmentOutcome
from butlers.switchboard.dispatch.plan import FanoutPlan

_ONE_MATTER = "decision"  # results that name no key decide the one matter of the message
_HAPPENED = {
    ErrorClass.TIMEOUT: "took too long",
    ErrorClass.TARGET_UNAVAILABLE: "could not be reached",
    ErrorClass.OVERLOAD_REJECTED: "has too much to do",
    ErrorClass.VALIDATION_ERROR: "could not take the request",
    ErrorClass.ROUTING_ERROR: "could not be given the request",
    ErrorClass.CLASSIFICATION_ERROR: "could not be chosen",
    ErrorClass.INTERNAL_ERROR: "failed",
}
_TO_DO = {
    ErrorClass.TIMEOUT: "Send it again in a few minutes, or in smaller parts.",
    ErrorClass.TARGET_UNAVAILABLE: "Send it again later.",
    ErrorClass.OVERLOAD_REJECTED: "Send it again later.",
    ErrorClass.VALIDATION_ERROR: "Say it differently; sending it again as it is will not help.",
    ErrorClass.ROUTING_ERROR: "Say which butler is meant.",
    ErrorClass.CLASSIFICATION_ERROR: "Say it differently.",
    ErrorClass.INTERNAL_ERROR: "Sending it again may not help; the operator can see why.",
}


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
    """One matter that butlers decided differently, with no rule to choose."""

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
    return [_arbitrated(group, alike, priorities) for group, alike in groups.items() if _differ(map(_answer, alike))]


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


def _arbitrated(group: str, alternatives: Sequence[SegmentOutcome], priorities: Mapping[str, int]) -> Arbitrated:
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


def in_words(butler: str, error: ClassifiedError) -> str:
    """What happened and what can be done about it."""
    todo = _TO_DO[error.error_class]
    if error.retry_after is not None and error.retryable:
        seconds = error.retry_after
        time = f"{max(1, round(seconds))} s" if seconds < 120 else f"{round(seconds / 60)} minutes"
        todo = f"Send it again in {time}."
    return f"{butler} {_HAPPENED[error.error_class]} ({error.message}). {todo}"


def aggregate(plan: FanoutPlan, outcomes: Sequence[SegmentOutcome]) -> dict[str, Any] | None:
    """The reply; None when no butler has anything to say."""
    arbitrated, conflicts = arbitrate(plan, outcomes), unresolved(plan, outcomes)
    lost = {loser.subrequest_id for one in arbitrated for loser in one.losers}
    standing = [one for one in outcomes if one.succeeded and one.subrequest_id not in lost]
    report: dict[str, Any] = {
        "failed": [
            {
                "butler": one.segment.butler,
                "segment_id": one.segment.segment_id,
                "class": one.error.error_class.value,
                "message": in_words(one.segment.butler, one.error),
            }
            for one in outcomes
            if one.error
        ],
        "skipped": [
            {"butler": one.segment.butler, "segment_id": one.segment.segment_id, "reason": one.skipped}
            for one in outcomes
            if one.skipped
        ],
        "arbitration": [one.to_wire() for one in arbitrated],
        "conflicts": [one.to_wire() for one in conflicts],
    }
    report = {name: value for name, value in report.items() if value}
    if report:
        report["text"] = "\n".join(_sentences(standing, outcomes, arbitrated, conflicts))
    answers = {"answers": _answers(standing)} if standing else {}
    return answers | report or None


def _answers(standing: Iterable[SegmentOutcome]) -> dict[str, Any]:
    """By butler; one that got two parts answers with both."""
    by_butler: dict[str, Any] = {}
    for outcome in standing:
        by_butler.setdefault(outcome.segment.butler, []).append((outcome.result or {}).get("answer"))
    for butler, answers in by_butler.items():
        if len(answers) == 1:
            by_butler[butler] = answers[0]
        elif all(isinstance(answer, str) for answer in answers):
            by_butler[butler] = "\n".join(answers)
    return by_butler


def _sentences(
    standing: Sequence[SegmentOutcome],
    outcomes: Sequence[SegmentOutcome],
    arbitrated: Sequence[Arbitrated],
    conflicts: Sequence[Conflict],
) -> Iterator[str]:
    if standing:
        yield f"Done: {_listed(standing)}."
    yield from (in_words(one.segment.butler, one.error) for one in outcomes if one.error)
    yield from (f"{one.segment.butler} was not asked: {one.skipped}." for one in outcomes if one.skipped)
    for one in arbitrated:
        yield f"{_listed(one.losers)} said otherwise than {one.winner.segment.butler}, whose answer stands."
    for conflict in conflicts:
        yield f"{_listed(conflict.between)} do not agree about {conflict.key}; please decide yourself."


def _listed(outcomes: Iterable[SegmentOutcome]) -> str:
    return ", ".join(dict.fromkeys(one.segment.butler for one in outcomes))
