"""Webhooks: the endpoints of subscribers, what was told to each, and what an operator can do about it.

Only an operator may see them: an address may hold a credential of its own. A secret is shown when it is made, and never
again.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Annotated, Final, Literal
from uuid import UUID

from pydantic import Field, StringConstraints

from butlers.contracts.envelope import Identity, Timestamp, Value
from butlers.operations import operation as op

WebhookState = Literal["pending", "sending", "delivered", "dead_lettered"]
_ENDPOINT = op.Option("endpoint_id", "The endpoint's id, as `butlers webhooks list` shows it.", positional=True)


class EndpointArguments(Value):
    endpoint_id: UUID = Field(description="the id of the endpoint")


class CreateEndpointArguments(Value):
    url: Annotated[str, StringConstraints(min_length=1, max_length=4_096)] = Field(
        description="where events are sent: an https address"
    )
    event_types: list[Identity] = Field(
        default_factory=lambda: ["*"],
        description="patterns such as delivery.delivered, delivery.* or *; absent: all events",
    )
    description: Annotated[str, StringConstraints(max_length=500)] = Field(default="", description="what it is for")


class WebhookDeliveriesArguments(EndpointArguments):
    state: WebhookState | None = Field(default=None, description="only those that stand like this")
    limit: int = Field(default=op.PAGE, ge=1, le=op.LONGEST_PAGE, description="at most so many, on one page")
    cursor: Identity | None = Field(default=None, description="next_cursor of the page before; absent: the first page")


class ReplayWebhooksArguments(EndpointArguments):
    delivery_id: UUID | None = Field(default=None, description="send this one again, also when it was delivered")
    since: Timestamp | None = Field(
        default=None, description="send all again that were set aside and are no older: RFC 3339 with an offset"
    )


class EndpointList(op.Result):
    endpoints: list[op.Row] = Field(description="id, address, event types, and whether it is enabled and works")


class EndpointShown(op.Result):
    endpoint: op.Row = Field(description="id, address, event types, and whether it is enabled and works")
    deliveries: dict[str, int] = Field(description="how many there are by state")


class EndpointChanged(op.Result):
    endpoint: op.Row = Field(description="the endpoint as it is now")


class EndpointSecret(EndpointChanged):
    secret: str = Field(description="what signatures are made with; it is not shown again")


class EndpointDeleted(op.Result):
    endpoint_id: str = Field(description="the endpoint that is gone")
    deleted: bool = Field(description="true")


class WebhookDeliveries(op.Page):
    deliveries: list[op.Row] = Field(description="event, state, attempts, and what the receiver answered last")


class WebhooksReplayed(op.Result):
    endpoint_id: str = Field(description="the endpoint")
    replayed: int = Field(description="how many deliveries are sent again")


class EndpointPinged(op.Result):
    endpoint_id: str = Field(description="the endpoint")
    message_id: str = Field(description="the webhook-id of the test event")
    delivered: bool = Field(description="whether the receiver took it")
    status: int | None = Field(description="the HTTP status of its answer; null: there was none")
    error: str | None = Field(description="why it was not taken")


class EventsTaken(op.Result):
    published: int = Field(description="deliveries that are new")


def _endpoint(row: op.Document) -> str:
    state = "enabled" if row["enabled"] else f"disabled: {row['disabled_reason']}"
    failing = f"  failing since {op.when(row['failing_since'])}" if row["failing_since"] and row["enabled"] else ""
    return f"{row['id']}  {row['url']}  {','.join(row['event_types'])}  {state}{failing}"


def _endpoints(document: op.Document) -> Iterator[str]:
    for row in document["endpoints"]:
        yield _endpoint(row)


def _shown(document: op.Document) -> Iterator[str]:
    row = document["endpoint"]
    yield _endpoint(row)
    if row["description"]:
        yield row["description"]
    yield f"created by {row['created_by']} {op.when(row['created_at'])}"
    yield "  ".join(f"{state} {number}" for state, number in document["deliveries"].items()) or "no deliveries"


def _changed(document: op.Document) -> Iterator[str]:
    yield _endpoint(document["endpoint"])


def _secret(document: op.Document) -> Iterator[str]:
    yield _endpoint(document["endpoint"])
    yield f"secret {document['secret']}"
    yield "It is not shown again: give it to the receiver, who checks signatures with it."


def _deleted(document: op.Document) -> Iterator[str]:
    yield f"{document['endpoint_id']} is deleted, and all its deliveries"


def _deliveries(document: op.Document) -> Iterator[str]:
    for row in document["deliveries"]:
        number = f"{row['attempts']} attempt{'' if row['attempts'] == 1 else 's'}"
        error = f"  {row['last_error']}" if row["last_error"] else ""
        yield f"{row['id']}  {op.when(row['created_at'])}  {row['event_type']}  {row['state']}  {number}{error}"


def _replayed(document: op.Document) -> Iterator[str]:
    yield f"{document['replayed']} {'delivery is' if document['replayed'] == 1 else 'deliveries are'} sent again"


def _pinged(document: op.Document) -> Iterator[str]:
    if document["delivered"]:
        yield f"the receiver took the test event (HTTP {document['status']})"
    else:
        yield f"the receiver did not take the test event: {document['error']}"


_acts = partial(op.Operation, hints=op.ACTS, roles=op.OPERATORS)
_changes = partial(op.Operation, hints=op.CHANGES, roles=op.OPERATORS)
_reads = partial(op.Operation, hints=op.READS, roles=op.OPERATORS)

CREATE: Final = op.Operation(
    name="webhooks.create",
    description="Send events to an address from now on. The answer holds the secret, which is not shown again.",
    arguments=CreateEndpointArguments,
    returns=EndpointSecret,
    hints=op.ADDS,
    roles=op.OPERATORS,
    routes=(op.post("/webhooks", "Send events to an address", status=201),),
    commands=(
        op.Command(
            "webhooks create",
            "Send events to an address from now on.",
            _secret,
            (
                op.Option("url", "An https address.", positional=True),
                op.Option(
                    "event_types",
                    "Like delivery.delivered, delivery.* or *; may be given again.",
                    "--event",
                    default=None,
                    parse=lambda texts: list(texts) or None,
                ),
                op.Option("description", "What it is for."),
            ),
        ),
    ),
)
LIST: Final = _reads(
    name="webhooks.list",
    description="The endpoints that events are sent to.",
    returns=EndpointList,
    routes=(op.get("/webhooks", "The endpoints that events are sent to", decides=True),),
    commands=(
        op.Command(
            "webhooks list",
            "The endpoints that events are sent to.",
            _endpoints,
            none="there are no endpoints",
            alone=True,
        ),
    ),
)
SHOW: Final = _reads(
    name="webhooks.show",
    description="One endpoint, and how many deliveries it has by state.",
    arguments=EndpointArguments,
    returns=EndpointShown,
    routes=(op.get("/webhooks/{endpoint_id}", "One endpoint", decides=True),),
    commands=(op.Command("webhooks show", "One endpoint.", _shown, (_ENDPOINT,)),),
)
DELETE: Final = _acts(
    name="webhooks.delete",
    description="Send nothing more to an endpoint, and forget it with all its deliveries.",
    arguments=EndpointArguments,
    returns=EndpointDeleted,
    routes=(
        op.Route(method="DELETE", path="/webhooks/{endpoint_id}", summary="Forget an endpoint"),
        op.post("/webhooks/{endpoint_id}/delete", "The same, for clients that only post"),
    ),
    commands=(op.Command("webhooks delete", "Forget an endpoint.", _deleted, (_ENDPOINT,), route=1),),
)
ENABLE: Final = _changes(
    name="webhooks.enable",
    description="Send events to an endpoint again.",
    arguments=EndpointArguments,
    returns=EndpointChanged,
    routes=(op.post("/webhooks/{endpoint_id}/enable", "Send events to an endpoint again"),),
    commands=(op.Command("webhooks enable", "Send events to an endpoint again.", _changed, (_ENDPOINT,)),),
)
DISABLE: Final = _changes(
    name="webhooks.disable",
    description="Send no events to an endpoint until it is enabled; what waits is set aside.",
    arguments=EndpointArguments,
    returns=EndpointChanged,
    routes=(op.post("/webhooks/{endpoint_id}/disable", "Send no events to an endpoint for now"),),
    commands=(op.Command("webhooks disable", "Send no events to an endpoint for now.", _changed, (_ENDPOINT,)),),
)
ROTATE: Final = _acts(
    name="webhooks.rotate_secret",
    description="Give an endpoint a new secret; for 24 hours events are signed with the old one, too.",
    arguments=EndpointArguments,
    returns=EndpointSecret,
    routes=(op.post("/webhooks/{endpoint_id}/rotate-secret", "Give an endpoint a new secret"),),
    commands=(op.Command("webhooks rotate-secret", "Give an endpoint a new secret.", _secret, (_ENDPOINT,)),),
)
DELIVERIES: Final = _reads(
    name="webhooks.deliveries",
    description="What was sent to an endpoint or waits for it, newest first.",
    arguments=WebhookDeliveriesArguments,
    returns=WebhookDeliveries,
    routes=(op.get("/webhooks/{endpoint_id}/deliveries", "What was sent to an endpoint", decides=True),),
    commands=(
        op.Command(
            "webhooks deliveries",
            "What was sent to an endpoint or waits for it, newest first.",
            _deliveries,
            (_ENDPOINT, op.Option("state", "Only those that stand like this.", choices=True), op.LIMIT, op.CURSOR),
            none="no deliveries",
        ),
    ),
)
REPLAY: Final = _acts(
    name="webhooks.replay",
    description="Send one delivery to an endpoint again, or all that were set aside since a moment.",
    arguments=ReplayWebhooksArguments,
    returns=WebhooksReplayed,
    routes=(op.post("/webhooks/{endpoint_id}/replay", "Send again what an endpoint did not take"),),
    commands=(
        op.Command(
            "webhooks replay",
            "Send one delivery again, or all that were set aside since a moment.",
            _replayed,
            (_ENDPOINT, op.Option("delivery_id", "Only this delivery.", "--delivery"), op.SINCE),
        ),
    ),
)
PING: Final = op.Operation(
    name="webhooks.ping",
    description="Send a test event (webhook.ping) to an endpoint now, once; it is not retried.",
    arguments=EndpointArguments,
    returns=EndpointPinged,
    hints=op.SENDS,
    roles=op.OPERATORS,
    routes=(op.post("/webhooks/{endpoint_id}/ping", "Send a test event to an endpoint"),),
    commands=(
        op.Command(
            "webhooks ping",
            "Send a test event to an endpoint.",
            _pinged,
            (_ENDPOINT,),
            failed=lambda document: not document["delivered"],
        ),
    ),
)

OPERATIONS: Final = (CREATE, LIST, SHOW, DELETE, ENABLE, DISABLE, ROTATE, DELIVERIES, REPLAY, PING)
