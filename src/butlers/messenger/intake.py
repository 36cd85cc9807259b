"""From a routed `notify.v1` to a delivery on record.

    validate -> verify origin -> resolve target -> recipient lists -> idempotency -> suppression -> approval
             -> admission -> breaker -> record -> wait for the outcome

Nothing leaves before the row is committed, and a known key never makes a second row. Messenger never calls `notify`
itself: this is where the road ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from butlers.clock import Clock
from butlers.contracts.delivery_state import OPEN
from butlers.contracts.envelope import invalid
from butlers.contracts.notify import NotifyEnvelope, NotifyResponse, NotifyResponseContext
from butlers.contracts.route import RouteEnvelope, WireError
from butlers.messenger.admission.admission import Admission, Entry, Taken
from butlers.messenger.admission.rules import Refused
from butlers.messenger.admission.slots import DeliveryExecutor, OutcomeWaiter
from butlers.messenger.admission.state import Known, Parked
from butlers.messenger.deliveries import Deliveries
from butlers.messenger.delivery import NewDelivery, channel_tool
from butlers.messenger.observer import Observer
from butlers.messenger.parking import Parking
from butlers.messenger.preparation import Preparation
from butlers.messenger.settlement import Outcome

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
        notify = self.read(envelope)
        tools = ("notify", channel_tool(notify))
        return await self.submit(notify, source_event=_source_event(envelope), tools=tools)

    def read(self, envelope: RouteEnvelope) -> NotifyEnvelope:
        """The embedded request, checked as if nobody had checked it before."""
        context = envelope.input.context or {}
        raw = context.get("notify_request")
        if not isinstance(raw, Mapping):
            raise invalid("input.context.notify_request", "is required and must be a notify.v1 object")
        notify = NotifyEnvelope.parse(raw)
        if context.get("authenticated_origin") != notify.origin_butler:
            raise invalid("origin_butler", "does not match the origin that Switchboard authenticated")
        return notify

    async def submit(
        self,
        notify: NotifyEnvelope,
        *,
        source_event: Mapping[str, Any] | None,
        tools: tuple[str, ...],  # under which names the approvals know it
        identity_scope: str = "bot",
    ) -> dict[str, Any]:
        """Take it on and say what became of it."""
        with self.observer.delivery(notify, identity_scope) as span:
            with self.observer.validating(notify):
                new = await self.preparation.prepare(notify, source_event, identity_scope=identity_scope)
            new = self.observer.traced(new)
            expectation = self.executor.expect(new.id)
            entry = await self._enter(new, tools)
            self.observer.entered(new, entry)
            span.set_attribute("outcome", type(entry).__name__.lower())
            return await self._answer(new, entry, expectation)

    async def _enter(self, new: NewDelivery, tools: tuple[str, ...]) -> Entry | Parked:
        if (held := await self.parking.hold(new, tools)) is not None:
            return held
        with self.observer.recording(new):
            return await self.admission.submit(new)

    async def _answer(self, new: NewDelivery, entry: Entry | Parked, expectation: OutcomeWaiter) -> dict[str, Any]:
        if isinstance(entry, Refused):
            raise entry.error
        delivery_id = entry.delivery.id if isinstance(entry, Taken) else entry.delivery_id
        if isinstance(entry, Known):
            expectation = self.executor.expect(delivery_id)
        elif not (isinstance(entry, Taken) and entry.delivery.claim):
            await self._expire_stale(new)
            self.executor.wake()
        outcome = await self._wait(delivery_id, expectation, look_first=not isinstance(entry, Taken))
        outcome = replace(outcome, duplicate_detection=new.duplicate_detection)
        return _respond(new.notify, outcome, deduplicated=isinstance(entry, Known))

    async def _expire_stale(self, new: NewDelivery) -> None:
        """What was too late when it came ends now, and not with the next look at the clock."""
        if new.notify.not_after is not None and new.notify.not_after < self.clock.now():
            self.observer.expired(await self.deliveries.expire())

    async def _wait(self, delivery_id: UUID, expectation: OutcomeWaiter, *, look_first: bool) -> Outcome:
        """Until it ends or the caller's patience does. Another process may be the one that sends, so look at the row
        now and then without being told.
        """
        deadline = self.clock.monotonic() + self.wait_s
        outcome = await self.deliveries.get(delivery_id) if look_first else None
        while outcome is None or outcome.status in OPEN:
            left = deadline - self.clock.monotonic()
            if left <= 0:
                break
            outcome = await expectation.wait(min(left, _LOOK_AGAIN_S))
            if outcome is None or outcome.status in OPEN:
                expectation = self.executor.expect(delivery_id)
                outcome = await self.deliveries.get(delivery_id)
        return outcome or await self._must_be_there(delivery_id)

    async def _must_be_there(self, delivery_id: UUID) -> Outcome:
        outcome = await self.deliveries.get(delivery_id)
        if outcome is None:
            raise invalid("delivery_id", "the delivery is gone")
        return outcome


def _respond(notify: NotifyEnvelope, outcome: Outcome, *, deduplicated: bool) -> dict[str, Any]:
    """The outcome; a failed delivery is a failed route, with the whole response beside the error."""
    error = outcome.error
    response = NotifyResponse(
        request_context=NotifyResponseContext(request_id=notify.request_id),
        status="error" if error else "ok",
        delivery=outcome.to_wire(deduplicated=deduplicated),
        error=WireError.of(error) if error else None,
    )
    answer = {"notify_response": response.to_wire()}
    if error is not None:
        error.partial = answer
        raise error
    return answer


def _source_event(envelope: RouteEnvelope) -> Mapping[str, Any] | None:
    event = (envelope.input.context or {}).get("source_event")
    return event if isinstance(event, Mapping) else None
