"""`route.execute`: the door every butler has for routed work.

    parse -> authenticate -> addressed to us? -> handle -> route_response.v1

Nothing is stored and nothing is done before the caller is known. The answer is always a `route_response.v1`,
whatever went wrong.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from butlers.butler.identity import Caller
from butlers.clock import Clock
from butlers.contracts.envelope import invalid
from butlers.contracts.route import ResponseContext, RouteEnvelope, RouteResponse, Timing, WireError
from butlers.errors import ClassifiedError, InternalError
from butlers.telemetry import Telemetry, get_logger
from butlers.telemetry.catalogue import ROUTE_EXECUTED, ROUTE_LATENCY
from butlers.telemetry.spans import ROUTE_EXECUTE

log = get_logger("butlers.route")

RouteHandler = Callable[[RouteEnvelope], Awaitable[dict[str, Any]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteExecutor:
    """Guards one butler's `route.execute` and turns every outcome into a response."""

    butler: str
    trusted_callers: frozenset[str]
    handle: RouteHandler
    clock: Clock
    telemetry: Telemetry

    async def execute(self, caller: Caller | None, raw: Mapping[str, Any]) -> RouteResponse:
        started = self.clock.monotonic()
        request_id: UUID | None = None
        try:
            envelope = RouteEnvelope.parse(raw)
            request_id = envelope.request_context.request_id
            self._authenticate(caller)
            self._check_target(envelope)
            result = await self._traced(envelope)
        except ClassifiedError as error:
            return self._respond(started, request_id, error=error)
        except Exception as error:
            log.error("route failed", error=error, request_id=request_id, butler=self.butler)
            unexpected = InternalError(f"{self.butler} failed unexpectedly ({type(error).__name__})")
            return self._respond(started, request_id, error=unexpected)
        return self._respond(started, request_id, result=result)

    def _authenticate(self, caller: Caller | None) -> None:
        if caller is None:
            raise invalid(
                "authorization", "caller is missing: route.execute needs the bearer token of a trusted caller"
            )
        if caller.name not in self.trusted_callers:
            raise invalid("authorization", f"caller {caller.name!r} is not in trusted_route_callers of {self.butler}")

    def _check_target(self, envelope: RouteEnvelope) -> None:
        if envelope.target.butler != self.butler:
            raise invalid("target.butler", f"is {envelope.target.butler!r}, but this is {self.butler!r}")

    async def _traced(self, envelope: RouteEnvelope) -> dict[str, Any]:
        with self.telemetry.span(
            ROUTE_EXECUTE,
            request_id=envelope.request_context.request_id,
            parent=envelope.trace_context,
            segment_id=envelope.subrequest.segment_id,
        ):
            return await self.handle(envelope)

    def _respond(
        self,
        started: float,
        request_id: UUID | None,
        *,
        result: dict[str, Any] | None = None,
        error: ClassifiedError | None = None,
    ) -> RouteResponse:
        elapsed_ms = (self.clock.monotonic() - started) * 1000
        outcome = error.error_class.value if error else "ok"
        self.telemetry.count(ROUTE_EXECUTED, outcome=outcome)
        self.telemetry.observe(ROUTE_LATENCY, elapsed_ms, outcome=outcome)
        return RouteResponse(
            request_context=ResponseContext(request_id=request_id) if request_id else None,
            status="error" if error else "ok",
            result=error.partial if error else result,
            error=WireError.of(error) if error else None,
            timing=Timing(duration_ms=int(elapsed_ms)),
        )
