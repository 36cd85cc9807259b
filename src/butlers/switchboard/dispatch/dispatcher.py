"""Handing one segment to its butler and reading what comes back.

    does it fit? -> is its circuit closed? -> call, within its time -> a route_response.v1 of this request? -> outcome
      |               |                         |                        |
      |               target_unavailable        |                        validation_error, or the butler's own error
      validation_error, target_unavailable      timeout, target_unavailable

Delivery is at least once: a segment may be dispatched again after a crash or a lost answer, always with the same
`request_id`, `segment_id` and `subrequest_id`, and the butler answers a repeat from its own record. What is retryable
is tried again with backoff, within what the request may still take; the rest fails at once.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

from butlers.butler.transport import Transport
from butlers.clock import Clock
from butlers.contracts.envelope import invalid
from butlers.contracts.ingest import Attachment
from butlers.contracts.route import FanoutMode, RouteEnvelope, RouteInput, Subrequest, Target
from butlers.errors import (
    CircuitOpenError,
    ClassifiedError,
    InternalError,
    OverloadRejected,
    TargetUnavailable,
    TimeoutExceeded,
)
from butlers.reliability import circuit_breaker
from butlers.reliability.circuit_breaker import Breaker, BreakerPolicy, BreakerSnapshot, BreakerState, Rejected
from butlers.reliability.retry import RetryAfter, RetryPolicy, next_retry
from butlers.switchboard.config import TierSection, TiersSection
from butlers.switchboard.dispatch.plan import SegmentOutcome, read_response, subrequest_id
from butlers.switchboard.registry import RegisteredButler
from butlers.switchboard.requests.inbox import ClaimedMessage
from butlers.switchboard.routing.decision import Router, Segment
from butlers.telemetry import get_logger
from butlers.telemetry.catalogue import (
    CIRCUIT_OPEN_TARGETS,
    CIRCUIT_TRANSITION,
    SUBROUTE_DISPATCHED,
    SUBROUTE_LATENCY,
    SUBROUTE_RESULT,
)
from butlers.telemetry.spans import DISPATCH
from butlers.telemetry.telemetry import Telemetry

log = get_logger("butlers.dispatch")
circuits_log = get_logger("butlers.circuits")

TOOL = "route.execute"
_CONTRACT = re.compile(r"route\.v(\d{1,6})")


@dataclass(slots=True, kw_only=True)
class RequestBudget:
    """What one request may take by its policy tier, and what it has used of it; all parts of the request share it.

    The clock runs while the request is worked on; a request that waits for a butler to come back spends nothing.
    """

    tier: str = "default"
    section: TierSection
    deadline: float | None = None  # on the monotonic clock; None: no limit
    calls: int = 0  # of butlers and models, all that were made for the request so far

    @classmethod
    def begin(cls, tiers: TiersSection, policy_tier: str, now: float, *, calls: int = 0) -> RequestBudget:
        """An unknown tier is worked on like `default`, as it is queued. `calls` were made before it was put off."""
        name = policy_tier if policy_tier in type(tiers).model_fields else "default"
        section: TierSection = getattr(tiers, name)
        deadline = None if section.wall_clock_s is None else now + section.wall_clock_s
        return cls(tier=name, section=section, deadline=deadline, calls=calls)

    def time_left(self, now: float) -> float | None:
        """Seconds until the deadline, never negative; None without one."""
        return None if self.deadline is None else max(0.0, self.deadline - now)

    @asynccontextmanager
    async def within_time(self, now: float) -> AsyncIterator[None]:
        """What is done inside ends with the request's time."""
        try:
            async with asyncio.timeout(self.time_left(now)) as limit:
                yield
        except TimeoutError:
            if not limit.expired():
                raise
            problem = f"the request's {self.section.wall_clock_s:g} s are used up (tier {self.tier})"
            raise TimeoutExceeded(problem, retryable=False) from None

    def overspent(self, outcomes: Iterable[SegmentOutcome], routing: int) -> OverloadRejected | None:
        """The error of a request whose models have spent too many tokens, `routing` of them for the decision."""
        limit, spent = self.section.max_tokens, routing
        for outcome in outcomes:
            usage = (outcome.result or {}).get("usage")
            tokens = usage.get("tokens") if isinstance(usage, dict) else None
            spent += tokens if type(tokens) is int else 0
        if limit is None or spent <= limit:
            return None
        problem = f"the request's {limit} tokens are used up: {spent} were spent (tier {self.tier})"
        return OverloadRejected(problem, retryable=False)


