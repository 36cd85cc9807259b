"""A plan, executed: start what may start, wait for the next end, look again.

`done` holds what ended before, under a worker that died or before the request was put off; it is not dispatched again.
Cancelling `run` cancels every dispatch that is under way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from butlers.errors import ClassifiedError
from butlers.switchboard.dispatch.dispatcher import Dispatcher
from butlers.switchboard.dispatch.outcome import SegmentOutcome, skipped
from butlers.switchboard.dispatch.plan import End, FanoutPlan, advance
from butlers.switchboard.requests.budget import RequestBudget
from butlers.switchboard.requests.inbox import ClaimedMessage
from butlers.switchboard.routing.decision import Router

OnEnd = Callable[[SegmentOutcome], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class FanoutResult:
    plan: FanoutPlan
    outcomes: tuple[SegmentOutcome, ...]  # in the order of the plan, the skipped ones among them
    ended_now: tuple[SegmentOutcome, ...]  # dispatched in this run

    @property
    def ended(self) -> tuple[SegmentOutcome, ...]:
        """Dispatched, now or before."""
        return tuple(outcome for outcome in self.outcomes if outcome.skipped is None)

    @property
    def late(self) -> tuple[SegmentOutcome, ...]:
        """What may be put right by waiting; nothing once another part has dealt with an `either or`."""
        if self.plan.join == "first_success" and any(outcome.succeeded for outcome in self.outcomes):
            return ()
        return tuple(outcome for outcome in self.outcomes if outcome.skipped is None and outcome.worth_repeating)

    @property
    def settled(self) -> tuple[SegmentOutcome, ...]:
        """What needs no repeat when the request is put off."""
        return tuple(outcome for outcome in self.ended if not outcome.worth_repeating)

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
            return None if any(outcome.succeeded for outcome in self.outcomes) else first
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
                ends = {name: _end(outcome, may_put_off=may_put_off) for name, outcome in ended.items()}
                step = advance(plan, ends, running)
                for node in step.start:
                    sending = self.dispatcher.send(message, node.segment, router=router, mode=plan.mode, budget=budget)
                    running[node.segment_id] = asyncio.create_task(sending, name=f"dispatch {node.segment_id}")
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
        request_id, left_out = message.context.request_id, step.skipped
        outcomes = [
            ended.get(node.segment_id) or skipped(request_id, node.segment, plan.mode, left_out[node.segment_id])
            for node in plan.nodes
            if node.segment_id in ended or node.segment_id in left_out
        ]
        return FanoutResult(plan=plan, outcomes=tuple(outcomes), ended_now=tuple(ended_now))


def _end(outcome: SegmentOutcome, *, may_put_off: bool) -> End:
    if outcome.succeeded:
        return End.SUCCEEDED
    return End.AWAY if may_put_off and outcome.worth_repeating else End.FAILED
