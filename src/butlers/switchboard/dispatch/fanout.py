"""A plan, executed: start what may start, wait for the next end, look again; then what the butlers answered together.

`done` holds what ended before, under a worker that died or before the request was put off; it is not dispatched again.
Cancelling `run` cancels every dispatch that is under way.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from butlers.contracts.route import FanoutMode
from butlers.errors import ClassifiedError, ErrorClass
from butlers.switchboard.dispatch.dispatcher import Dispatcher, RequestBudget
from butlers.switchboard.dispatch.plan import End, FanoutPlan, SegmentOutcome, advance, subrequest_id
from butlers.switchboard.requests.inbox import ClaimedMessage
from butlers.switchboard.routing.decision import Router, Segment

OnEnd = Callable[[SegmentOutcome], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class FanoutResult:
    plan: FanoutPlan
    outcomes: tuple[SegmentOutcome, ...]  # in the order of the plan, the skipped ones among them
    ended_now: tuple[SegmentOutcome, ...]  # dispatched in this run

    @property
    def ended(self) -> tuple[SegmentOutcome, ...]:
        """Dispatched, now or before."""
        return tuple(outcome for outcome in self.outcomes if outcome.end is not None)

    @property
    def late(self) -> tuple[SegmentOutcome, ...]:
        """What may be put right by waiting; nothing once another part has dealt with an `either or`."""
        if self.plan.join == "first_success" and any(outcome.end is End.SUCCEEDED for outcome in self.outcomes):
            return ()
        return tuple(outcome for outcome in self.outcomes if outcome.end is End.AWAY)

    @property
    def settled(self) -> tuple[SegmentOutcome, ...]:
        """What needs no repeat when the request is put off."""
        return tuple(outcome for outcome in self.ended if outcome.end is not End.AWAY)

    @property
    def retry_after(self) -> float:
        """Seconds before a repeat makes sense."""
        return max((outcome.error.retry_after or 0.0 for outcome in self.late if outcome.error), default=0.0)

    @property
    def error(self) -> ClassifiedError | None:
        """Why the request failed, if it did. A required part that was never asked was not done; what stopped it is the
        reason.
        """
        first = next((outcome.error for outcome in self.outcomes if outcome.error is not None), None)
        if self.plan.join == "first_success":
            return None if any(outcome.end is End.SUCCEEDED for outcome in self.outcomes) else first
        needed = {node.segment.segment_id for node in self.plan.nodes if node.required}
        required = [outcome for outcome in self.outcomes if outcome.segment.segment_id in needed]
        own = next((outcome.error for outcome in required if outcome.error is not None), None)
        return own or (first if any(outcome.skipped for outcome in required) else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fanout:
    dispatcher: Dispatcher

    async def run(
        self,
        message: ClaimedMessage,
        plan: FanoutPlan,
        *,
        router: Router,
        budget: RequestBudget,
        done: Sequence[SegmentOutcome] = (),
        may_put_off: bool = False,  # what comes after a target that is away waits, so that the order holds later
        on_end: OnEnd | None = None,  # told of each end as it comes, one after the other
    ) -> FanoutResult:
        """Everything that can be done now."""
        ended = {outcome.segment.segment_id: outcome for outcome in done if outcome.skipped is None}
        ended_now: list[SegmentOutcome] = []
        running: dict[str, asyncio.Task[SegmentOutcome]] = {}
        try:
            while True:
                ends = {name: outcome.end for name, outcome in ended.items()}
                start, left_out = advance(plan, ends, running, may_put_off=may_put_off)
                for node in start:
                    name = node.segment.segment_id
                    sending = self.dispatcher.send(message, node.segment, router=router, mode=plan.mode, budget=budget)
                    running[name] = asyncio.create_task(sending, name=f"dispatch {name}")
                if not running:
                    break
                await asyncio.wait(running.values(), return_when=asyncio.FIRST_COMPLETED)
                for segment_id in [name for name, task in running.items() if task.done()]:
                    outcome = running.pop(segment_id).result()
                    ended[segment_id] = outcome
                    ended_now.append(outcome)
                    if on_end is not None:
                        await on_end(outcome)
        finally:
            for task in running.values():
                task.cancel()
            await asyncio.gather(*running.values(), return_exceptions=True)
        outcomes = (
            ended.get(segment.segment_id) or _skipped(message, segment, plan.mode, left_out[segment.segment_id])
            for segment in (node.segment for node in plan.nodes)
            if segment.segment_id in ended or segment.segment_id in left_out
        )
        return FanoutResult(plan=plan, outcomes=tuple(outcomes), ended_now=tuple(ended_now))


def _skipped(message: ClaimedMessage, segment: Segment, mode: FanoutMode, reason: str) -> SegmentOutcome:
    part = subrequest_id(message.context.request_id, segment)
    return SegmentOutcome(segment=segment, subrequest_id=part, fanout_mode=mode, skipped=reason)


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


def aggregate(plan: FanoutPlan, outcomes: Sequence[SegmentOutcome]) -> dict[str, Any] | None:
    """The reply; None when no butler has anything to say."""
    succeeded = [one for one in outcomes if one.end is End.SUCCEEDED]
    arbitrated = arbitrate(plan, succeeded) if len(succeeded) > 1 else []
    conflicts = conflicts_of(plan, succeeded) if len(succeeded) > 1 else []
    lost = {loser["subrequest_id"] for one in arbitrated for loser in one["losers"]}
    standing = [one for one in succeeded if str(one.subrequest_id) not in lost]
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
        "arbitration": arbitrated,
        "conflicts": conflicts,
    }
    report = {name: value for name, value in report.items() if value}
    if report:
        report["text"] = "\n".join(_sentences([one.segment.butler for one in standing], report))
    answers = {"answers": _answers(standing)} if standing else {}
    return answers | report or None


def arbitrate(plan: FanoutPlan, succeeded: Iterable[SegmentOutcome]) -> list[dict[str, Any]]:
    """Every group whose results differ, in the order of the plan: whose result stands, and what made the difference."""
    nodes = {node.segment.segment_id: node for node in plan.nodes}
    groups: dict[str, list[SegmentOutcome]] = defaultdict(list)
    for outcome in succeeded:
        if (group := nodes[outcome.segment.segment_id].arbitration_group) is not None:
            groups[group].append(outcome)

    def rank(outcome: SegmentOutcome) -> tuple[int, str, str]:
        segment = outcome.segment
        return -nodes[segment.segment_id].arbitration_priority, segment.butler, str(outcome.subrequest_id)

    arbitrated = []
    for group, alternatives in groups.items():
        results = [one.result or {} for one in alternatives]
        # What is compared: what was decided, else what was said.
        if _differ(result.get("decision", result.get("answer")) for result in results):
            first, second, *_ = ranked = sorted(alternatives, key=rank)
            pairs = zip(("priority", "butler", "subrequest_id"), rank(first), rank(second), strict=True)
            by = next(name for name, one, other in pairs if one != other)
            winner, *losers = (_named(one) for one in ranked)
            arbitrated.append({"group": group, "winner": winner, "losers": losers, "by": by})
    return arbitrated


def conflicts_of(plan: FanoutPlan, succeeded: Iterable[SegmentOutcome]) -> list[dict[str, Any]]:
    """Matters outside every group that butlers decided differently, with no rule to choose."""
    ungrouped = {node.segment.segment_id for node in plan.nodes if node.arbitration_group is None}
    matters: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for outcome in succeeded:
        result = outcome.result or {}
        if outcome.segment.segment_id in ungrouped and "decision" in result:
            decided = _named(outcome) | {"decision": result["decision"]}
            matters[str(result.get("key", _ONE_MATTER))].append(decided)
    return [
        {"key": key, "between": sorted(decided, key=lambda one: (one["butler"], one["subrequest_id"]))}
        for key, decided in sorted(matters.items())
        if _differ(one["decision"] for one in decided)
    ]


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


def _sentences(done: Sequence[str], report: Mapping[str, Any]) -> Iterator[str]:
    if done:
        yield f"Done: {', '.join(dict.fromkeys(done))}."
    yield from (one["message"] for one in report.get("failed", ()))
    yield from (f"{one['butler']} was not asked: {one['reason']}." for one in report.get("skipped", ()))
    for one in report.get("arbitration", ()):
        yield f"{_listed(one['losers'])} said otherwise than {one['winner']['butler']}, whose answer stands."
    for one in report.get("conflicts", ()):
        yield f"{_listed(one['between'])} do not agree about {one['key']}; please decide yourself."


def _listed(parts: Iterable[Mapping[str, Any]]) -> str:
    return ", ".join(dict.fromkeys(part["butler"] for part in parts))
