"""From a routed `notify.v1` to a delivery on record.

    validate -> verify origin -> resolve target -> recipient lists -> idempotency -> suppression -> approval
             -> admission -> breaker -> record -> wait for the outcome

Nothing leaves before the row is committed, and a known key never makes a second row. Messenger never calls `notify`
itself: this is where the road ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from butlers.clock import Clock
from butlers.contracts.delivery_state import OPEN
from butlers.contracts.envelope import invalid
from butlers.contracts.notify import DeliveryOutcome, NotifyEnvelope, NotifyResponse, NotifyResponseContext
from butlers.contracts.route import RouteEnvelope, WireError
from butlers.messenger.admission import Admission, DeliveryExecutor, Entry, OutcomeFuture, Taken
from butlers.messenger.admission_rules import Known, Parked, Refused
from butlers.messenger.attempt import Outcome
from butlers.messenger.deliveries import Deliveries
from butlers.messenger.delivery import NewDelivery, channel_tool
from butlers.messenger.observer import Observer
from butlers.messenger.parking import Parking
from butlers.messenger.preparation import Preparation
from butlers.telemetry.spans import DELIVERY, VALIDATE

_LOOK_AGAIN_S = 0.5  # at a delivery that another process may be making


@dataclass(frozen=True, slots=True, kw_only=True)
class Intake:
    """Messenger's `route.execute`, and the way in for its channel tools."""

    preparation: Preparation
    admission: Admission
    parking: Parking
    deliveries: Deliveries
    executor: DeliveryExecutor
    clock: Clock
    observer: Observer
    wait_s: float  # how long a caller may wait for the outcome

    async def handle(self, envelope: RouteEnvelope) -> dict[str, Any]:
        """Take the embedded request, checked as if nobody had checked it before."""
        context = envelope.input.context or {}
        raw, source_event = context.get("notify_request"), context.get("source_event")
        if not isinstance(raw, Mapping):
            raise invalid("input.context.notify_request", "is required and must be a notify.v1 object")
        notify = NotifyEnvelope.parse(raw)
        if context.get("authenticated_origin") != notify.origin_butler:
            raise invalid("origin_butler", "does not match the origin that Switchboard authenticated")
        return await self.submit(
            notify,
            source_event=source_event if isinstance(source_event, Mapping) else None,
            tools=("notify", channel_tool(notify)),
        )

    async def submit(
        self,
        notify: NotifyEnvelope,
        *,
        source_event: Mapping[str, Any] | None,
        tools: tuple[str, ...],  # under which names the approvals know it
        identity_scope: str = "bot",
    ) -> dict[str, Any]:
        """Take it on and say what became of it."""
        with self.observer.span(DELIVERY, notify, identity_scope=identity_scope) as span:
            with self.observer.span(VALIDATE, notify):
                new = await self.preparation.prepare(notify, source_event, identity_scope=identity_scope)
            new = self.observer.traced(new)
            waiter = self.executor.expect(new.id)
            entry: Entry | Parked | None = await self.parking.hold(new, tools)
            if entry is None:
                with self.observer.recording(new):
                    entry = await self.admission.submit(new)
            self.observer.entered(new, entry)
            span.set_attribute("outcome", type(entry).__name__.lower())
            return await self._answer(new, entry, waiter)

    async def _answer(self, new: NewDelivery, entry: Entry | Parked, waiter: OutcomeFuture) -> dict[str, Any]:
        """The outcome; a failed delivery is a failed route, with the whole response beside the error."""
        if isinstance(entry, Refused):
            raise entry.error
        delivery_id = entry.delivery.id if isinstance(entry, Taken) else entry.delivery_id
        if isinstance(entry, Known):
            waiter = self.executor.expect(delivery_id)
        elif not (isinstance(entry, Taken) and entry.delivery.claim):
            # What was too late when it came ends now, and not with the next look at the clock.
            if new.notify.not_after is not None and new.notify.not_after < self.clock.now():
                self.observer.expired(await self.deliveries.expire())
            self.executor.wake()
        outcome = await self._wait(delivery_id, waiter, look_first=not isinstance(entry, Taken))
        error = outcome.error
        response = NotifyResponse(
            request_context=NotifyResponseContext(request_id=new.notify.request_id),
            status="error" if error else "ok",
            delivery=DeliveryOutcome(
                channel=outcome.channel,
                delivery_id=outcome.delivery_id,
                status=outcome.status,
                provider_delivery_id=outcome.provider_delivery_id,
                deduplicated=isinstance(entry, Known),
                duplicate_detection=new.duplicate_detection,
                action_id=outcome.action_id,
            ),
            error=WireError.of(error) if error else None,
        )
        answer = {"notify_response": response.to_wire()}
        if error is not None:
            error.partial = answer
            raise error
        return answer

    async def _wait(self, delivery_id: UUID, waiter: OutcomeFuture, *, look_first: bool) -> Outcome:
        """Until the delivery ends or `wait_s` is over. Another process may be the one that sends, so the row is looked
        at now and then without a report.
        """
        deadline = self.clock.monotonic() + self.wait_s
        outcome = await self.deliveries.get(delivery_id) if look_first else None
        while outcome is None or outcome.status in OPEN:
            left = deadline - self.clock.monotonic()
            if left <= 0:
                break
            done, _ = await asyncio.wait((waiter,), timeout=min(left, _LOOK_AGAIN_S))
            outcome = waiter.result() if done else None
            if outcome is None or outcome.status in OPEN:
                waiter = self.executor.expect(delivery_id)
                outcome = await self.deliveries.get(delivery_id)
        outcome = outcome or await self.deliveries.get(delivery_id)
        if outcome is None:
            raise invalid("delivery_id", "the delivery is gone")
        return outcome
