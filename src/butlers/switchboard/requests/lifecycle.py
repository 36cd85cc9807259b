"""One request from the buffer to its end.

    claim -> decide (or take the decision of a worker that died) -> fan out -> finish: parsed | errored
                                                                            -> put off: nobody could be reached

A request is `parsed` when every required target finished well, `errored` with class and message otherwise. A target
that is not there now (it restarts, or starts later) is no reason to give a message up: it is put off until
`patience_s` after its arrival. Later messages of its thread to other butlers go on; those to the same butler wait
behind it.

An attempt counts from its claim on. One that a stop or an absent database ended is given back; work that kills its
workers is quarantined after `MOST_DEATHS`, and runs alone before that (`SuspectGate`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal
from uuid import UUID

from butlers.clock import Clock
from butlers.errors import ClassifiedError, LeaseLost, Quarantined, ValidationError
from butlers.storage.claims import MOST_DEATHS, SUSPECT_AFTER, LeasePolicy, SuspectGate
from butlers.storage.database import Database
from butlers.switchboard.config import RoutingSection
from butlers.switchboard.dispatch.executor import Fanout, FanoutResult
from butlers.switchboard.dispatch.outcome import SegmentOutcome
from butlers.switchboard.dispatch.plan import FanoutPlan, make_plan
from butlers.switchboard.ingress.ingress import MessageRef
from butlers.switchboard.operators.dead_letters import DeadLetters
from butlers.switchboard.registry import Registry
from butlers.switchboard.requests.budget import RequestBudget
from butlers.switchboard.requests.inbox import ClaimedMessage, End, MessageInbox
from butlers.switchboard.requests.service_levels import RequestTelemetry
from butlers.switchboard.requests.signals import Ended, Signals
from butlers.switchboard.routing.cascade import Cascade
from butlers.switchboard.routing.decision import Decision
from butlers.telemetry import get_logger

log = get_logger("butlers.lifecycle")

PUT_OFF_S = 5.0
REMIND_MARGIN_S = 0.05  # not before it may be claimed
ALONE_S = 1.0  # when a suspect asks again whether it may run


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A message in hand, and what it may take."""

    message: ClaimedMessage
    budget: RequestBudget
    task: asyncio.Task[Any] | None  # who works on it


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestProcessor:
    inbox: MessageInbox
    database: Database
    registry: Registry
    cascade: Cascade
    fanout: Fanout
    signals: Signals
    dead_letters: DeadLetters
    settings: RoutingSection
    observe: RequestTelemetry
    worker: str
    lease: LeasePolicy
    patience_s: float  # how long after its arrival a message waits for a butler that is away
    clock: Clock
    suspects: SuspectGate
    offer: Callable[[MessageRef], None] = lambda _ref: None  # to the buffer: the next of a thread
    offer_later: Callable[[MessageRef, float], None] = lambda _ref, _seconds: None  # what was put off, after so long
    after: Callable[[ClaimedMessage, Decision], None] = lambda _message, _decision: None  # when a request was parsed
    _held: dict[UUID, Work] = field(default_factory=dict, init=False)  # claim token -> what is in hand
    _owed: dict[UUID, ClaimedMessage] = field(default_factory=dict, init=False)  # to be given back to the database

    # --- in hand -----------------------------------------------------------------------------------------------------

    async def process(self, ref: MessageRef) -> bool:
        """Bring one request to its end; false when somebody else holds it, or an earlier one of its thread does."""
        if any(work.message.ref.request_id == ref.request_id for work in self._held.values()):
            return False  # ours: a stepping clock may make a fresh lease look old
        if ref.attempts < SUSPECT_AFTER:
            return await self._process_now(ref, suspect=False)
        if not self.suspects.enter(ref.request_id):
            self.offer_later(ref, ALONE_S)
            return False
        try:
            return await self._process_now(ref, suspect=True)
        finally:
            self.suspects.leave()

    async def _process_now(self, ref: MessageRef, *, suspect: bool) -> bool:
        message = await self.inbox.claim(ref, worker=self.worker, lease_s=self.lease.ttl, suspect=suspect)
        if message is None:
            return False
        budget = RequestBudget.begin(self.settings.tier, ref.policy_tier, self.clock.monotonic(), calls=message.calls)
        # A task of its own: an operator's abort ends the work, and not the worker.
        task = asyncio.create_task(self._work(message, budget), name=f"request {ref.request_id}")
        self._held[message.claim_token] = Work(message=message, budget=budget, task=task)
        try:
            with self.observe.in_hand(message):
                await _ended(task)
        except BaseException as error:
            await self._give_back(message, error)
            raise
        finally:
            self._held.pop(message.claim_token, None)
        if (following := await self.inbox.next_in_thread(message)) is not None:
            self.offer(following)
        return True

    async def _give_back(self, message: ClaimedMessage, error: BaseException) -> None:
        """A stop and an absent database are not the request's fault; anything else counts as an attempt."""
        passing = not isinstance(error, Exception) or (isinstance(error, ClassifiedError) and error.retryable)
        try:
            if passing:
                await self.inbox.give_back(message)
            else:
                await self.inbox.record_failure(message, f"it raised {type(error).__name__}")
        except LeaseLost:
            log.warning("request was taken over", request_id=message.ref.request_id)
        except ClassifiedError:  # the database is away: the attempt is given back when it is there again
            if passing:
                self._owed[message.claim_token] = message

    def abort(self, request_id: UUID) -> None:
        """Stop working on a request whose claim was taken away."""
        for token, work in list(self._held.items()):
            if work.message.ref.request_id == request_id:
                self._stop(token)

    async def keep_renewed(self) -> None:
        """Renew the leases of everything in hand; runs beside the workers."""
        while True:
            await self.clock.sleep(self.lease.renew_every)
            for token, message in list(self._owed.items()):
                await self.inbox.give_back(message)
                self._owed.pop(token, None)
            if held := {token: work.message for token, work in self._held.items()}:
                standing = await self.inbox.renew([*held.values()], lease_s=self.lease.ttl)
                for token, message in held.items():
                    if message.ref.request_id not in standing:
                        self._stop(token)  # ended or taken over from outside, in whichever process that was

    async def drain(self, timeout_s: float) -> None:
        """Wait until nothing is in hand any more; what takes too long is taken over later by lease."""
        deadline = self.clock.monotonic() + timeout_s
        while self._held and self.clock.monotonic() < deadline:
            await self.clock.sleep(0.02)

    def _stop(self, token: UUID) -> None:
        work = self._held.pop(token, None)
        if work is not None and work.task is not None:
            log.warning("work on a request was stopped", request_id=work.message.ref.request_id)
            work.task.cancel()

    # --- one request -------------------------------------------------------------------------------------------------

    async def _work(self, message: ClaimedMessage, budget: RequestBudget) -> None:
        try:
            with self.observe.request(message):
                await self._process(message, budget)
        except LeaseLost:
            log.warning("request was taken over", request_id=message.ref.request_id)

    async def _process(self, message: ClaimedMessage, budget: RequestBudget) -> None:
        if message.first:
            self.signals.received(message.context)
        try:
            decision, plan = await self._decision(message, budget)
            budget.check_tokens((), decision.tokens or 0)
        except ClassifiedError as error:
            if not (error.retryable and await self._put_off(message, budget)):
                await self._finish(message, None, error)
            return
        if await self._waits_behind(message, decision, budget):
            return
        result = await self._fan_out(message, decision, plan, budget)
        if result is None:
            return
        try:
            budget.check_tokens(result.outcomes, decision.tokens or 0)
        except ClassifiedError as error:
            await self._finish(message, result, error, category="budget_exhausted")
            return
        await self._finish(message, result, result.error)
        if result.error is None:
            self.after(message, decision)

    async def _decision(self, message: ClaimedMessage, budget: RequestBudget) -> tuple[Decision, FanoutPlan]:
        if not message.text.strip():
            raise ValidationError("there is no text to work on")
        if message.attempts > MOST_DEATHS:
            raise Quarantined.after(MOST_DEATHS, message.last_failure)
        if (stored := message.routing_output) is not None:
            return _stored_decision(stored, self.settings, strict=budget.section.strict)
        with self.observe.decision() as observed:
            async with budget.within_time(self.clock.monotonic()):
                decision = await self.cascade.decide(message.question(), await self.registry.butlers())
            observed.append(decision)
        if decision.prompt_version is not None:
            budget.invocations.take()  # a model was asked
        plan = make_plan(decision, self.settings.plan, strict=budget.section.strict)
        record = decision.to_wire() | {"plan": plan.to_wire(), "policy": budget.to_wire()}
        await self.inbox.record_routing(message, record)
        return decision, plan

    async def _waits_behind(self, message: ClaimedMessage, decision: Decision, budget: RequestBudget) -> bool:
        """Whether an earlier message of the thread still waits for one of the same butlers; what is decided and settled
        of this one stays so.
        """
        butlers = [segment.butler for segment in decision.segments]
        until = await self.inbox.held_up_until(message, butlers)
        if until is None or not self._patient(message, until):
            return False
        settled = message.dispatch_outcomes
        await self.inbox.put_off(
            message, not_before=until, waiting_for=butlers, settled=settled, keep_decision=True, calls=budget.calls
        )
        self._remind(message, until)
        return True

    async def _fan_out(
        self, message: ClaimedMessage, decision: Decision, plan: FanoutPlan, budget: RequestBudget
    ) -> FanoutResult | None:
        """None: put off."""
        limits, router = budget.limits(), decision.router
        request_id, stored = message.context.request_id, message.dispatch_outcomes
        done = [SegmentOutcome.from_wire(outcome, decision.segments, request_id) for outcome in stored]
        keep = _Keeper(self.inbox, message, list(done)) if len(plan.nodes) > 1 else None
        result = await self.fanout.run(
            message, plan, router=router, limits=limits, done=done, may_put_off=True, on_end=keep
        )
        await self._log(message, decision, result.ended_now)
        if not result.late:
            return result
        if await self._put_off(message, budget, decision, result):
            return None
        rest = await self.fanout.run(message, plan, router=router, limits=limits, done=result.ended)
        await self._log(message, decision, rest.ended_now)
        return rest

    async def _put_off(
        self,
        message: ClaimedMessage,
        budget: RequestBudget,
        decision: Decision | None = None,
        result: FanoutResult | None = None,
    ) -> bool:
        """Try again later, not before it was said to be possible; false when the patience is used up. A decision of the
        local classifier costs nothing and is made anew; one of a model is kept.
        """
        not_before = self.clock.now() + timedelta(seconds=max(result.retry_after if result else 0.0, PUT_OFF_S))
        if not self._patient(message, not_before):
            return False
        await self.inbox.put_off(
            message,
            not_before=not_before,
            waiting_for=[outcome.segment.butler for outcome in result.late] if result else None,
            settled=[outcome.to_wire() for outcome in result.settled] if result else (),
            keep_decision=decision is not None and decision.prompt_version is not None,
            calls=budget.calls,
        )
        self._remind(message, not_before)
        log.warning("nobody could take the request, put off", request_id=message.context.request_id)
        return True

    def _remind(self, message: ClaimedMessage, when: datetime) -> None:
        self.offer_later(message.ref, max(0.0, (when - self.clock.now()).total_seconds()) + REMIND_MARGIN_S)

    def _patient(self, message: ClaimedMessage, until: datetime) -> bool:
        return (until - message.waiting_since).total_seconds() <= self.patience_s

    async def _log(self, message: ClaimedMessage, decision: Decision, outcomes: Sequence[SegmentOutcome]) -> None:
        now = self.clock.now()
        await self.inbox.log_routing([_log_line(message, decision, outcome, now) for outcome in outcomes])

    async def _finish(
        self,
        message: ClaimedMessage,
        result: FanoutResult | None,
        error: ClassifiedError | None,
        *,
        category: Literal["budget_exhausted"] | None = None,
    ) -> None:
        state, signal = "errored" if error else "parsed", self.signals.wanted(message.context)
        outcomes = [outcome.to_wire() for outcome in result.outcomes] if result else []
        told = error.describe() if error else None
        end = End(state=state, outcomes=outcomes, reply=result.reply if result else None, error=told, signal=signal)
        async with self.database.transaction() as connection:
            await self.inbox.finish(connection, message, end)
            await self.dead_letters.ended(
                connection,
                message.ref,
                state=state,
                outcomes=outcomes,
                error=error,
                category=category,
                override=message.override,
            )
        self.observe.finished(message, state, error)
        self.signals.ended(
            Ended(context=message.context, state=state, error=told, outcomes=outcomes, override=message.override)
        )


