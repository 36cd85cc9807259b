"""What a plan asks for next, given what has ended and what is running.

    waiting --> running --> succeeded | failed | away
       |
       +------> skipped     a dependency did not come to what was asked, the plan was aborted, or another one succeeded

`away` is a failure that may be put right by waiting: nobody answered. Where the request may still be put off, whatever
comes after such a node waits with it (`ordered`, `conditional`), so that the order holds when it is repeated. With
`first_success` nothing waits for anybody: the next one is there to step in.

Skipped is never stored: it follows from what ended, and is worked out anew each time. Nodes that run when the plan is
aborted, or when another one has succeeded, are let finish, because what was sent cannot be called back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from butlers.switchboard.fanout.plan import FanoutNode, FanoutPlan


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
class Progress:
    start: tuple[FanoutNode, ...]
    skipped: Mapping[str, str]  # segment id -> why
    over: bool  # nothing runs and nothing can be started


def advance(plan: FanoutPlan, ended: Mapping[str, End], running: Collection[str] = ()) -> Progress:
    """The next step."""
    ended = _nobody_waits(ended) if plan.join == "first_success" else ended
    stopped = _stopped(plan, ended)
    skipped: dict[str, str] = {}
    start: list[FanoutNode] = []
    for position, node in enumerate(plan.nodes):  # dependencies stand first, so what became of them is known
        if node.segment_id in ended or node.segment_id in running:
            continue
        before = _before(plan, position)
        if stopped is not None:
            skipped[node.segment_id] = stopped
        elif not all(_settled(other, ended, skipped) for other in before):
            continue
        elif plan.mode == "conditional" and (unmet := _unmet(node, before, ended)) is not None:
            skipped[node.segment_id] = unmet
        else:
            start.append(node)
    return Progress(start=tuple(start), skipped=skipped, over=not start and not running)


def _before(plan: FanoutPlan, position: int) -> tuple[FanoutNode, ...]:
    """Who has to be through first."""
    if plan.mode == "parallel":
        return ()
    if plan.mode == "ordered":
        return plan.nodes[:position]
    return tuple(node for node in plan.nodes if node.segment_id in plan.nodes[position].depends_on)


def _settled(node: FanoutNode, ended: Mapping[str, End], skipped: Collection[str]) -> bool:
    return node.segment_id in skipped or ended.get(node.segment_id, End.AWAY) is not End.AWAY


def _unmet(node: FanoutNode, before: Iterable[FanoutNode], ended: Mapping[str, End]) -> str | None:
    wanted = _WANTED[node.run_if]
    other = next((other for other in before if ended.get(other.segment_id) not in wanted), None)
    if other is None:
        return None
    became = "did not succeed" if other.segment_id in ended else "was skipped"
    return f"it depends on {other.segment.butler}, which {became}"


def _stopped(plan: FanoutPlan, ended: Mapping[str, End]) -> str | None:
    """Why nothing more is started, if that is so."""
    if plan.join == "first_success":  # alternatives: a failure is what the next one is there for
        return _another_succeeded(plan, ended)
    if plan.abort == "continue":
        return None
    fatal = (node for node in plan.nodes if node.required or plan.abort == "on_any_failure")
    failed = next((node for node in fatal if ended.get(node.segment_id) is End.FAILED), None)
    return f"stopped because {failed.segment.butler} failed" if failed else None


def _another_succeeded(plan: FanoutPlan, ended: Mapping[str, End]) -> str | None:
    first = next((node for node in plan.nodes if ended.get(node.segment_id) is End.SUCCEEDED), None)
    return f"{first.segment.butler} has dealt with it" if first else None


def _nobody_waits(ended: Mapping[str, End]) -> dict[str, End]:
    return {name: End.FAILED if end is End.AWAY else end for name, end in ended.items()}
