"""One request from the buffer to its end.

    claim -> decide (or take the decision of a worker that died) -> dispatch -> finish: parsed | errored
                                                                             -> put off: nobody could be reached

A request is `parsed` when every required target finished well, `errored` with class and message otherwise. A target
that is not there now (it restarts, or starts later) is no reason to give a message up: it is put off until
`patience_s` after its arrival.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID

from butlers.clock import Clock
from butlers.errors import ClassifiedError, InternalError, LeaseLost
from butlers.reliability.lease import LeasePolicy
from butlers.switchboard.dispatch import Dispatcher, SegmentOutcome
from butlers.switchboard.inbox import ClaimedMessage, MessageInbox
from butlers.switchboard.ingress import MessageRef
from butlers.switchboard.registry import Registry
from butlers.switchboard.routing.cascade import Cascade
from butlers.switchboard.routing.decision import Decision
from butlers.telemetry import Telemetry, get_logger
from butlers.telemetry.catalogue import (
    END_TO_END_LATENCY,
    INFLIGHT_REQUESTS,
    REQUEST_FINISHED,
    ROUTING_DECISION_LATENCY,
    ROUTING_FALLBACK,
)
from butlers.telemetry.spans import REQUEST

log = get_logger("butlers.lifecycle")

PUT_OFF_S = 5.0
MAX_ATTEMPTS = 5  # workers that may die over one message before it counts as poisonous


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestProcessor:
    inbox: MessageInbox
    registry: Registry
    cascade: Cascade
    dispatcher: Dispatcher
    worker: str
    lease: LeasePolicy
    patience_s: float  # how long after its arrival a message waits for a butler that is away
    clock: Clock
    telemetry: Telemetry
    _held: dict[UUID, ClaimedMessage] = field(default_factory=dict, init=False)  # claim token -> message

    async def process(self, ref: MessageRef) -> bool:
        """Bring one request to its end; false when somebody else holds it."""
        if any(held.ref.request_id == ref.request_id for held in self._held.values()):
            return False  # ours: a stepping clock may make a fresh lease look old
        message = await self.inbox.claim(ref, worker=self.worker, lease_s=self.lease.ttl)
        if message is None:
            return False
        self._held[message.claim_token] = message
        self.telemetry.count(INFLIGHT_REQUESTS, 1)
        try:
            with self.telemetry.span(REQUEST, request_id=ref.request_id, parent=message.context.trace_context):
                await self._process(message)
        except LeaseLost:
            log.warning("request was taken over", request_id=ref.request_id)
        finally:
            del self._held[message.claim_token]
            self.telemetry.count(INFLIGHT_REQUESTS, -1)
        return True

    async def keep_renewed(self) -> None:
        """Renew the leases of everything in hand; runs beside the workers."""
        while True:
            await self.clock.sleep(self.lease.renew_every)
            if held := list(self._held.values()):
                oldest = min(message.ref.received_at for message in held)
                tokens = [message.claim_token for message in held]
                await self.inbox.renew(tokens, oldest=oldest, lease_s=self.lease.ttl)

    async def drain(self, timeout_s: float) -> None:
        """Wait until nothing is in hand any more; what takes too long is taken over later by lease."""
        deadline = self.clock.monotonic() + timeout_s
        while self._held and self.clock.monotonic() < deadline:
            await self.clock.sleep(0.02)

    async def _process(self, message: ClaimedMessage) -> None:
        try:
            decision = await self._decision(message)
        except ClassifiedError as error:
            if not (error.retryable and await self._put_off(message)):
                await self._finish(message, [], error)
            return
        outcomes = await self.dispatcher.dispatch(message, decision.segments, decision.router)
        await self._log(message, decision, outcomes)
        late = [outcome.error for outcome in outcomes if outcome.worth_repeating and outcome.error is not None]
        if late and await self._put_off(message, max(error.retry_after or 0.0 for error in late)):
            return
        failed = [outcome.error for outcome in outcomes if outcome.error is not None]
        await self._finish(message, outcomes, failed[0] if failed else None)

    async def _put_off(self, message: ClaimedMessage, wait_s: float = 0.0) -> bool:
        """Try again later, not before it was said to be possible; false when the patience is used up."""
        now, wait_s = self.clock.now(), max(wait_s, PUT_OFF_S)
        if (now - message.ref.received_at).total_seconds() + wait_s > self.patience_s:
            return False
        await self.inbox.put_off(message, not_before=now + timedelta(seconds=wait_s))
        log.warning("nobody could take the request, put off", request_id=message.context.request_id)
        return True

    async def _decision(self, message: ClaimedMessage) -> Decision:
        if message.attempts > MAX_ATTEMPTS:
            raise InternalError(f"gave up after {MAX_ATTEMPTS} attempts that never finished")
        if message.routing_output is not None:
            return Decision.from_wire(message.routing_output)
        started = self.clock.monotonic()
        decision = await self.cascade.decide(message.question(), await self.registry.butlers())
        elapsed = (self.clock.monotonic() - started) * 1000
        self.telemetry.observe(ROUTING_DECISION_LATENCY, elapsed, router=decision.router)
        if decision.fallback_reason is not None:
            self.telemetry.count(ROUTING_FALLBACK, reason=decision.fallback_reason)
        await self.inbox.record_routing(message, decision.to_wire())
        return decision

    async def _log(self, message: ClaimedMessage, decision: Decision, outcomes: Sequence[SegmentOutcome]) -> None:
        now = self.clock.now()
        await self.inbox.log_routing(
            [
                (
                    message.context.request_id,
                    outcome.segment.segment_id,
                    message.context.source_channel,
                    outcome.segment.butler,
                    outcome.error is None,
                    outcome.duration_ms,
                    outcome.error.error_class.value if outcome.error else None,
                    outcome.error.message if outcome.error else None,
                    decision.router,
                    outcome.segment.confidence,
                    decision.prompt_version,
                    decision.model_version,
                    now,
                )
                for outcome in outcomes
            ]
        )

    async def _finish(
        self, message: ClaimedMessage, outcomes: Sequence[SegmentOutcome], error: ClassifiedError | None
    ) -> None:
        state = "errored" if error else "parsed"
        await self.inbox.finish(
            message,
            state=state,
            outcomes=[outcome.to_wire() for outcome in outcomes],
            reply=_aggregate(outcomes),
            error=error.describe() if error else None,
        )
        elapsed = (self.clock.now() - message.ref.received_at).total_seconds() * 1000
        channel = message.context.source_channel
        self.telemetry.count(REQUEST_FINISHED, source_channel=channel, lifecycle_state=state)
        self.telemetry.observe(
            END_TO_END_LATENCY,
            elapsed,
            source_channel=channel,
            policy_tier=message.ref.policy_tier,
            lifecycle_state=state,
        )
        log.info(
            "request finished",
            request_id=message.context.request_id,
            lifecycle_state=state,
            error_class=error.error_class if error else None,
            duration_ms=int(elapsed),
        )


def _aggregate(outcomes: Sequence[SegmentOutcome]) -> dict[str, Any] | None:
    """What the butlers answered, together."""
    answers = {
        outcome.segment.butler: outcome.result.get("answer") for outcome in outcomes if outcome.result is not None
    }
    return {"answers": answers} if answers else None
