"""`butlers dead-letters`: deliveries that were set aside, and what to do with them."""

from __future__ import annotations

from typing import Annotated

import typer

from butlers.contracts.delivery_state import ENDED_BADLY
from butlers.daemon.cli import delivery_lines as lines
from butlers.daemon.cli.asking import Document, an_id, asking, body
from butlers.daemon.cli.options import Channel, Cursor, Limit, Origin, Reason, Since
from butlers.daemon.client import SystemClient

app = typer.Typer(help="Deliveries that were set aside.", no_args_is_help=True)

DeadLetterId = Annotated[str, typer.Argument(help="A dead letter's id, as `dead-letters list` prints it.")]


@app.command("list")
@asking(lines.dead_letters, more="butlers dead-letters list --cursor", none="no dead letters")
def list_(
    client: SystemClient,
    origin: Origin = None,
    channel: Channel = None,
    error_class: Annotated[str | None, typer.Option(help="Only this class of error.")] = None,
    since: Since = None,
    discarded: Annotated[bool, typer.Option("--discarded", help="Also what was given up.")] = False,
    limit: Limit = 20,
    cursor: Cursor = None,
) -> Document:
    """Dead letters, newest first."""
    filters = {"origin_butler": origin, "channel": channel, "error_class": error_class, "since": since}
    place = {"include_discarded": str(discarded).lower(), "limit": limit, "cursor": cursor}
    return client.get("/api/dead-letters", **filters, **place)


@app.command("show")
@asking(lines.dead_letter)
def show(client: SystemClient, dead_letter_id: DeadLetterId) -> Document:
    """One dead letter: what was asked, all that was tried, whether it may be sent again."""
    return client.get(f"/api/dead-letters/{an_id(dead_letter_id)}")


@app.command("replay")
@asking(lines.result, failed=lambda sent: lines.status_of(sent) in ENDED_BADLY)
def replay(client: SystemClient, dead_letter_id: DeadLetterId) -> Document:
    """Send it again; exit code 1 when that ended badly, too."""
    return client.post(f"/api/dead-letters/{an_id(dead_letter_id)}/replay", b"{}")


@app.command("discard")
@asking(lines.discarded)
def discard(client: SystemClient, dead_letter_id: DeadLetterId, reason: Reason) -> Document:
    """Give it up for good; it can never be replayed."""
    return client.post(f"/api/dead-letters/{an_id(dead_letter_id)}/discard", body({"reason": reason}))
