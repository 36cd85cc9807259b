"""The way out: a butler's `notify.v1`, verified and handed to Messenger as `route.v1`.

Only Messenger touches channels. Switchboard says who really asked (`authenticated_origin`) and what is being answered
(`source_event`, from its own record of the request), so that neither has to be believed from the payload.

What is put on record is what was known then: `sent`, `failed`, `uncertain` (the provider did not say), `pending`
(Messenger has it) or `unknown` (Messenger did not say). The row names the delivery, which knows what became of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from butlers.butler.identity import Caller
from butlers.butler.toolbox import AnyTool, EnvelopeTool
from butlers.butler.transport import Transport
from butlers.clock import Clock
from butlers.contracts.envelope import RequestContext, invalid
from butlers.contracts.notify import NotifyContext, NotifyEnvelope, NotifyResponse, NotifyResponseContext
from butlers.contracts.route import RouteEnvelope, RouteInput, Subrequest, Target, WireError
from butlers.errors import ClassifiedError, InternalError, OverloadRejected, TargetUnavailable, TimeoutExceeded
from butlers.operations.operation import SENDS, Role
from butlers.storage.database import Database
from butlers.storage.queries import Queries
from butlers.switchboard.dispatch.plan import own_error, parse_response
from butlers.switchboard.requests.inbox import LineageReader
from butlers.telemetry import get_logger
from butlers.telemetry.telemetry import Telemetry

log = get_logger("butlers.notify")

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 4.0
PROMPT = "Execute outbound delivery request through Messenger."
_STATUS_ON_RECORD = {  # of a delivery; any other is `pending`
    "delivered": "sent",
    "failed": "failed",
    "dead_lettered": "failed",
    "expired": "failed",
    "uncertain": "uncertain",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifyDispatcher:
    transport: Transport
    database: Database
    queries: Queries
    lineage: LineageReader
    clock: Clock
    new_id: Callable[[], UUID]
    telemetry: Telemetry
    timeout_s: float
    patience_s: float  # how long a keyed message waits for a Messenger that is away

    def tools(self) -> list[AnyTool]:
        return [
            EnvelopeTool(
                name="notify.dispatch",
                description="Hand an outbound message (notify.v1) to Messenger in the calling butler's name.",
                arguments=NotifyEnvelope,
                returns=NotifyResponse,
                hints=SENDS,
                call=self._handle,
                roles=frozenset({Role.BUTLER}),
            )
        ]

    async def _handle(self, caller: Caller | None, raw: dict[str, Any]) -> dict[str, Any]:
        return (await self.dispatch(caller, raw)).to_wire()

    async def dispatch(self, caller: Caller | None, raw: Mapping[str, Any]) -> NotifyResponse:
        try:
            notify = NotifyEnvelope.parse(raw)
            if caller is None or caller.role is not Role.BUTLER:
                raise invalid("authorization", "only butlers may ask for a delivery")
            if caller.name != notify.origin_butler:
                raise invalid("origin_butler", f"is not the caller, who is {caller.name!r}")
        except ClassifiedError as error:
            return _refused(None, error)
        unanswered = False  # Messenger may have taken the last call on all the same
        try:
            known = await self.lineage.of(notify.request_id) if notify.request_id is not None else None
            notify = notify.on_record(NotifyContext.answering(known.context) if known else None)
            response = await self._deliver_patiently(notify, known.source_event if known else None)
        except _Unanswered as lost:
            unanswered, response = True, _refused(notify.request_id, lost.error)
        except ClassifiedError as error:
            response = _refused(notify.request_id, error)
        await self._record(notify, response, unanswered=unanswered)
        return response

    async def _deliver_patiently(self, notify: NotifyEnvelope, event: Mapping[str, Any] | None) -> NotifyResponse:
        """Messenger may be restarting, or its budget used up for the moment, and then it says for how long.

        Only what is keyed is asked for again: a lost answer must not send twice.
        """
        keyed = notify.idempotency_key is not None or notify.request_id is not None
        deadline, pause = self.clock.monotonic() + self.patience_s, FIRST_PAUSE_S
        while True:
            try:
                return await self._deliver(notify, event)
            except (_Unanswered, TargetUnavailable, OverloadRejected) as failure:
                error = failure.error if isinstance(failure, _Unanswered) else failure
                wait = max(pause, error.retry_after or 0.0)
                passing = isinstance(error, TargetUnavailable | OverloadRejected) and error.retryable
                if not (keyed and passing):
                    raise
                if self.clock.monotonic() + wait > deadline:
                    error.retry_after = wait  # the caller may wait longer than this process does
                    raise
                log.warning(
                    "messenger cannot now, trying again", request_id=notify.request_id, reason=error.error_class
                )
                await self.clock.sleep(wait)
                pause = min(pause * 2, LONGEST_PAUSE_S)

    async def _deliver(self, notify: NotifyEnvelope, event: Mapping[str, Any] | None) -> NotifyResponse:
        envelope = self._envelope(notify, event)
        try:
            async with asyncio.timeout(self.timeout_s):
                raw = await self.transport.call("messenger", "route.execute", envelope.to_wire())
        except TimeoutError:
            raise _Unanswered(TimeoutExceeded(f"messenger gave no answer within {self.timeout_s:g} s")) from None
        except (TargetUnavailable, TimeoutExceeded, InternalError) as error:
            raise _Unanswered(error) from error
        route_response = parse_response(raw, envelope.request_context.request_id)
        # A failed delivery comes as an error with the notify_response beside it; only without one is it a failed call.
        answer = (route_response.result or {}).get("notify_response")
        if not answer and route_response.error is not None:
            raise own_error(route_response.error)
        if not isinstance(answer, Mapping):
            raise _Unanswered(TargetUnavailable("messenger answered without a notify_response", retryable=False))
        return NotifyResponse.parse(answer)

    def _envelope(self, notify: NotifyEnvelope, event: Mapping[str, Any] | None) -> RouteEnvelope:
        """With the request that is answered; a proactive message starts a lineage of its own."""
        identity, known = self.new_id(), notify.request_context
        lineage: dict[str, Any] = {
            "request_id": identity,
            "received_at": self.clock.now(),
            "source_channel": "mcp",
            "source_endpoint_identity": "switchboard",
            "source_sender_identity": notify.origin_butler,
        }
        if known is not None and known.request_id is not None and known.source_channel is not None:
            lineage |= known.model_dump(exclude_none=True)
        return RouteEnvelope(
            request_context=RequestContext(**lineage),
            input=RouteInput(
                prompt=PROMPT,
                context={
                    "notify_request": notify.to_wire(),
                    "authenticated_origin": notify.origin_butler,
                    "source_event": event,
                },
            ),
            subrequest=Subrequest(subrequest_id=identity, segment_id=f"notify-{identity}"),
            target=Target(butler="messenger"),
            trace_context=self.telemetry.inject(),
        )

    async def _record(self, notify: NotifyEnvelope, response: NotifyResponse, *, unanswered: bool) -> None:
        delivery = response.delivery
        status = "failed"  # without a delivery it was refused
        if delivery is not None:  # accepted by Messenger is not yet sent
            status = _STATUS_ON_RECORD.get(delivery.status, "pending")
        try:
            await self.database.execute(
                self.queries.record_notification,
                self.new_id(),
                notify.request_id,
                notify.origin_butler,
                notify.delivery.channel,
                notify.delivery.recipient,
                notify.delivery.message,
                {"delivery": delivery.to_wire() if delivery else None},
                "unknown" if unanswered else status,
                delivery.delivery_id if delivery else None,
                response.error.message if response.error else None,
                self.telemetry.trace_id(),
                self.clock.now(),
            )
        except Exception as error:
            # The record is for people to read later; the delivery itself is Messenger's and must not fail for it.
            log.error("notification was not recorded", error=error, request_id=notify.request_id)


class _Unanswered(Exception):
    """Messenger may have taken the message on, and its answer did not come."""

    def __init__(self, error: ClassifiedError) -> None:
        super().__init__(error.message)
        self.error = error


def _refused(request_id: UUID | None, error: ClassifiedError) -> NotifyResponse:
    return NotifyResponse(
        request_context=NotifyResponseContext(request_id=request_id), status="error", error=WireError.of(error)
    )
