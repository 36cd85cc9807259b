"""`butlers deliveries`: what was sent, what waits, and how the way out is doing."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from typing import Annotated, Any
from uuid import UUID

import typer
from pydantic_core import to_json

from butlers.daemon.cli import delivery_lines
from butlers.daemon.cli.exits import FAILED, OK, exiting
from butlers.daemon.cli.options import Config, DataDir, Json, settings_from
from butlers.daemon.client import SystemClient
from butlers.errors import ValidationError

app = typer.Typer(help="What was sent, what waits, and how the way out is doing.", no_args_is_help=True)

DeliveryId = Annotated[str, typer.Argument(help="A delivery id, as `deliveries list` prints it.")]
Channel = Annotated[str | None, typer.Option(help="telegram, email, sms or chat.")]
ChannelName = Annotated[str, typer.Argument(metavar="CHANNEL", help="telegram, email, sms or chat.")]
Target = Annotated[str, typer.Argument(help="The recipient's address on that channel.")]
Since = Annotated[str | None, typer.Option(help="RFC 3339 moment, included.")]
Until = Annotated[str | None, typer.Option(help="RFC 3339 moment, not included.")]
REFUSED = frozenset({"invalid", "rejected"})
Reason = Annotated[str, typer.Option("--reason", help="Why; it is kept.")]


class Status(StrEnum):
    PENDING = "pending"
    IN_PROGRESS = "in_progress"
    AWAITING_RETRY = "awaiting_retry"
    DELIVERED = "delivered"
    FAILED = "failed"
    DEAD_LETTERED = "dead_lettered"
    UNCERTAIN = "uncertain"
    EXPIRED = "expired"
    PENDING_APPROVAL = "pending_approval"
    PENDING_MISSING_IDENTIFIER = "pending_missing_identifier"


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
@exiting
def list_(
    origin: Annotated[str | None, typer.Option(help="Only what this butler asked for.")] = None,
    channel: Channel = None,
    intent: Annotated[str | None, typer.Option(help="send, reply or react.")] = None,
    status: Annotated[Status | None, typer.Option(help="Only deliveries that stand like this.")] = None,
    request: Annotated[str | None, typer.Option(help="Only deliveries of this request.")] = None,
    since: Since = None,
    until: Until = None,
    limit: Annotated[int, typer.Option(min=1, max=500)] = 20,
    cursor: Annotated[str | None, typer.Option(help="Where an earlier page ended.")] = None,
    data_dir: DataDir = None,
    config: Config = None,
    as_json: Json = False,
) -> int:
    """Deliveries, newest first."""
    filters = {"origin_butler": origin, "channel": channel, "intent": intent, "status": status, "request_id": request}
    place = {"since": since, "until": until, "limit": limit, "cursor": cursor}
    with SystemClient(settings_from(data_dir=data_dir, config=config)) as client:
        document = client.get("/api/deliveries", **filters, **place)
    return say(document, as_json, delivery_lines.deliveries)


@app.command("show")
@exiting
def show(delivery_id: DeliveryId, data_dir: DataDir = None, config: Config = None, as_json: Json = False) -> int:
    """One delivery: where it stands and its latest attempt."""
    with SystemClient(settings_from(data_dir=data_dir, config=config)) as client:
        document = client.get(f"/api/deliveries/{an_id(delivery_id)}")
    return say(document, as_json, delivery_lines.delivery)


@app.command("attempts")
@exiting
def attempts(delivery_id: DeliveryId, data_dir: DataDir = None, config: Config = None, as_json: Json = False) -> int:
    """Every attempt at one delivery, in order."""
    with SystemClient(settings_from(data_dir=data_dir, config=config)) as client:
        document = client.get(f"/api/deliveries/{an_id(delivery_id)}/attempts")
    return say(document, as_json, delivery_lines.attempts)


@app.command("settle")
@exiting
def settle(
    delivery_id: DeliveryId,
    outcome: Annotated[Outcome, typer.Argument(help="Whether it arrived, or is to be sent once more.")],
    data_dir: DataDir = None,
    config: Config = None,
    as_json: Json = False,
) -> int:
    """Say what became of an uncertain delivery."""
    with SystemClient(settings_from(data_dir=data_dir, config=config)) as client:
        document = client.post(f"/api/deliveries/{an_id(delivery_id)}/settle", to_json({"outcome": outcome}))
    return say(document, as_json, delivery_lines.result)


@app.command("quarantine")
@exiting
def quarantine(
    delivery_id: DeliveryId, reason: Reason, data_dir: DataDir = None, config: Config = None, as_json: Json = False
) -> int:
    """Set a delivery aside that is not in a provider call."""
    with SystemClient(settings_from(data_dir=data_dir, config=config)) as client:
        document = client.post(f"/api/deliveries/{an_id(delivery_id)}/quarantine", to_json({"reason": reason}))
    return say(document, as_json, delivery_lines.quarantined)


@app.command("stats")
@exiting
def stats(
    since: Since = None,
    until: Until = None,
    group_by: Annotated[GroupBy | None, typer.Option(help="One line for each.")] = None,
    data_dir: DataDir = None,
    config: Config = None,
    as_json: Json = False,
) -> int:
    """Counts, rates and latencies of the last 24 hours, or of another window."""
    with SystemClient(settings_from(data_dir=data_dir, config=config)) as client:
        document = client.get("/api/deliveries/stats", since=since, until=until, group_by=group_by)
    return say(document, as_json, delivery_lines.stats)


@app.command("queue")
@exiting
def queue(channel: Channel = None, data_dir: DataDir = None, config: Config = None, as_json: Json = False) -> int:
    """How many deliveries are on their way."""
    with SystemClient(settings_from(data_dir=data_dir, config=config)) as client:
        document = client.get("/api/deliveries/queue", channel=channel)
    return say(document, as_json, delivery_lines.queue)


@app.command("limits")
@exiting
def limits(
    channel: Channel = None,
    scope: Annotated[str | None, typer.Option(help="bot or user.")] = None,
    data_dir: DataDir = None,
    config: Config = None,
    as_json: Json = False,
) -> int:
    """What is left of the budgets, and who is held back."""
    with SystemClient(settings_from(data_dir=data_dir, config=config)) as client:
        document = client.get("/api/deliveries/limits", channel=channel, identity_scope=scope)
    return say(document, as_json, delivery_lines.limits)


@app.command("circuits")
@exiting
def circuits(channel: Channel = None, data_dir: DataDir = None, config: Config = None, as_json: Json = False) -> int:
    """The circuit breaker of each channel; exit code 1 when one is not closed."""
    with SystemClient(settings_from(data_dir=data_dir, config=config)) as client:
        document = client.get("/api/deliveries/circuits", channel=channel)
    say(document, as_json, delivery_lines.circuits)
    return OK if all(circuit["state"] == "closed" for circuit in document["channels"].values()) else FAILED


@app.command("dry-run")
@exiting
def dry_run(
    message: Annotated[str, typer.Argument(help="What would be sent; - reads a notify.v1 envelope from stdin.")],
    origin: Annotated[str, typer.Option(help="The butler that would ask.")] = "general",
    channel: Annotated[str, typer.Option(help="telegram, email, sms or chat.")] = "telegram",
    recipient: Annotated[str | None, typer.Option("--to", help="An address; default: the owner.")] = None,
    subject: Annotated[str | None, typer.Option(help="For mail.")] = None,
    data_dir: DataDir = None,
    config: Config = None,
    as_json: Json = False,
) -> int:
    """What would happen to a message, without sending it; exit code 1 when it would be refused."""
    delivery = {"intent": "send", "channel": channel, "message": message, "recipient": recipient, "subject": subject}
    body = sys.stdin.buffer.read() if message == "-" else _notify(origin, delivery)
    with SystemClient(settings_from(data_dir=data_dir, config=config)) as client:
        document = client.post("/api/deliveries/dry-run", body)
    say(document, as_json, delivery_lines.dry_run)
    return FAILED if document["outcome"] in REFUSED else OK


@app.command("recipients")
@exiting
def recipients(
    channel: Channel = None,
    limit: Annotated[int, typer.Option(min=1, max=500)] = 50,
    cursor: Annotated[str | None, typer.Option(help="Where an earlier page ended.")] = None,
    data_dir: DataDir = None,
    config: Config = None,
    as_json: Json = False,
) -> int:
    """Who is not written to, or has moved."""
    with SystemClient(settings_from(data_dir=data_dir, config=config)) as client:
        document = client.get("/api/recipients", channel=channel, limit=limit, cursor=cursor)
    return say(document, as_json, delivery_lines.recipients)


@app.command("suppress", context_settings={"ignore_unknown_options": True})  # a chat may be -1007
@exiting
def suppress(
    channel: ChannelName,
    target: Target,
    reason: Reason,
    data_dir: DataDir = None,
    config: Config = None,
    as_json: Json = False,
) -> int:
    """Write to a recipient no more."""
    body = to_json({"channel": channel, "target": target, "reason": reason})
    with SystemClient(settings_from(data_dir=data_dir, config=config)) as client:
        document = client.post("/api/recipients", body)
    return say(document, as_json, delivery_lines.suppressed)


@app.command("release", context_settings={"ignore_unknown_options": True})  # a chat may be -1007
@exiting
def release(
    channel: ChannelName, target: Target, data_dir: DataDir = None, config: Config = None, as_json: Json = False
) -> int:
    """Write to a recipient again."""
    with SystemClient(settings_from(data_dir=data_dir, config=config)) as client:
        document = client.post("/api/recipients/release", to_json({"channel": channel, "target": target}))
    return say(document, as_json, delivery_lines.released)


def say(document: dict[str, Any], as_json: bool, lines: Any) -> int:
    """Print for machines or for people."""
    if as_json:
        print(json.dumps(document))
    else:
        for line in lines(document):
            print(line)
    return OK


def an_id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise ValidationError(f"{text!r} is not an id (a UUID)") from None


def _notify(origin: str, delivery: dict[str, Any]) -> bytes:
    given = {name: value for name, value in delivery.items() if value is not None}
    try:
        return to_json({"schema_version": "notify.v1", "origin_butler": origin, "delivery": given})
    except ValueError:
        raise ValidationError("the message must be text in UTF-8") from None
