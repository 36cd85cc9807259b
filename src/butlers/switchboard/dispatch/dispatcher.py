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
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
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
from butlers.storage.database import Database
from butlers.storage.queries import Queries
from butlers.switchboard.dispatch.outcome import Reply, SegmentOutcome, read_reply, subrequest_id
from butlers.switchboard.requests.inbox import ClaimedMessage
from butlers.switchboard.routing.decision import Router, Segment
from butlers.telemetry import Telemetry, get_logger
from butlers.telemetry.catalogue import (
    CIRCUIT_OPEN_TARGETS,
    CIRCUIT_TRANSITION,
    SUBROUTE_DISPATCHED,
    SUBROUTE_LATENCY,
    SUBROUTE_RESULT,
)
from butlers.telemetry.spans import DISPATCH

TOOL = "route.execute"
_CONTRACT = re.compile(r"route\.v(\d{1,6})")


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetCard:
    """A line of the registry, as far as a dispatch needs it."""

    name: str
    eligibility_state: str
    held: bool  # an operator took it out of service
    capabilities: tuple[str, ...]
    route_contract_min: str
    route_contract_max: str


class Targets(Protocol):
    async def card_of(self, butler: str) -> TargetCard | None:
        """What is known of a butler now; None: it never registered."""


class TargetReader:
    def __init__(self, *, database: Database, schema: str) -> None:
        self._database = database
        self._queries = Queries.load("butlers.switchboard.dispatch", schema=schema)

    async def card_of(self, butler: str) -> TargetCard | None:
        row = await self._database.fetchrow(self._queries.target_card, butler)
        if row is None:
            return None
        return TargetCard(**dict(row) | {"capabilities": tuple(row["capabilities"])})


def unfit(butler: str, card: TargetCard | None, *, by_policy: bool) -> ClassifiedError | None:
    """Why this butler cannot be handed a route; `by_policy`: a rule names it, whatever its signs of life say."""
    if card is None:
        return TargetUnavailable(f"{butler} is not registered")
    if TOOL not in card.capabilities:
        return invalid("target.butler", f"{butler} does not offer {TOOL}")
    spoken = f"{card.route_contract_min} to {card.route_contract_max}"
    if not _speaks(card):
        return invalid("schema_version", f"{butler} speaks {spoken}, not {RouteEnvelope.VERSION}")
    if card.held:
        return TargetUnavailable(f"{butler} is held by an operator")
    if card.eligibility_state != "active" and not by_policy:
        return TargetUnavailable(f"{butler} is {card.eligibility_state}")
    return None


def _speaks(card: TargetCard) -> bool:
    lowest, ours, highest = map(_number, (card.route_contract_min, RouteEnvelope.VERSION, card.route_contract_max))
    return lowest is not None and ours is not None and highest is not None and lowest <= ours <= highest


def _number(contract: str) -> int | None:
    match = _CONTRACT.fullmatch(contract)
    return int(match[1]) if match else None