@dataclass(frozen=True, slots=True)
class _Keeper:
    """Puts each answer on record as it comes, so that a repeat does not ask for it again."""

    inbox: MessageInbox
    message: ClaimedMessage
    outcomes: list[SegmentOutcome]

    async def __call__(self, outcome: SegmentOutcome) -> None:
        if not outcome.worth_repeating:
            self.outcomes.append(outcome)
            await self.inbox.record_outcomes(self.message, [kept.to_wire() for kept in self.outcomes])


async def _ended(task: asyncio.Task[None]) -> None:
    """Until the work is over; whoever stops the worker stops it, too, and work that was stopped is over."""
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait([task])
        raise
    if not task.cancelled() and (error := task.exception()) is not None:
        raise error


def _stored_decision(
    stored: Mapping[str, Any], settings: RoutingSection, *, strict: bool
) -> tuple[Decision, FanoutPlan]:
    decision = Decision.from_wire(stored)
    if isinstance(plan := stored.get("plan"), Mapping):
        return decision, FanoutPlan.from_wire(plan, decision.segments)
    return decision, make_plan(decision, settings.plan, strict=strict)


def _log_line(message: ClaimedMessage, decision: Decision, outcome: SegmentOutcome, now: datetime) -> tuple[Any, ...]:
    error = outcome.error
    return (
        message.context.request_id,
        outcome.segment.segment_id,
        message.context.source_channel,
        outcome.segment.butler,
        error is None,
        outcome.duration_ms,
        error.error_class.value if error else None,
        error.message if error else None,
        decision.router,
        outcome.segment.confidence,
        decision.prompt_version,
        decision.model_version,
        now,
    )
