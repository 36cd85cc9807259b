"""Butlers that do as they are told, and a fanout that calls them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from butlers.clock import SystemClock
from butlers.contracts.envelope import RequestContext
from butlers.reliability.circuit_breaker import BreakerPolicy
from butlers.reliability.retry import RetryPolicy
from butlers.storage.claims import Claim
from butlers.switchboard.config import TierSection
from butlers.switchboard.dispatch.dispatcher import Circuits, Dispatcher, RequestBudget
from butlers.switchboard.dispatch.fanout import Fanout, FanoutResult
from butlers.switchboard.dispatch.plan import FanoutPlan, SegmentOutcome
from butlers.switchboard.registry import RegisteredButler
from butlers.switchboard.requests.inbox import ClaimedMessage, MessageRef
from butlers.telemetry.telemetry import Telemetry
from tests.unit.switchboard.fanout.parts import REQUEST, node, plan

NOW = datetime(2026, 1, 1, tzinfo=UTC)
Act = Callable[[Mapping[str, Any]], Any]


def answer(**result: Any) -> Act:
    def act(_arguments: Mapping[str, Any]) -> dict[str, Any]:
        return response(result={"answer": "yes"} | result)

    return act


def response(**fields: Any) -> dict[str, Any]:
    return {
        "schema_version": "route_response.v1",
        "request_context": {"request_id": str(REQUEST)},
        "status": "ok",
        "timing": {"duration_ms": 7},
    } | fields


def error(error_class: str, **fields: Any) -> Act:
    described = {"class": error_class, "message": "no", "retryable": False} | fields

    def act(_arguments: Mapping[str, Any]) -> dict[str, Any]:
        return response(status="error", error=described)

    return act


def raising(problem: Exception) -> Act:
    def act(_arguments: Mapping[str, Any]) -> dict[str, Any]:
        raise problem

    return act


@dataclass
class ScriptedButlers:
    """Butlers that answer as told, one deed after the other; the last one for ever."""

    deeds: dict[str, list[Act]] = field(default_factory=dict)
    calls: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)
    running: list[frozenset[str]] = field(default_factory=list)  # who was being called when each call began
    hold: dict[str, asyncio.Event] = field(default_factory=dict)
    cards: dict[str, RegisteredButler] = field(default_factory=dict)
    _now: set[str] = field(default_factory=set)

    def answers(self, butler: str, *deeds: Act) -> ScriptedButlers:
        self.deeds[butler] = list(deeds)
        return self

    @property
    def called(self) -> list[str]:
        return [butler for butler, _ in self.calls]

    async def call(self, butler: str, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        assert tool == "route.execute"
        self.calls.append((butler, arguments))
        self.running.append(frozenset(self._now))
        self._now.add(butler)
        try:
            await asyncio.sleep(0)
            if butler in self.hold:
                await self.hold[butler].wait()
            deeds = self.deeds.get(butler) or [answer()]
            deed = deeds.pop(0) if len(deeds) > 1 else deeds[0]
            done: dict[str, Any] = deed(arguments)
            return done
        finally:
            self._now.discard(butler)

    async def close(self) -> None:
        """Nothing is open."""

    async def target(self, name: str) -> RegisteredButler | None:
        return self.cards.get(name) or card(name)


def card(butler: str, **fields: Any) -> RegisteredButler:
    defaults: dict[str, Any] = {
        "eligibility_state": "active",
        "capabilities": ("route.execute",),
    }
    return RegisteredButler(name=butler, **defaults | fields)


def allowing(*, deadline: float | None = None, **section: Any) -> RequestBudget:
    """A request's budget."""
    return RequestBudget(section=TierSection(**section), deadline=deadline)


@dataclass
class Bench:
    butlers: ScriptedButlers
    fanout: Fanout
    circuits: Circuits
    telemetry: Telemetry

    async def run(self, of: FanoutPlan, *, budget: RequestBudget | None = None, **more: Any) -> FanoutResult:
        more = {"router": "local"} | more
        return await self.fanout.run(message(), of, budget=budget or allowing(), **more)


def new_bench() -> Bench:
    clock, butlers = SystemClock(), ScriptedButlers()
    telemetry = Telemetry.create("switchboard", "test", clock=clock, otlp_endpoint=None)
    circuits = Circuits(
        policy=BreakerPolicy(failure_threshold=3, recovery_timeout=60), clock=clock, telemetry=telemetry
    )
    dispatcher = Dispatcher(
        transport=butlers,
        timeout_of=lambda _butler: 5.0,
        retry=RetryPolicy(max_attempts=3, initial_delay=0.001, max_delay=0.01),
        circuits=circuits,
        targets=butlers,
        clock=clock,
        telemetry=telemetry,
    )
    return Bench(butlers=butlers, fanout=Fanout(dispatcher=dispatcher), circuits=circuits, telemetry=telemetry)


def message() -> ClaimedMessage:
    context = RequestContext(
        request_id=REQUEST,
        received_at=NOW,
        source_channel="api",
        source_endpoint_identity="tests",
        source_sender_identity="tester",
        source_thread_identity="thread",
    )
    ref = MessageRef(request_id=REQUEST, received_at=NOW, policy_tier="default")
    return ClaimedMessage(
        ref=ref,
        claim=Claim(key=(REQUEST, NOW), token=uuid4()),
        context=context,
        text="pay and book",
        attachments=[],
        pinned_target=None,
        routing_output=None,
        attempts=1,
    )


def ends(result: FanoutResult) -> dict[str, str]:
    def end(outcome: SegmentOutcome) -> str:
        if outcome.skipped is not None:
            return "skipped"
        return outcome.error.error_class.value if outcome.error else "ok"

    return {outcome.segment.segment_id: end(outcome) for outcome in result.outcomes}


TWO = plan(node(1, "finance"), node(2, "travel"))
