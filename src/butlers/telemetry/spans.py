"""Every span there is, as data: its name and the attributes it may carry.

Unlike a metric a span may carry ids, for that is what it is joined by. It may not carry content.

    butlers.switchboard.ingest                    root, or child of the sender's trace_context
    butlers.switchboard.request                   one request, from the buffer to its terminal state
    └── butlers.switchboard.dispatch              one per segment
        └── butlers.butler.route_execute          in the target, joined by route.v1 trace_context
    butlers.messenger.delivery                    one notify.v1, from its intake to its answer
    ├── butlers.messenger.validate                envelope, origin, fields, target
    ├── butlers.messenger.idempotency_check       the lock, then keys and budgets are read
    ├── butlers.messenger.rate_limit_check        recipient, throttles, budgets and the circuit are judged
    ├── butlers.messenger.persistence_write       the intent becomes durable; from the judgement to the commit
    └── butlers.messenger.provider_send           one attempt, in the worker, also when it comes long after the answer
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanName:
    """A named stretch of work. `request_id` may be given to every span and is not listed."""

    name: str
    attributes: frozenset[str] = frozenset()


def _span(name: str, attributes: str = "") -> SpanName:
    return SpanName(name=name, attributes=frozenset(attributes.split()))


INGEST = _span("butlers.switchboard.ingest", "source_channel policy_tier dedupe_action")
REQUEST = _span("butlers.switchboard.request", "source_channel policy_tier lifecycle_state")
DISPATCH = _span("butlers.switchboard.dispatch", "subrequest_id segment_id target_butler fanout_mode transport")

ROUTE_EXECUTE = _span("butlers.butler.route_execute", "subrequest_id segment_id caller outcome")

DELIVERY = _span("butlers.messenger.delivery", "delivery_id channel intent identity_scope origin_butler outcome")
VALIDATE = _span("butlers.messenger.validate", "channel intent origin_butler outcome")
IDEMPOTENCY_CHECK = _span("butlers.messenger.idempotency_check", "delivery_id channel outcome")
RATE_LIMIT_CHECK = _span("butlers.messenger.rate_limit_check", "channel identity_scope outcome rule")
PROVIDER_SEND = _span("butlers.messenger.provider_send", "delivery_id channel attempt outcome certainty")
PERSISTENCE_WRITE = _span("butlers.messenger.persistence_write", "delivery_id channel outcome")

MESSENGER: tuple[SpanName, ...] = (
    DELIVERY,
    VALIDATE,
    IDEMPOTENCY_CHECK,
    RATE_LIMIT_CHECK,
    PROVIDER_SEND,
    PERSISTENCE_WRITE,
)

SPANS: tuple[SpanName, ...] = (INGEST, REQUEST, DISPATCH, ROUTE_EXECUTE, *MESSENGER)
