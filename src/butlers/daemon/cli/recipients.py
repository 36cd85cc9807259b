"""`butlers deliveries recipients`, `suppress` and `unsuppress`: who is not written to."""

from __future__ import annotations

from typing import Annotated

import typer

from butlers.channels.registry import listed, outbound_names
from butlers.daemon.cli import delivery_lines as lines
from butlers.daemon.cli.asking import Document, asking, body
from butlers.daemon.cli.options import Channel, Cursor, Limit, Reason
from butlers.daemon.client import SystemClient

ChannelName = Annotated[str, typer.Argument(metavar="CHANNEL", help=f"{listed(outbound_names())}.")]
Target = Annotated[str, typer.Argument(help="The recipient's address on that channel.")]


@asking(lines.recipients, more="butlers deliveries recipients --cursor", none="nobody is held back")
def recipients(client: SystemClient, channel: Channel = None, limit: Limit = 50, cursor: Cursor = None) -> Document:
    """Who is not written to, or has moved."""
    return client.get("/api/recipients", channel=channel, limit=limit, cursor=cursor)


@asking(lines.suppressed)
def suppress(client: SystemClient, channel: ChannelName, target: Target, reason: Reason) -> Document:
    """Write to a recipient no more."""
    return client.post("/api/recipients", body({"channel": channel, "target": target, "reason": reason}))


@asking(lines.released)
def unsuppress(client: SystemClient, channel: ChannelName, target: Target) -> Document:
    """Write to a recipient again."""
    return client.post("/api/recipients/release", body({"channel": channel, "target": target}))