class Targets(Protocol):
    async def target(self, name: str) -> RegisteredButler | None:
        """What is known of a butler now; None: it never registered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatcher:
    transport: Transport
    timeout_of: Callable[[str], float]  # seconds a butler may take
    retry: RetryPolicy
    circuits: Circuits
    targets: Targets
    clock: Clock
    telemetry: Telemetry

    async def send(
        self, message: ClaimedMessage, segment: Segment, *, router: Router, mode: FanoutMode, budget: RequestBudget
    ) -> SegmentOutcome:
        """Bring one segment to its end."""
        started, butler = self.clock.monotonic(), segment.butler
        self.telemetry.count(SUBROUTE_DISPATCHED, target_butler=butler, router=router, fanout_mode=mode)
        with self.telemetry.span(
            DISPATCH,
            request_id=message.context.request_id,
            parent=message.context.trace_context,
            target_butler=butler,
            segment_id=segment.segment_id,
        ):
            envelope = _envelope(message, segment, mode, self.telemetry.inject())
            outcome = SegmentOutcome(segment=segment, subrequest_id=envelope.subrequest.subrequest_id, fanout_mode=mode)
            target = await self.targets.target(butler)
            if (error := unfit(butler, target, by_policy=router == "policy")) is not None:
                outcome = replace(outcome, error=error)
            else:
                outcome = await self._call_with_retries(envelope, outcome, budget)
        outcome = replace(outcome, duration_ms=int((self.clock.monotonic() - started) * 1000))
        label, error_class = ("error", outcome.error.error_class.value) if outcome.error else ("ok", None)
        self.telemetry.count(SUBROUTE_RESULT, target_butler=butler, outcome=label, error_class=error_class)
        self.telemetry.observe(SUBROUTE_LATENCY, outcome.duration_ms, target_butler=butler, outcome=label)
        return outcome

    async def _call_with_retries(
        self, envelope: RouteEnvelope, untried: SegmentOutcome, budget: RequestBudget
    ) -> SegmentOutcome:
        butler, outcome = untried.segment.butler, untried
        while True:
            last = f"; the last try: {outcome.error.message}" if outcome.error else ""
            if budget.time_left(self.clock.monotonic()) == 0.0:
                return replace(outcome, error=_time_used_up(butler, last))
            if budget.calls >= budget.section.max_invocations:
                problem = f"the request's calls were used up before {butler} was done{last}"
                return replace(outcome, error=OverloadRejected(problem, retryable=False))
            budget.calls += 1
            attempts = outcome.attempts + 1
            outcome = await self._call(envelope, replace(untried, attempts=attempts), budget)
            if outcome.error is None:
                return outcome
            delay = _delay(replace(self.retry, max_attempts=budget.section.attempts), outcome.error, attempts)
            if delay is None:
                return outcome
            left = budget.time_left(self.clock.monotonic())
            if left is not None and left <= delay:
                return replace(outcome, error=_time_used_up(butler, f"; the last try: {outcome.error.message}"))
            log.warning("route failed, trying again", request_id=envelope.request_context.request_id, attempt=attempts)
            await self.clock.sleep(delay)

    async def _call(self, envelope: RouteEnvelope, outcome: SegmentOutcome, budget: RequestBudget) -> SegmentOutcome:
        """One call through the circuit."""
        butler = outcome.segment.butler
        try:
            generation = self.circuits.admit(butler)
        except CircuitOpenError as error:
            return replace(outcome, error=error)
        try:
            raw = await self._transported(envelope, budget)
        except ClassifiedError as error:
            if isinstance(error, TargetUnavailable | TimeoutExceeded) and error.retryable:
                self.circuits.silent(butler, generation, error.message)
            else:
                self.circuits.given_up(butler, generation)
            return replace(outcome, error=error)
        except BaseException:
            self.circuits.given_up(butler, generation)
            raise
        self.circuits.answered(butler, generation)
        return read_response(raw, outcome, envelope.request_context.request_id)

    async def _transported(self, envelope: RouteEnvelope, budget: RequestBudget) -> Mapping[str, Any]:
        butler, left = envelope.target.butler, budget.time_left(self.clock.monotonic())
        own_s = budget.section.route_timeout_s
        timeout_s = self.timeout_of(butler) if own_s is None else own_s
        if left is not None:
            timeout_s = min(timeout_s, left)
        try:
            async with asyncio.timeout(timeout_s):
                return await self.transport.call(butler, envelope.target.tool, envelope.to_wire())
        except TimeoutError:
            if budget.time_left(self.clock.monotonic()) == 0.0:
                raise _time_used_up(butler) from None
            raise TimeoutExceeded(f"{butler} gave no answer within {timeout_s:g} s") from None
        except InternalError as error:
            # The call came through and what came back is no envelope at all: trying again brings the same.
            raise TargetUnavailable(f"{butler} gave no valid answer: {error.message}", retryable=False) from error
        except ClassifiedError:
            raise
        except Exception as error:
            raise TargetUnavailable(f"{butler} could not be reached ({type(error).__name__})") from error


def unfit(butler: str, target: RegisteredButler | None, *, by_policy: bool) -> ClassifiedError | None:
    """Why this butler cannot be handed a route; `by_policy`: a rule names it, whatever its signs of life say."""
    if target is None:
        return TargetUnavailable(f"{butler} is not registered")
    if TOOL not in target.capabilities:
        return invalid("target.butler", f"{butler} does not offer {TOOL}")
    contracts = (target.route_contract_min, RouteEnvelope.VERSION, target.route_contract_max)
    versions = [int(found[1]) for contract in contracts if (found := _CONTRACT.fullmatch(contract))]
    if len(versions) < len(contracts) or versions != sorted(versions):
        spoken = f"{target.route_contract_min} to {target.route_contract_max}"
        return invalid("schema_version", f"{butler} speaks {spoken}, not {RouteEnvelope.VERSION}")
    if target.held:
        return TargetUnavailable(f"{butler} is held by an operator")
    if target.eligibility_state != "active" and not by_policy:
        return TargetUnavailable(f"{butler} is {target.eligibility_state}")
    return None


def _envelope(
    message: ClaimedMessage, segment: Segment, mode: FanoutMode, trace_context: dict[str, str]
) -> RouteEnvelope:
    """The request's own context, unchanged; what belongs to this part stands beside it."""
    context = message.context
    return RouteEnvelope(
        request_context=context,
        input=RouteInput(
            prompt=message.text[segment.start : segment.end],
            attachments=[Attachment.model_validate(item) for item in message.attachments] or None,
        ),
        subrequest=Subrequest(
            subrequest_id=subrequest_id(context.request_id, segment),
            segment_id=segment.segment_id,
            fanout_mode=mode,
        ),
        target=Target(butler=segment.butler),
        trace_context=trace_context,
    )


