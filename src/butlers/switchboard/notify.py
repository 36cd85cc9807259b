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
from butlers.butler.transport import Transport
from butlers.clock import Clock
from butlers.contracts.envelope import RequestContext, invalid
from butlers.contracts.notify import NotifyContext, NotifyEnvelope, NotifyResponse, NotifyResponseContext
from butlers.contracts.route import RouteEnvelope, RouteInput, Subrequest, Target, WireError
from butlers.errors import ClassifiedError, InternalError, OverloadRejected, TargetUnavailable, TimeoutExceeded
from butlers.operations.operation import Role
from butlers.storage.database import Database
from butlers.storage.queries import Queries
from butlers.switchboard.dispatch.outcome import parse_response, result_of
from butlers.switchboard.requests.reader import LineageReader
from butlers.telemetry import Telemetry, get_logger

log = get_logger("butlers.notify")

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 4.0
PROMPT = "Execute outbound delivery request through Messenger."
_WORDS = {
    "delivered": "sent",
    "failed": "failed",
    "dead_lettered": "failed",
    "expired": "failed",
    "uncertain": "uncertain",
}


@dataclass(slots=True, kw_only=True)
class _Asking:
    """How the last call to Messenger stands."""

    unanswered: bool = False  # it may have been taken on all the same


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

    async def dispatch(self, caller: Caller | None, raw: Mapping[str, Any]) -> NotifyResponse:
        try:
            notify = NotifyEnvelope.parse(raw)
            _verify_origin(caller, notify)
        except ClassifiedError as error:
            return _refused(None, error)
        asking = _Asking()
        try:
            known = await self.lineage.of(notify.request_id) if notify.request_id is not None else None
            notify = notify.on_record(NotifyContext.answering(known.context) if known else None)
            event = known.source_event if known else None
            response = await self._deliver_patiently(notify, event, asking)
        except ClassifiedError as error:
            response = _refused(notify.request_id, error)
        await self._record(notify, response, "unknown" if asking.unanswered else _status(response))
        return response

    async def _deliver_patiently(
        self, notify: NotifyEnvelope, event: Mapping[str, Any] | None, asking: _Asking
    ) -> NotifyResponse:
        """Messenger may be restarting, or its budget used up for the moment, and then it says for how long.

        Only what is keyed is asked for again: a lost answer must not send twice.
        """
        keyed = notify.idempotency_key is not None or notify.request_id is not None
        deadline, pause = self.clock.monotonic() + self.patience_s, FIRST_PAUSE_S
        while True:
            try:
                return await self._deliver(notify, event, asking)
            except (TargetUnavailable, OverloadRejected) as error:
                wait = max(pause, error.retry_after or 0.0)
                if not (keyed and error.retryable):
                    raise
                if self.clock.monotonic() + wait > deadline:
                    error.retry_after = wait  # whoever asked may wait longer than we do
                    raise
                log.warning(
                    "messenger cannot now, trying again", request_id=notify.request_id, reason=error.error_class
                )
                await self.clock.sleep(wait)
                pause = min(pause * 2, LONGEST_PAUSE_S)

    async def _deliver(
        self, notify: NotifyEnvelope, event: Mapping[str, Any] | None, asking: _Asking
    ) -> NotifyResponse:
        envelope = self._envelope(notify, event)
        raw = await self._ask(envelope, asking)
        route_response = parse_response(raw, envelope.request_context.request_id)
        # A failed delivery comes as an error with the notify_response beside it; only without one is it a failed call.
        answer = (route_response.result or {}).get("notify_response") or result_of(route_response).get(
            "notify_response"
        )
        if not isinstance(answer, Mapping):
            asking.unanswered = True
            raise TargetUnavailable("messenger answered without a notify_response", retryable=False)
        return NotifyResponse.parse(answer)

    async def _ask(self, envelope: RouteEnvelope, asking: _Asking) -> Mapping[str, Any]:
        asking.unanswered = False
        try:
            async with asyncio.timeout(self.timeout_s):
                return await self.transport.call("messenger", "route.execute", envelope.to_wire())
        except TimeoutError:
            asking.unanswered = True
            raise TimeoutExceeded(f"messenger gave no answer within {self.timeout_s:g} s") from None
        except (TargetUnavailable, TimeoutExceeded, InternalError):
            asking.unanswered = True
            raise

    def _envelope(self, notify: NotifyEnvelope, event: Mapping[str, Any] | None) -> RouteEnvelope:
        identity = self.new_id()
        return RouteEnvelope(
            request_context=_lineage(notify, identity, self.clock),
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

    async def _record(self, notify: NotifyEnvelope, response: NotifyResponse, status: str) -> None:
        try:
            await self.database.execute(
                self.queries.record_notification,
                self.new_id(),
                notify.request_id,
                notify.origin_butler,
                notify.delivery.channel,
                notify.delivery.recipient,
                notify.delivery.message,
                {"delivery": response.delivery.to_wire() if response.delivery else None},
                status,
                response.delivery.delivery_id if response.delivery else None,
                response.error.message if response.error else None,
                self.telemetry.trace_id(),
                self.clock.now(),
            )
        except Exception as error:
            # The record is for people to read later; the delivery itself is Messenger's and must not fail for it.
            log.error("notification was not recorded", error=error, request_id=notify.request_id)


def _status(response: NotifyResponse) -> str:
    """Accepted by Messenger is not yet sent; without a delivery it was refused."""
    return _WORDS.get(response.delivery.status, "pending") if response.delivery is not None else "failed"


def _verify_origin(caller: Caller | None, notify: NotifyEnvelope) -> None:
    if caller is None or caller.role is not Role.BUTLER:
        raise invalid("authorization", "only butlers may ask for a delivery")
    if caller.name != notify.origin_butler:
        raise invalid("origin_butler", f"is not the caller, who is {caller.name!r}")


def _lineage(notify: NotifyEnvelope, identity: UUID, clock: Clock) -> RequestContext:
    """The request that is answered; a proactive message starts a lineage of its own."""
    context = notify.request_context
    if context is not None and context.request_id is not None and context.source_channel is not None:
        return RequestContext(
            request_id=context.request_id,
            received_at=context.received_at or clock.now(),
            source_channel=context.source_channel,
            source_endpoint_identity=context.source_endpoint_identity or "switchboard",
            source_sender_identity=context.source_sender_identity or notify.origin_butler,
            source_thread_identity=context.source_thread_identity,
            trace_context=context.trace_context,
        )
    return RequestContext(
        request_id=identity,
        received_at=clock.now(),
        source_channel="mcp",
        source_endpoint_identity="switchboard",
        source_sender_identity=notify.origin_butler,
    )


def _refused(request_id: UUID | None, error: ClassifiedError) -> NotifyResponse:
    return NotifyResponse(
        request_context=NotifyResponseContext(request_id=request_id), status="error", error=WireError.of(error)
    )
