"""`butlers deliveries`: what was sent, what waits, and how the way out is doing."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Annotated, Any

import typer

from butlers.butler.notifier import OWNER_CHANNEL
from butlers.channels.registry import listed, outbound_names
from butlers.contracts.delivery_state import DeliveryState
from butlers.daemon.cli import delivery_lines as lines
from butlers.daemon.cli.asking import Document, an_id, asking, body
from butlers.daemon.cli.options import Channel, Cursor, Limit, Origin, Reason, Since, Until
from butlers.daemon.cli.recipients import recipients, suppress, unsuppress
from butlers.daemon.client import SystemClient

app = typer.Typer(help="What was sent, what waits, and how the way out is doing.", no_args_is_help=True)

DeliveryId = Annotated[str, typer.Argument(help="A delivery id, as `deliveries list` prints it.")]
REFUSED = frozenset({"invalid", "suppressed", "rejected"})


class Outcome(StrEnum):
    """What became of a delivery of which nobody knows."""

    CONFIRMED_SENT = "confirmed_sent"
    SEND_AGAIN = "send_again"


class GroupBy(StrEnum):
    CHANNEL = "channel"
    INTENT = "intent"
    ORIGIN_BUTLER = "origin_butler"
    OUTCOME = "outcome"
    ERROR_CLASS = "error_class"


@app.command("list")
@asking(lines.deliveries, more="butlers deliveries list --cursor", none="no deliveries")
def list_(
    client: SystemClient,
    origin: Origin = None,
    channel: Channel = None,
    intent: Annotated[str | None, typer.Option(help="send, reply or react.")] = None,
    status: Annotated[DeliveryState | None, typer.Option(help="Only deliveries that stand like this.")] = None,
    request: Annotated[str | None, typer.Option(help="Only deliveries of this request.")] = None,
    since: Since = None,
    until: Until = None,
    limit: Limit = 20,
    cursor: Cursor = None,
) -> Document:
    """Deliveries, newest first."""
    filters = {"origin_butler": origin, "channel": channel, "intent": intent, "status": status, "request_id": request}
    found = client.get("/api/deliveries", **filters, since=since, until=until, limit=limit, cursor=cursor)
    return found if origin is None or found["deliveries"] else found | _about_origin(client, origin)


@app.command("show")
@asking(lines.delivery)
def show(client: SystemClient, delivery_id: DeliveryId) -> Document:
    """One delivery: where it stands and its latest attempt."""
    return client.get(f"/api/deliveries/{an_id(delivery_id)}")


@app.command("attempts")
@asking(lines.attempts)
def attempts(client: SystemClient, delivery_id: DeliveryId) -> Document:
    """Every attempt at one delivery, in order."""
    return client.get(f"/api/deliveries/{an_id(delivery_id)}/attempts")


@app.command("settle")
@asking(lines.result)
def settle(
    client: SystemClient,
    delivery_id: DeliveryId,
    outcome: Annotated[Outcome, typer.Argument(help="Whether it arrived, or is to be sent once more.")],
) -> Document:
    """Say what became of an uncertain delivery."""
    return client.post(f"/api/deliveries/{an_id(delivery_id)}/settle", body({"outcome": outcome}))


@app.command("quarantine")
@asking(lines.quarantined)
def quarantine(client: SystemClient, delivery_id: DeliveryId, reason: Reason) -> Document:
    """Set a delivery aside that is not in a provider call."""
    return client.post(f"/api/deliveries/{an_id(delivery_id)}/quarantine", body({"reason": reason}))


@app.command("stats")
@asking(lines.stats)
def stats(
    client: SystemClient,
    since: Since = None,
    until: Until = None,
    group_by: Annotated[GroupBy | None, typer.Option(help="One line for each.")] = None,
) -> Document:
    """Counts, rates and latencies of the last 24 hours, or of another window."""
    return client.get("/api/deliveries/stats", since=since, until=until, group_by=group_by)


@app.command("queue")
@asking(lines.queue)
def queue(client: SystemClient, channel: Channel = None) -> Document:
    """How many deliveries are on their way."""
    return client.get("/api/deliveries/queue", channel=channel)


@app.command("limits")
@asking(lines.limits)
def limits(
    client: SystemClient,
    channel: Channel = None,
    scope: Annotated[str | None, typer.Option(help="bot or user.")] = None,
) -> Document:
    """What is left of the budgets, and who is held back."""
    return client.get("/api/deliveries/limits", channel=channel, identity_scope=scope)


@app.command("circuits")
@asking(lines.circuits, failed=lambda told: any(row["state"] != "closed" for row in told["channels"].values()))
def circuits(client: SystemClient, channel: Channel = None) -> Document:
    """The circuit breaker of each channel; exit code 1 when one is not closed."""
    return client.get("/api/deliveries/circuits", channel=channel)


@app.command("dry-run")
@asking(lines.dry_run, failed=lambda told: told["outcome"] in REFUSED)
def dry_run(
    client: SystemClient,
    message: Annotated[str, typer.Argument(help="What would be sent; - reads a notify.v1 envelope from stdin.")],
    origin: Annotated[str, typer.Option(help="The butler that would ask.")] = "general",
    channel: Annotated[str, typer.Option(help=f"{listed(outbound_names())}.")] = OWNER_CHANNEL,
    recipient: Annotated[str | None, typer.Option("--to", help="An address; default: the owner.")] = None,
    subject: Annotated[str | None, typer.Option(help="For mail.")] = None,
) -> Document:
    """What would happen to a message, without sending it; exit code 1 when it would be refused."""
    delivery = {"intent": "send", "channel": channel, "message": message, "recipient": recipient, "subject": subject}
    said = sys.stdin.buffer.read() if message == "-" else _notify(origin, delivery)
    return client.post("/api/deliveries/dry-run", said)


app.command("recipients")(recipients)
# A chat may be -1007, which is no option.
app.command("suppress", context_settings={"ignore_unknown_options": True})(suppress)
app.command("unsuppress", context_settings={"ignore_unknown_options": True})(unsuppress)
app.command("release", hidden=True, context_settings={"ignore_unknown_options": True})(unsuppress)  # its older name


def _about_origin(client: SystemClient, origin: str) -> Document:
    """That nothing is found may be a slip of the pen; a butler that was taken away still has deliveries."""
    names = sorted(row["name"] for row in client.get("/api/butlers")["butlers"])
    return {} if origin in names else {"note": f"no butler is called {origin!r}; there are {', '.join(names)}"}


def _notify(origin: str, delivery: dict[str, Any]) -> bytes:
    given = {name: value for name, value in delivery.items() if value is not None}
    return body({"schema_version": "notify.v1", "origin_butler": origin, "delivery": given})
