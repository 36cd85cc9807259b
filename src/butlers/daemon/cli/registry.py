"""`butlers registry ...`: who can take work, and who was taken out of service."""

from __future__ import annotations

from collections.abc import Iterator

import typer

from butlers.daemon.cli.asking import Document, asking
from butlers.daemon.cli.declared import add_commands
from butlers.daemon.client import SystemClient
from butlers.operations import butlers

app = typer.Typer(help="Who can take work.", no_args_is_help=True)


def _butlers(document: Document) -> Iterator[str]:
    for row in document["butlers"]:
        held = f"  held by {row['held']['operator']}: {row['held']['reason']}" if row["held"] else ""
        yield f"{row['name']:<16} {row['eligibility_state']:<12} seen {row['last_seen_at']}{held}"


@app.command("list")
@asking(_butlers, none="nobody is registered")
def list_(client: SystemClient) -> Document:
    """Every butler, and whether it gets routes."""
    return client.get("/api/butlers")


add_commands(app, "registry", butlers.HISTORY, butlers.HOLD, butlers.RELEASE)
