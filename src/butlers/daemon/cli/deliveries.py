"""`butlers deliveries`: what was sent, what waits, and how the way out is doing."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from butlers.butler.notifier import OWNER_CHANNEL
from butlers.channels.registry import listed, outbound_names
from butlers.daemon.cli.asking import Document, asking, body
from butlers.daemon.cli.declared import add_commands
from butlers.daemon.client import SystemClient
from butlers.operations import deliveries, recipients
from butlers.operations import delivery_lines as lines

app = typer.Typer(help="What was sent, what waits, and how the way out is doing.", no_args_is_help=True)
REFUSED = frozenset({"invalid", "suppressed", "rejected"})

add_commands(app, "deliveries", *deliveries.OPERATIONS)


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


add_commands(app, "deliveries", *recipients.OPERATIONS)


def _notify(origin: str, delivery: dict[str, Any]) -> bytes:
    given = {name: value for name, value in delivery.items() if value is not None}
    return body({"schema_version": "notify.v1", "origin_butler": origin, "delivery": given})