log = get_logger("butlers.dispatch")


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
        self, message: ClaimedMessage, segment: Segment, *, router: Router, mode: FanoutMode, limits: DispatchLimits
    ) -> SegmentOutcome:
        """One segment, to its end."""
        started = self.clock.monotonic()
        self.telemetry.count(SUBROUTE_DISPATCHED, target_butler=segment.butler, router=router, fanout_mode=mode)
        with self.telemetry.span(
            DISPATCH,
            request_id=message.context.request_id,
            parent=message.context.trace_context,
            target_butler=segment.butler,
            segment_id=segment.segment_id,
        ):
            envelope = _envelope(message, segment, mode, self.telemetry.inject())
            card = await self.targets.card_of(segment.butler)
            error = unfit(segment.butler, card, by_policy=router == "policy")
            reply = Reply(error=error) if error else await self._with_retries(envelope, limits)
        outcome = SegmentOutcome(
            segment=segment,
            subrequest_id=envelope.subrequest.subrequest_id,
            fanout_mode=mode,
            duration_ms=int((self.clock.monotonic() - started) * 1000),
            attempts=reply.attempts,
            result=reply.result,
            target_ms=reply.target_ms,
            error=reply.error,
            original_class=reply.original_class,
            raw_response=reply.raw,
        )
        self._observe(outcome)
        return outcome

    async def _with_retries(self, envelope: RouteEnvelope, limits: DispatchLimits) -> Reply:
        policy, attempt, last = replace(self.retry, max_attempts=limits.attempts), 0, Reply()
        while True:
            if (end := self._used_up(envelope, limits, last)) is not None:
                return end
            attempt += 1
            last = replace(await self._call(envelope, limits), attempts=attempt)
            delay = _delay(policy, last.error, attempt)
            if delay is None:
                return last
            left = limits.time_left(self.clock.monotonic())
            if left is not None and left <= delay:
                return replace(last, error=time_used_up(envelope.target.butler, _words(last.error)))
            log.warning("route failed, trying again", request_id=envelope.request_context.request_id, attempt=attempt)
            await self.clock.sleep(delay)

    def _used_up(self, envelope: RouteEnvelope, limits: DispatchLimits, last: Reply) -> Reply | None:
        butler = envelope.target.butler
        if limits.time_left(self.clock.monotonic()) == 0.0:
            return replace(last, error=time_used_up(butler, _words(last.error)))
        if not limits.invocations.take():
            return replace(last, error=calls_used_up(butler, _words(last.error)))
        return None

    async def _call(self, envelope: RouteEnvelope, limits: DispatchLimits) -> Reply:
        """One call through the circuit."""
        butler = envelope.target.butler
        try:
            generation = self.circuits.admit(butler)
        except CircuitOpenError as error:
            return Reply(error=error)
        try:
            raw = await self._transported(envelope, limits)
        except ClassifiedError as error:
            self._silent(butler, generation, error)
            return Reply(error=error)
        except BaseException:
            self.circuits.given_up(butler, generation)
            raise
        self.circuits.answered(butler, generation)
        return read_reply(raw, envelope)

    def _silent(self, butler: str, generation: int, error: ClassifiedError) -> None:
        if isinstance(error, TargetUnavailable | TimeoutExceeded) and error.retryable:
            self.circuits.silent(butler, generation, error.message)
        else:
            self.circuits.given_up(butler, generation)

    async def _transported(self, envelope: RouteEnvelope, limits: DispatchLimits) -> Mapping[str, Any]:
        butler, now = envelope.target.butler, self.clock.monotonic()
        own_s = self.timeout_of(butler)
        timeout_s = limits.timeout_of_call(own_s, now)
        try:
            async with asyncio.timeout(timeout_s):
                return await self.transport.call(butler, envelope.target.tool, envelope.to_wire())
        except TimeoutError:
            if limits.time_left(self.clock.monotonic()) == 0.0:
                raise time_used_up(butler) from None
            raise TimeoutExceeded(f"{butler} gave no answer within {timeout_s:g} s") from None
        except InternalError as error:
            # The call came through and what came back is no envelope at all: trying again brings the same.
            raise TargetUnavailable(f"{butler} gave no valid answer: {error.message}", retryable=False) from error
        except ClassifiedError:
            raise
        except Exception as error:
            raise TargetUnavailable(f"{butler} could not be reached ({type(error).__name__})") from error

    def _observe(self, outcome: SegmentOutcome) -> None:
        label = "ok" if outcome.error is None else "error"
        error_class = outcome.error.error_class.value if outcome.error else None
        butler = outcome.segment.butler
        self.telemetry.count(SUBROUTE_RESULT, target_butler=butler, outcome=label, error_class=error_class)
        self.telemetry.observe(SUBROUTE_LATENCY, outcome.duration_ms, target_butler=butler, outcome=label)


def _delay(policy: RetryPolicy, error: ClassifiedError | None, attempt: int) -> float | None:
    """Seconds until the next try; None when there is none from here."""
    if error is None or isinstance(error, CircuitOpenError) or (error.retry_after or 0.0) > policy.max_delay:
        return None  # what is possible only later waits in the buffer, not in a worker's hand
    decision = next_retry(
        policy,
        attempt=attempt,
        retryable=error.retryable,
        retry_after=error.retry_after,
        random=random.random(),  # noqa: S311 - jitter, not a secret
    )
    return decision.delay if isinstance(decision, RetryAfter) else None


