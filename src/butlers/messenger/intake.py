"""From a routed `notify.v1` to a delivery on record.

    validate -> verify origin -> resolve target -> derive key -> record -> wait for the outcome

Nothing leaves before the row is committed, and a known key never makes a second row.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import UUID, uuid4

from butlers.clock import Clock
from butlers.contracts.envelope import invalid
from butlers.contracts.notify import NotifyEnvelope, NotifyResponse, NotifyResponseContext
from butlers.contracts.route import RouteEnvelope, WireError
from butlers.errors import ClassifiedError, from_wire
from butlers.messenger.content import subject_with_origin, with_origin
from butlers.messenger.deliveries import OPEN, Deliveries, NewDelivery, outcome_of
from butlers.messenger.targets import AddressBook, resolve_target
from butlers.reliability.idempotency import caller_key, delivery_key
from butlers.storage.database import Record
from butlers.telemetry import Telemetry, get_logger
from butlers.telemetry.catalogue import DELIVERY_DEDUPLICATED, DELIVERY_REQUESTED
from butlers.telemetry.spans import DELIVERY

log = get_logger("butlers.messenger")

_SUBJECT_CHANNELS = frozenset({"email"})


class Executor(Protocol):
    """Whoever makes the attempts."""

    def wake(self) -> None: ...

    async def finished(self, delivery_id: UUID) -> None:
        """Return when the delivery may have changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Intake:
    """Messenger's `route.execute`."""

    deliveries: Deliveries
    contacts: AddressBook
    channels: frozenset[str]
    executor: Executor
    clock: Clock
    telemetry: Telemetry
    wait_s: float  # how long a caller may wait for the outcome

    async def handle(self, envelope: RouteEnvelope) -> dict[str, Any]:
        notify = self.read(envelope)
        with self.telemetry.span(DELIVERY, request_id=notify.request_id, origin_butler=notify.origin_butler):
            new = await self.prepare(notify, _source_event(envelope))
            delivery_id, fresh = await self.deliveries.record(new)
            self._count(notify, fresh)
            log.info("delivery recorded", delivery_id=delivery_id, request_id=notify.request_id, duplicate=not fresh)
            self.executor.wake()
            row = await self._wait(delivery_id)
            return self._answer(notify, row, deduplicated=not fresh)

    def read(self, envelope: RouteEnvelope) -> NotifyEnvelope:
        """The embedded request, checked as if nobody had checked it before."""
        context = envelope.input.context or {}
        raw = context.get("notify_request")
        if not isinstance(raw, Mapping):
            raise invalid("input.context.notify_request", "is required and must be a notify.v1 object")
        notify = NotifyEnvelope.parse(raw)
        if context.get("authenticated_origin") != notify.origin_butler:
            raise invalid("origin_butler", "does not match the origin that Switchboard authenticated")
        if notify.delivery.channel not in self.channels:
            raise invalid("delivery.channel", f"is not served here; served: {', '.join(sorted(self.channels))}")
        return notify

    async def prepare(self, notify: NotifyEnvelope, source_event: Mapping[str, Any] | None) -> NewDelivery:
        target = await resolve_target(notify, self.contacts)
        key = _key(notify, target)
        has_subject = notify.delivery.channel in _SUBJECT_CHANNELS
        message, origin = notify.delivery.message, notify.origin_butler
        return NewDelivery(
            # Without an id and without a key nothing tells a repeat from a second wish: every call is a new one.
            idempotency_key=key or f"none-{uuid4()}",
            notify=notify,
            target=target,
            message=message if has_subject else with_origin(message, origin),
            subject=subject_with_origin(notify.delivery.subject, origin) if has_subject else None,
            source_event=source_event,
            duplicate_detection=key is not None,
        )

    async def _wait(self, delivery_id: UUID) -> Record:
        deadline = self.clock.monotonic() + self.wait_s
        while True:
            row = await self.deliveries.get(delivery_id)
            if row is None:
                raise invalid("delivery_id", "the delivery is gone")
            left = deadline - self.clock.monotonic()
            if row["status"] not in OPEN or left <= 0:
                return row
            await self._changed(delivery_id, left)

    async def _changed(self, delivery_id: UUID, at_most_s: float) -> None:
        # Another process may be the one that sends, so look again now and then without being told.
        try:
            async with asyncio.timeout(min(at_most_s, 0.5)):
                await self.executor.finished(delivery_id)
        except TimeoutError:
            return

    def _answer(self, notify: NotifyEnvelope, row: Record, *, deduplicated: bool) -> dict[str, Any]:
        """The outcome; a failed delivery is a failed route, with the whole response beside the error."""
        error = _terminal_error(row)
        response = NotifyResponse(
            request_context=NotifyResponseContext(request_id=notify.request_id),
            status="error" if error else "ok",
            delivery=outcome_of(row, deduplicated=deduplicated),
            error=WireError.of(error) if error else None,
        )
        answer = {"notify_response": response.to_wire()}
        if error is not None:
            error.partial = answer
            raise error
        return answer

    def _count(self, notify: NotifyEnvelope, fresh: bool) -> None:
        self.telemetry.count(
            DELIVERY_REQUESTED if fresh else DELIVERY_DEDUPLICATED,
            channel=notify.delivery.channel,
            intent=notify.delivery.intent,
            identity_scope="bot",
            origin_butler=notify.origin_butler,
        )


def _key(notify: NotifyEnvelope, target: str) -> str | None:
    """A caller's own key says best what a repeat is; the request and the content come next."""
    if notify.idempotency_key is not None:
        return caller_key(notify.origin_butler, notify.idempotency_key)
    if notify.request_id is None:
        return None
    return delivery_key(
        request_id=str(notify.request_id),
        origin_butler=notify.origin_butler,
        intent=notify.delivery.intent,
        channel=notify.delivery.channel,
        target_identity=target,
        message=notify.delivery.emoji or notify.delivery.message,
        subject=notify.delivery.subject,
    )


def _terminal_error(row: Record) -> ClassifiedError | None:
    if row["terminal_error_class"] is None or row["status"] in OPEN:
        return None
    return from_wire(
        row["terminal_error_class"], row["terminal_error_message"], retryable=bool(row["terminal_retryable"])
    )


def _source_event(envelope: RouteEnvelope) -> Mapping[str, Any] | None:
    event = (envelope.input.context or {}).get("source_event")
    return event if isinstance(event, Mapping) else None
