"""`butlers registry ...`: who can take work, and who was taken out of service."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer

from butlers.daemon.cli.asking import Document, asking, body
from butlers.daemon.cli.options import Cursor, Limit, Reason
from butlers.daemon.client import SystemClient

app = typer.Typer(help="Who can take work.", no_args_is_help=True)
Name = Annotated[str, typer.Argument(metavar="BUTLER", help="A butler's name.")]


def _butlers(document: Document) -> Iterator[str]:
    for row in document["butlers"]:
        held = f"  held by {row['held']['operator']}: {row['held']['reason']}" if row["held"] else ""
        yield f"{row['name']:<16} {row['eligibility_state']:<12} seen {row['last_seen_at']}{held}"


def _history(document: Document) -> Iterator[str]:
    for row in document["history"]:
        yield f"{row['observed_at']}  {row['previous'] or '-'} -> {row['new']}  {row['reason']}"


def _state(document: Document) -> Iterator[str]:
    held = document["held"]
    yield f"{document['butler']}: {'held by ' + held['operator'] if held else document['eligibility_state']}"


@app.command("list")
@asking(_butlers, none="nobody is registered")
def list_(client: SystemClient) -> Document:
    """Every butler, and whether it gets routes."""
    return client.get("/api/butlers")


@app.command()
@asking(_history, more="butlers registry history --cursor", none="nothing ever changed")
def history(client: SystemClient, butler: Name, limit: Limit = 50, cursor: Cursor = None) -> Document:
    """Why a butler was or was not routable, newest first."""
    return client.get(f"/api/butlers/{butler}/history", limit=limit, cursor=cursor)


@app.command()
@asking(_state)
def hold(client: SystemClient, butler: Name, reason: Reason) -> Document:
    """Take a butler out of service: it gets no new routes, whatever signs of life it gives."""
    return client.post(f"/api/butlers/{butler}/hold", body({"reason": reason}))


@app.command()
@asking(_state)
def release(client: SystemClient, butler: Name, reason: Reason) -> Document:
    """Put a butler back into service."""
    return client.post(f"/api/butlers/{butler}/release", body({"reason": reason}))