def _words(error: ClassifiedError | None) -> str | None:
    return error.message if error else None


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


@dataclass(slots=True)
class Invocations:
    """A request's calls of butlers and models; everybody who works on the request takes from the same count."""

    left: int = sys.maxsize

    def take(self) -> bool:
        """One call more, or false when there is none left."""
        if self.left <= 0:
            return False
        self.left -= 1
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchLimits:
    deadline: float | None = None  # on the monotonic clock; None: no limit
    invocations: Invocations = field(default_factory=Invocations)
    attempts: int = 3  # calls of one target, the first included
    route_timeout_s: float | None = None  # for one call; None: the butler's own

    def time_left(self, monotonic: float) -> float | None:
        """Seconds until the deadline, never negative; None without one."""
        return None if self.deadline is None else max(0.0, self.deadline - monotonic)

    def timeout_of_call(self, own_s: float, monotonic: float) -> float:
        """Seconds that the next call may take."""
        wanted = self.route_timeout_s if self.route_timeout_s is not None else own_s
        left = self.time_left(monotonic)
        return wanted if left is None else min(wanted, left)


def time_used_up(butler: str, last: str | None = None) -> TimeoutExceeded:
    """Final: waiting in the buffer gives the request no more time."""
    after = f"; the last try: {last}" if last else ""
    return TimeoutExceeded(f"the request's time was used up before {butler} was done{after}", retryable=False)


def calls_used_up(butler: str, last: str | None = None) -> OverloadRejected:
    after = f"; the last try: {last}" if last else ""
    return OverloadRejected(f"the request's calls were used up before {butler} was done{after}", retryable=False)


class Circuits:
    def __init__(self, *, policy: BreakerPolicy, clock: Clock, telemetry: Telemetry) -> None:
        self._policy = policy
        self._clock = clock
        self._telemetry = telemetry
        self._breakers: dict[str, Breaker] = {}
        self._count_open()

    def admit(self, butler: str) -> int:
        """The generation to report the result with, or `CircuitOpenError` with the time until a probe is possible."""
        admission, breaker = circuit_breaker.admit(self._of(butler), self._policy, self._clock.now())
        self._move(butler, breaker)
        if isinstance(admission, Rejected):
            raise CircuitOpenError(
                f"{butler} did not answer several times and is left alone for now", retry_after=admission.retry_after
            )
        return admission.generation

    def answered(self, butler: str, generation: int) -> None:
        self._move(butler, circuit_breaker.record_success(self._of(butler), self._policy, generation=generation))

    def silent(self, butler: str, generation: int, reason: str) -> None:
        """No answer came."""
        now = self._clock.now()
        failed = circuit_breaker.record_failure(
            self._of(butler), self._policy, generation=generation, reason=reason, now=now
        )
        self._move(butler, failed)

    def given_up(self, butler: str, generation: int) -> None:
        """We stopped waiting for a reason of our own, which says nothing about the target."""
        self._move(butler, circuit_breaker.record_ignored(self._of(butler), generation=generation))

    def reset(self, butler: str) -> None:
        """It has just registered, so it is there."""
        old = self._of(butler)
        self._move(butler, Breaker(generation=old.generation + 1))

    def states(self) -> dict[str, BreakerSnapshot]:
        now = self._clock.now()
        return {
            name: circuit_breaker.snapshot(breaker, self._policy, now)
            for name, breaker in sorted(self._breakers.items())
        }

    def _of(self, butler: str) -> Breaker:
        return self._breakers.get(butler, Breaker())

    def _move(self, butler: str, breaker: Breaker) -> None:
        before = self._of(butler).state
        self._breakers[butler] = breaker
        if breaker.state is before:
            return
        self._telemetry.count(CIRCUIT_TRANSITION, target_butler=butler, circuit_state=breaker.state.value)
        self._count_open()
        log.warning("circuit changed", target_butler=butler, status=breaker.state.value, reason=breaker.trip_reason)

    def _count_open(self) -> None:
        count = sum(1 for breaker in self._breakers.values() if breaker.state is not BreakerState.CLOSED)
        self._telemetry.gauge(CIRCUIT_OPEN_TARGETS, count)
