"""What is counted and traced of a request's life; these are the service level indicators of seed 003."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

from butlers.channels.registry import reacting_names
from butlers.clock import Clock
from butlers.errors import ClassifiedError
from butlers.switchboard.inbox import ClaimedMessage
from butlers.switchboard.routing.decision import Decision
from butlers.telemetry import Telemetry, get_logger
from butlers.telemetry.catalogue import (
    END_TO_END_LATENCY,
    INFLIGHT_REQUESTS,
    INTERACTIVE_LATENCY,
    REQUEST_FINISHED,
    ROUTING_DECISION_LATENCY,
    ROUTING_FALLBACK,
)
from butlers.telemetry.spans import REQUEST

log = get_logger("butlers.lifecycle")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTelemetry:
    telemetry: Telemetry
    clock: Clock

    def request(self, message: ClaimedMessage) -> AbstractContextManager[Any]:
        return self.telemetry.span(REQUEST, request_id=message.ref.request_id, parent=message.context.trace_context)

    @contextmanager
    def in_hand(self, _message: ClaimedMessage) -> Iterator[None]:
        self.telemetry.count(INFLIGHT_REQUESTS, 1)
        try:
            yield
        finally:
            self.telemetry.count(INFLIGHT_REQUESTS, -1)

    @contextmanager
    def decision(self) -> Iterator[list[Decision]]:
        """Times whoever decides; the decision is put into the list."""
        started, decisions = self.clock.monotonic(), list[Decision]()
        yield decisions
        elapsed = (self.clock.monotonic() - started) * 1000
        for decision in decisions:
            self.telemetry.observe(ROUTING_DECISION_LATENCY, elapsed, router=decision.router)
            if decision.fallback_reason is not None:
                self.telemetry.count(ROUTING_FALLBACK, reason=decision.fallback_reason)

    def finished(self, message: ClaimedMessage, state: str, error: ClassifiedError | None) -> None:
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
        self._waited_for(message, state)
        log.info(
            "request finished",
            request_id=message.context.request_id,
            lifecycle_state=state,
            error_class=error.error_class if error else None,
            duration_ms=int(elapsed),
        )

    def _waited_for(self, message: ClaimedMessage, state: str) -> None:
        """From PROGRESS to the end, where somebody waits."""
        channel = message.context.source_channel
        if message.progress_at is None or not is_interactive(channel, message.ref.policy_tier):
            return
        elapsed = (self.clock.now() - message.progress_at).total_seconds() * 1000
        self.telemetry.observe(INTERACTIVE_LATENCY, elapsed, source_channel=channel, lifecycle_state=state)


def is_interactive(channel: str, policy_tier: str) -> bool:
    return channel in reacting_names() or policy_tier == "interactive"