def _delay(policy: RetryPolicy, error: ClassifiedError, attempt: int) -> float | None:
    """Seconds until the next try; None when there is none from here."""
    if isinstance(error, CircuitOpenError) or (error.retry_after or 0.0) > policy.max_delay:
        return None  # what is possible only later waits in the buffer and occupies no worker
    decision = next_retry(
        policy,
        attempt=attempt,
        retryable=error.retryable,
        retry_after=error.retry_after,
        random=random.random(),  # noqa: S311 - jitter, not a secret
    )
    return decision.delay if isinstance(decision, RetryAfter) else None


def _time_used_up(butler: str, last: str = "") -> TimeoutExceeded:
    """Final: waiting in the buffer gives the request no more time."""
    return TimeoutExceeded(f"the request's time was used up before {butler} was done{last}", retryable=False)


class Circuits:
    """One circuit breaker per butler."""

    def __init__(self, *, policy: BreakerPolicy, clock: Clock, telemetry: Telemetry) -> None:
        self._policy = policy
        self._clock = clock
        self._telemetry = telemetry
        self._breakers: defaultdict[str, Breaker] = defaultdict(Breaker)
        self._telemetry.gauge(CIRCUIT_OPEN_TARGETS, 0)

    def admit(self, butler: str) -> int:
        """The generation to report the result with, or `CircuitOpenError` with the time until a probe is possible."""
        admission, breaker = circuit_breaker.admit(self._breakers[butler], self._policy, self._clock.now())
        self._move(butler, breaker)
        if isinstance(admission, Rejected):
            raise CircuitOpenError(
                f"{butler} did not answer several times and is left alone for now", retry_after=admission.retry_after
            )
        return admission.generation

    def answered(self, butler: str, generation: int) -> None:
        breaker = self._breakers[butler]
        self._move(butler, circuit_breaker.record_success(breaker, self._policy, generation=generation))

    def silent(self, butler: str, generation: int, reason: str) -> None:
        """No answer came."""
        breaker, now = self._breakers[butler], self._clock.now()
        failed = circuit_breaker.record_failure(breaker, self._policy, generation=generation, reason=reason, now=now)
        self._move(butler, failed)

    def given_up(self, butler: str, generation: int) -> None:
        """The dispatcher stopped waiting for a reason that says nothing about the target."""
        self._move(butler, circuit_breaker.record_ignored(self._breakers[butler], generation=generation))

    def reset(self, butler: str) -> None:
        """The butler has just registered, so it is there."""
        self._move(butler, Breaker(generation=self._breakers[butler].generation + 1))

    def states(self) -> dict[str, BreakerSnapshot]:
        now = self._clock.now()
        return {
            name: circuit_breaker.snapshot(breaker, self._policy, now)
            for name, breaker in sorted(self._breakers.items())
        }

    def _move(self, butler: str, breaker: Breaker) -> None:
        before, self._breakers[butler] = self._breakers[butler].state, breaker
        if breaker.state is before:
            return
        self._telemetry.count(CIRCUIT_TRANSITION, target_butler=butler, circuit_state=breaker.state.value)
        count = sum(1 for each in self._breakers.values() if each.state is not BreakerState.CLOSED)
        self._telemetry.gauge(CIRCUIT_OPEN_TARGETS, count)
        circuits_log.warning(
            "circuit changed", target_butler=butler, status=breaker.state.value, reason=breaker.trip_reason
        )
