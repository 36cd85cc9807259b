"""Sending a decision to its butlers and reading what comes back.

Delivery is at least once: a segment may be dispatched again after a crash or a lost answer, always with the same
`request_id`, `segment_id` and `subrequest_id`, and the butler answers a repeat from its own record.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid5

from butlers.butler.transport import Transport
from butlers.clock import Clock
from butlers.contracts.ingest import Attachment
from butlers.contracts.route import RouteEnvelope, RouteInput, RouteResponse, Subrequest, Target
from butlers.errors import ClassifiedError, TargetUnavailable, TimeoutExceeded, ValidationError, from_wire
from butlers.reliability.retry import RetryAfter, RetryPolicy, next_retry
from butlers.switchboard.inbox import ClaimedMessage
from butlers.switchboard.routing.decision import Segment
from butlers.telemetry import Telemetry, get_logger
from butlers.telemetry.catalogue import SUBROUTE_DISPATCHED, SUBROUTE_LATENCY, SUBROUTE_RESULT
from butlers.telemetry.spans import DISPATCH

log = get_logger("butlers.dispatch")


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentOutcome:
    """How one segment ended."""

    segment: Segment
    duration_ms: int
    attempts: int
    result: Mapping[str, Any] | None = None
    error: ClassifiedError | None = None
    raw_response: Mapping[str, Any] | None = None  # as the butler sent it, for the audit

    @property
    def worth_repeating(self) -> bool:
        """Nobody answered, so nobody has seen it or a record answers the repeat; or it was said when to ask again."""
        if self.error is None or not self.error.retryable:
            return False
        return self.raw_response is None or self.error.retry_after is not None

    def to_wire(self) -> dict[str, Any]:
        return {
            "segment_id": self.segment.segment_id,
            "target_butler": self.segment.butler,
            "success": self.error is None,
            "duration_ms": self.duration_ms,
            "attempts": self.attempts,
            "result": self.result,
            "error": self.error.describe() if self.error else None,
            "raw_response": self.raw_response if self.error else None,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatcher:
    transport: Transport
    timeout_of: Callable[[str], float]  # seconds a butler may take
    retry: RetryPolicy
    clock: Clock
    telemetry: Telemetry

    async def dispatch(self, message: ClaimedMessage, segments: Sequence[Segment], router: str) -> list[SegmentOutcome]:
        """All segments, side by side."""
        return list(await asyncio.gather(*(self._segment(message, segment, router) for segment in segments)))

    async def _segment(self, message: ClaimedMessage, segment: Segment, router: str) -> SegmentOutcome:
        started = self.clock.monotonic()
        self.telemetry.count(SUBROUTE_DISPATCHED, target_butler=segment.butler, router=router, fanout_mode="parallel")
        with self.telemetry.span(
            DISPATCH,
            request_id=message.context.request_id,
            parent=message.context.trace_context,
            target_butler=segment.butler,
            segment_id=segment.segment_id,
        ):
            outcome = await self._with_retries(message, segment, started)
        self._observe(outcome)
        return outcome

    async def _with_retries(self, message: ClaimedMessage, segment: Segment, started: float) -> SegmentOutcome:
        envelope = _envelope(message, segment, self.telemetry.inject())
        attempt = 0
        while True:
            attempt += 1
            raw: Mapping[str, Any] | None = None
            try:
                raw = await self._call(segment.butler, envelope)
                result = result_of(parse_response(raw, envelope.request_context.request_id))
                return SegmentOutcome(
                    segment=segment, duration_ms=self._since(started), attempts=attempt, result=result
                )
            except ClassifiedError as error:
                decision = next_retry(
                    self.retry,
                    attempt=attempt,
                    retryable=error.retryable,
                    retry_after=error.retry_after,
                    random=random.random(),  # noqa: S311 - jitter, not a secret
                )
                if not isinstance(decision, RetryAfter) or (error.retry_after or 0.0) > self.retry.max_delay:
                    # What is possible only later waits in the buffer, not in a worker's hand.
                    return SegmentOutcome(
                        segment=segment,
                        duration_ms=self._since(started),
                        attempts=attempt,
                        error=error,
                        raw_response=raw,
                    )
                log.warning("route failed, trying again", request_id=message.context.request_id, attempt=attempt)
                await self.clock.sleep(decision.delay)

    async def _call(self, butler: str, envelope: RouteEnvelope) -> Mapping[str, Any]:
        timeout_s = self.timeout_of(butler)
        try:
            async with asyncio.timeout(timeout_s):
                return await self.transport.call(butler, "route.execute", envelope.to_wire())
        except TimeoutError:
            raise TimeoutExceeded(f"{butler} gave no answer within {timeout_s:g} s") from None
        except ClassifiedError:
            raise
        except Exception as error:
            raise TargetUnavailable(f"{butler} could not be reached ({type(error).__name__})") from error

    def _since(self, started: float) -> int:
        return int((self.clock.monotonic() - started) * 1000)

    def _observe(self, outcome: SegmentOutcome) -> None:
        label = "ok" if outcome.error is None else "error"
        error_class = outcome.error.error_class.value if outcome.error else None
        butler = outcome.segment.butler
        self.telemetry.count(SUBROUTE_RESULT, target_butler=butler, outcome=label, error_class=error_class)
        self.telemetry.observe(SUBROUTE_LATENCY, outcome.duration_ms, target_butler=butler, outcome=label)


def parse_response(raw: Mapping[str, Any], request_id: UUID) -> RouteResponse:
    """A route_response.v1 that answers this request."""
    response = RouteResponse.parse(raw)
    if response.request_context is not None and response.request_context.request_id != request_id:
        raise ValidationError("the response belongs to another request")
    return response


def result_of(response: RouteResponse) -> Mapping[str, Any]:
    """What a response brings, or the error it carries."""
    if response.error is not None:
        error = response.error
        raise from_wire(
            error.error_class, error.message, retryable=error.retryable, retry_after=error.retry_after_seconds
        )
    return response.result or {}


def _envelope(message: ClaimedMessage, segment: Segment, trace_context: dict[str, str]) -> RouteEnvelope:
    context = message.context
    return RouteEnvelope(
        request_context=context,
        input=RouteInput(
            prompt=message.text[segment.start : segment.end],
            attachments=[Attachment.model_validate(item) for item in message.attachments] or None,
        ),
        subrequest=Subrequest(
            subrequest_id=uuid5(context.request_id, segment.segment_id), segment_id=segment.segment_id
        ),
        target=Target(butler=segment.butler),
        trace_context=trace_context,
    )
