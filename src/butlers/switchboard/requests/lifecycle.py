"""One request from the buffer to its end.

    claim -> a chat command is carried out and answered -> finish
          -> decide (or take the decision of a worker that died) -> fan out -> finish: parsed | errored
                                                                            -> put off: no butler could be reached

A request is `parsed` when every required target finished well, `errored` with class and message otherwise. A target
that is not there now (it restarts, or starts later) is no reason to give a message up: it is put off until
`patience_s` after its arrival. Later messages of its thread to other butlers go on; those to the same butler wait
behind it.

An attempt counts from its claim on. One that a stop or an absent database ended is given back; work that kills its
workers is quarantined after `MOST_DEATHS`, and runs alone before that (`SuspectGate`).
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal
from uuid import UUID

from butlers.channels.registry import reacting_names
from butlers.clock import Clock
from butlers.errors import ClassifiedError, LeaseLost, Quarantined, TargetUnavailable, ValidationError
from butlers.storage.claims import MOST_DEATHS, SUSPECT_AFTER, LeasePolicy, SuspectGate
from butlers.storage.database import Database
from butlers.switchboard.chat_commands import ChatCommands
from butlers.switchboard.config import RoutingSection
from butlers.switchboard.dispatch.dispatcher import RequestBudget
from butlers.switchboard.dispatch.fanout import Fanout, FanoutResult, aggregate
from butlers.switchboard.dispatch.plan import End, FanoutPlan, SegmentOutcome, make_plan, subrequest_id
from butlers.switchboard.operators.dead_letters import DeadLetters, failures_of
from butlers.switchboard.registry import Registry
from butlers.switchboard.requests.inbox import ClaimedMessage, LineageReader, MessageInbox, MessageRef
from butlers.switchboard.requests.signals import SELF, Ended, Signals
from butlers.switchboard.routing.decision import Cascade, Decision, RoutingQuestion, whole
from butlers.telemetry import get_logger
from butlers.telemetry.catalogue import (
    END_TO_END_LATENCY,
    INFLIGHT_REQUESTS,
    INTERACTIVE_LATENCY,
    REQUEST_FINISHED,
    ROUTING_DECISION_LATENCY,
    ROUTING_FALLBACK,
)
from butlers.telemetry.spans import REQUEST
from butlers.telemetry.telemetry import Telemetry

log = get_logger("butlers.lifecycle")

PUT_OFF_S = 5.0
REMIND_MARGIN_S = 0.05  # not before it may be claimed
ALONE_S = 1.0  # when a suspect asks again whether it may run


AfterRequest = Callable[[ClaimedMessage, Decision], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestProcessor:
    inbox: MessageInbox
    database: Database
    registry: Registry
    cascade: Cascade
    fanout: Fanout
    signals: Signals
    lineage: LineageReader
    dead_letters: DeadLetters
    settings: RoutingSection
    telemetry: Telemetry
    worker: str
    lease: LeasePolicy
    patience_s: float  # how long after its arrival a message waits for a butler that is away
    clock: Clock
    suspects: SuspectGate
    commands: ChatCommands
    offer: Callable[[MessageRef], None] = lambda _ref: None  # to the buffer: the next of a thread
    offer_later: Callable[[MessageRef, float], None] = lambda _ref, _seconds: None  # what was put off, after so long
    after: Sequence[AfterRequest] = ()  # told of each request that was parsed
    # By claim token: what this process works on, and what it has to give back when the database is there again.
    _held: dict[UUID, tuple[ClaimedMessage, asyncio.Task[None]]] = field(default_factory=dict, init=False)
    _owed: dict[UUID, ClaimedMessage] = field(default_factory=dict, init=False)

    async def process(self, ref: MessageRef) -> bool:
        """Bring one request to its end; false when another worker holds it, or an earlier one of its thread."""
        if any(message.ref.request_id == ref.request_id for message, _ in self._held.values()):
            return False  # ours: a stepping clock may make a fresh lease look old
        if ref.attempts < SUSPECT_AFTER:
            return await self._claim_and_work(ref, suspect=False)
        if not self.suspects.enter(ref.request_id):
            self.offer_later(ref, ALONE_S)
            return False
        try:
            return await self._claim_and_work(ref, suspect=True)
        finally:
            self.suspects.leave()

    def abort(self, request_id: UUID) -> None:
        """Stop working on a request whose claim was taken away."""
        for token, (message, _) in list(self._held.items()):
            if message.ref.request_id == request_id:
                self._stop(token)

    async def keep_renewed(self) -> None:
        """Renew the leases of all claimed requests; runs beside the workers."""
        while True:
            await self.clock.sleep(self.lease.renew_every)
            for token, message in list(self._owed.items()):
                await self.inbox.give_back(message)
                self._owed.pop(token, None)
            if held := {token: message for token, (message, _) in self._held.items()}:
                standing = await self.inbox.renew([*held.values()], lease_s=self.lease.ttl)
                for token, message in held.items():
                    if message.ref.request_id not in standing:
                        self._stop(token)  # ended or taken over from outside, in whichever process that was

    async def drain(self, timeout_s: float) -> None:
        """Wait until no request is worked on any more; what takes too long is taken over later by lease."""
        deadline = self.clock.monotonic() + timeout_s
        while self._held and self.clock.monotonic() < deadline:
            await self.clock.sleep(0.02)

    def _stop(self, token: UUID) -> None:
        if (held := self._held.pop(token, None)) is not None:
            message, task = held
            log.warning("work on a request was stopped", request_id=message.ref.request_id)
            task.cancel()

    async def _claim_and_work(self, ref: MessageRef, *, suspect: bool) -> bool:
        message = await self.inbox.claim(ref, worker=self.worker, lease_s=self.lease.ttl, suspect=suspect)
        if message is None:
            return False
        self.lineage.remember(message.context, message.raw_payload)
        # A task of its own: an operator's abort ends the work, and not the worker.
        task = asyncio.create_task(self._work(message), name=f"request {ref.request_id}")
        self._held[message.claim.token] = (message, task)
        self.telemetry.count(INFLIGHT_REQUESTS, 1)
        try:
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError:
                task.cancel()
                await asyncio.wait([task])
                raise
            if not task.cancelled():  # work that was stopped is over
                task.result()
        except LeaseLost:
            log.warning("request was taken over", request_id=ref.request_id)
        except BaseException as error:
            await self._give_back(message, error)
            raise
        finally:
            self.telemetry.count(INFLIGHT_REQUESTS, -1)
            self._held.pop(message.claim.token, None)
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
                self._owed[message.claim.token] = message

    async def _work(self, message: ClaimedMessage) -> None:
        tiers, now = self.settings.tier, self.clock.monotonic()
        budget = RequestBudget.begin(tiers, message.ref.policy_tier, now, calls=message.calls)
        with self.telemetry.span(REQUEST, request_id=message.ref.request_id, parent=message.context.trace_context):
            if message.first:
                self.signals.received(message.context)
            try:
                if await self._answered_command(message):
                    return
                decision, plan, record = await self._decide(message, budget)
                butlers = [segment.butler for segment in decision.segments]
                held_up_until = await self.inbox.record_decision(message, record, butlers)
                if (overspent := budget.overspent((), decision.tokens or 0)) is not None:
                    raise overspent
            except ClassifiedError as error:
                if not (error.retryable and await self._put_off(message, budget)):
                    await self._finish(message, error)
                return
            if held_up_until is not None and self._is_patient(message, held_up_until):
                # An earlier message of the thread still waits for one of the same butlers; what is decided and settled
                # of this one stays so.
                await self.inbox.put_off(
                    message,
                    not_before=held_up_until,
                    waiting_for=butlers,
                    settled=message.dispatch_outcomes,
                    keep_decision=True,
                    calls=budget.calls,
                )
                self._remind(message, held_up_until)
                return
            result = await self._fan_out(message, decision, plan, budget)
            if result is None:
                return
            overspent = budget.overspent(result.outcomes, decision.tokens or 0)
            category: Literal["budget_exhausted"] | None = "budget_exhausted" if overspent else None
            await self._finish(message, overspent or result.error, decision, result, category=category)

    async def _answered_command(self, message: ClaimedMessage) -> bool:
        """Whether the message was a chat command: then it is carried out, answered and finished."""
        if message.attempts > MOST_DEATHS or message.routing_output is not None:
            return False
        started, context = self.clock.monotonic(), message.context
        answer = await self.commands.answer(message)
        if answer is None:
            return False
        response = await self.signals.answer(context, answer.text)
        if response.error is not None:
            log.warning(
                "a command was not answered", request_id=context.request_id, error_class=response.error.error_class
            )
            if response.error.retryable:  # what was changed stays so, and the answer is tried again
                raise TargetUnavailable("the answer to a command could not be sent")
        why = f"it is the chat command /{answer.command}"
        decision = whole(message.text, SELF.name, router="policy", confidence=1.0, why=why)
        [segment] = decision.segments
        outcome = SegmentOutcome(
            segment=segment,
            subrequest_id=subrequest_id(context.request_id, segment),
            duration_ms=int((self.clock.monotonic() - started) * 1000),
            attempts=1,
            result={"answer": answer.text},
        )
        plan = make_plan(decision, self.settings.plan, strict=False)
        result = FanoutResult(plan=plan, outcomes=(outcome,), ended_now=(outcome,))
        await self._finish(message, None, decision, result, is_learned_from=False)
        return True

    async def _decide(
        self, message: ClaimedMessage, budget: RequestBudget
    ) -> tuple[Decision, FanoutPlan, Mapping[str, Any]]:
        """The decision, its plan, and both as they are stored."""
        if not message.text.strip():
            raise ValidationError("there is no text to work on")
        if message.attempts > MOST_DEATHS:
            raise Quarantined.after(MOST_DEATHS, message.last_failure)
        if (stored := message.routing_output) is not None:
            decision = Decision.from_wire(stored)
            if isinstance(plan := stored.get("plan"), Mapping):
                return decision, FanoutPlan.from_wire(plan, decision.segments), stored
            return decision, make_plan(decision, self.settings.plan, strict=budget.section.strict), stored
        started, context = self.clock.monotonic(), message.context
        question = RoutingQuestion(
            text=message.text,
            channel=context.source_channel,
            sender=context.source_sender_identity,
            endpoint=context.source_endpoint_identity,
            thread=context.source_thread_identity,
            pinned_target=message.pinned_target,
            policy_tier=message.ref.policy_tier,
            request_id=context.request_id,
            received_at=context.received_at,
            raw_payload=message.raw_payload,
        )
        async with budget.within_time(started):
            decision = await self.cascade.decide(question, await self.registry.butlers())
        elapsed = (self.clock.monotonic() - started) * 1000
        self.telemetry.observe(ROUTING_DECISION_LATENCY, elapsed, router=decision.router)
        if decision.fallback_reason is not None:
            self.telemetry.count(ROUTING_FALLBACK, reason=decision.fallback_reason)
        if decision.prompt_version is not None:
            budget.calls = min(budget.calls + 1, budget.section.max_invocations)  # a model was asked
        plan = make_plan(decision, self.settings.plan, strict=budget.section.strict)
        policy = {"tier": budget.tier} | budget.section.model_dump(exclude_none=True)
        return decision, plan, asdict(decision) | {"plan": plan.to_wire(), "policy": policy}

    async def _fan_out(
        self, message: ClaimedMessage, decision: Decision, plan: FanoutPlan, budget: RequestBudget
    ) -> FanoutResult | None:
        """None: put off."""
        request_id, router = message.context.request_id, decision.router
        done = [
            SegmentOutcome.from_wire(outcome, decision.segments, request_id) for outcome in message.dispatch_outcomes
        ]
        stored = list(done)

        async def store(outcome: SegmentOutcome) -> None:
            """Each answer goes on record as it comes, so that a repeat does not ask for it again."""
            if outcome.end is not End.AWAY:
                stored.append(outcome)
                await self.inbox.record_outcomes(message, [each.to_wire() for each in stored])

        on_end = store if len(plan.nodes) > 1 else None
        result = await self.fanout.run(
            message, plan, router=router, budget=budget, done=done, may_put_off=True, on_end=on_end
        )
        if not result.late:
            return result
        await self.inbox.log_routing(self.inbox.log_lines(message, decision, result.ended_now))
        if await self._put_off(message, budget, decision, result):
            return None
        return await self.fanout.run(message, plan, router=router, budget=budget, done=result.ended)

    async def _put_off(
        self,
        message: ClaimedMessage,
        budget: RequestBudget,
        decision: Decision | None = None,
        result: FanoutResult | None = None,
    ) -> bool:
        """Try again later, not before a butler said that it is possible; false when the patience is used up. A decision
        of the local classifier costs nothing and is made anew; one of a model is kept.
        """
        not_before = self.clock.now() + timedelta(seconds=max(result.retry_after if result else 0.0, PUT_OFF_S))
        if not self._is_patient(message, not_before):
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

    def _is_patient(self, message: ClaimedMessage, until: datetime) -> bool:
        return (until - message.waiting_since).total_seconds() <= self.patience_s

    async def _finish(
        self,
        message: ClaimedMessage,
        error: ClassifiedError | None,
        decision: Decision | None = None,
        result: FanoutResult | None = None,
        *,
        category: Literal["budget_exhausted"] | None = None,
        is_learned_from: bool = True,  # False: it tells nothing about people
    ) -> None:
        context, state = message.context, "errored" if error else "parsed"
        outcomes = [outcome.to_wire() for outcome in result.outcomes] if result else []
        described = error.describe() if error else None
        end = functools.partial(
            self.inbox.finish,
            message,
            state,
            outcomes=outcomes,
            reply=aggregate(result.plan, result.outcomes) if result else None,
            error=described,
            signal=self.signals.is_awaited(context.source_channel, context.source_thread_identity),
            routed=self.inbox.log_lines(message, decision, result.ended_now) if decision and result else (),
        )
        if error is None and message.override is None and all(outcome["error"] is None for outcome in outcomes):
            await end()
        else:
            failures = failures_of(context.request_id, outcomes=outcomes, error=error, category=category)
            async with self.database.transaction() as connection:
                await end(connection=connection)
                await self.dead_letters.ended(
                    connection, message.ref, state=state, failures=failures, override=message.override
                )
        self._observe_end(message, state, error)
        self.signals.ended(
            Ended(context=context, state=state, error=described, outcomes=outcomes, override=message.override)
        )
        if error is None and decision is not None and is_learned_from:
            for learn in self.after:
                learn(message, decision)

    def _observe_end(self, message: ClaimedMessage, state: str, error: ClassifiedError | None) -> None:
        now, channel, tier = self.clock.now(), message.context.source_channel, message.ref.policy_tier
        elapsed = (now - message.ref.received_at).total_seconds() * 1000
        self.telemetry.count(REQUEST_FINISHED, source_channel=channel, lifecycle_state=state)
        self.telemetry.observe(
            END_TO_END_LATENCY, elapsed, source_channel=channel, policy_tier=tier, lifecycle_state=state
        )
        if message.progress_at is not None and (channel in reacting_names() or tier == "interactive"):
            # A person waits for it: measured from PROGRESS to the end.
            waited = (now - message.progress_at).total_seconds() * 1000
            self.telemetry.observe(INTERACTIVE_LATENCY, waited, source_channel=channel, lifecycle_state=state)
        log.info(
            "request finished",
            request_id=message.context.request_id,
            lifecycle_state=state,
            error_class=error.error_class if error else None,
            duration_ms=int(elapsed),
        )
