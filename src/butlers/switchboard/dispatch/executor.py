"""A plan, executed: start what may start, wait for the next end, look again.

`done` holds what ended before, under a worker that died or before the request was put off; it is not dispatched again.
Whoever cancels `run` cancels every dispatch that is under way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from butlers.errors import ClassifiedError
from butlers.switchboard.dispatch.dispatcher import Dispatcher, DispatchLimits
from butlers.switchboard.dispatch.outcome import SegmentOutcome, skipped
from butlers.switchboard.dispatch.plan import End, FanoutNode, FanoutPlan, advance
from butlers.switchboard.dispatch.reply import aggregate
from butlers.switchboard.requests.inbox import ClaimedMessage
from butlers.switchboard.routing.decision import Router

OnEnd = Callable[[SegmentOutcome], Awaitable[None]]
Send = Callable[[FanoutNode], Coroutine[Any, Any, SegmentOutcome]]


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
        return tuple(outcome for outcome in self.ended if outcome.worth_repeating)

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
        """Why the request failed, if it did."""
        if self.plan.join == "first_success":
            return None if any(outcome.succeeded for outcome in self.outcomes) else self._first_error(required=False)
        return self._first_error(required=True) or self._cause_of_what_was_left_out()

    @property
    def reply(self) -> dict[str, Any] | None:
        return aggregate(self.plan, self.outcomes)

    def _first_error(self, *, required: bool) -> ClassifiedError | None:
        needed = self._required()
        errors = (outcome.error for outcome in self.outcomes if outcome.segment.segment_id in needed or not required)
        return next((error for error in errors if error is not None), None)

    def _cause_of_what_was_left_out(self) -> ClassifiedError | None:
        """A required part that was never asked was not done; what stopped it is the reason."""
        needed = self._required()
        if any(outcome.skipped and outcome.segment.segment_id in needed for outcome in self.outcomes):
            return self._first_error(required=False)
        return None

    def _required(self) -> frozenset[str]:
        return frozenset(node.segment_id for node in self.plan.nodes if node.required)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fanout:
    dispatcher: Dispatcher

    async def run(
        self,
        message: ClaimedMessage,
        plan: FanoutPlan,
        *,
        router: Router,
        limits: DispatchLimits,
        done: Sequence[SegmentOutcome] = (),
        may_put_off: bool = False,  # what comes after a target that is away waits, so that the order holds later
        on_end: OnEnd | None = None,  # told of each end as it comes, one after the other
    ) -> FanoutResult:
        """Everything that can be done now."""

        async def send(node: FanoutNode) -> SegmentOutcome:
            return await self.dispatcher.send(message, node.segment, router=router, mode=plan.mode, limits=limits)

        before = {outcome.segment.segment_id: outcome for outcome in done if outcome.skipped is None}
        now = await _execute(plan, before, send, on_end or _nobody, may_put_off=may_put_off)
        ended = before | now
        left_out = advance(plan, _ends(ended, may_put_off=may_put_off)).skipped
        request_id = message.context.request_id
        outcomes = [
            ended.get(node.segment_id) or skipped(request_id, node.segment, plan.mode, left_out[node.segment_id])
            for node in plan.nodes
            if node.segment_id in ended or node.segment_id in left_out
        ]
        return FanoutResult(plan=plan, outcomes=tuple(outcomes), ended_now=tuple(now.values()))


async def _execute(
    plan: FanoutPlan, before: Mapping[str, SegmentOutcome], send: Send, on_end: OnEnd, *, may_put_off: bool
) -> dict[str, SegmentOutcome]:
    """What this run dispatched, as it ended."""
    ended: dict[str, SegmentOutcome] = {}
    running: dict[str, asyncio.Task[SegmentOutcome]] = {}
    try:
        while True:
            step = advance(plan, _ends({**before, **ended}, may_put_off=may_put_off), running)
            for node in step.start:
                running[node.segment_id] = asyncio.create_task(send(node), name=f"dispatch {node.segment_id}")
            if not running:
                return ended
            await asyncio.wait(running.values(), return_when=asyncio.FIRST_COMPLETED)
            for segment_id in [name for name, task in running.items() if task.done()]:
                ended[segment_id] = running.pop(segment_id).result()
                await on_end(ended[segment_id])
    finally:
        for task in running.values():
            task.cancel()
        await asyncio.gather(*running.values(), return_exceptions=True)


async def _nobody(_outcome: SegmentOutcome) -> None:
    """Nobody wants to be told."""


def _ends(outcomes: Mapping[str, SegmentOutcome], *, may_put_off: bool) -> dict[str, End]:
    return {name: _end(outcome, may_put_off=may_put_off) for name, outcome in outcomes.items()}


def _end(outcome: SegmentOutcome, *, may_put_off: bool) -> End:
    if outcome.succeeded:
        return End.SUCCEEDED
    return End.AWAY if may_put_off and outcome.worth_repeating else End.FAILED
