"""`butlers connectors`: who brings messages in, and whether it is there."""

from __future__ import annotations

from collections.abc import Iterator

import typer

from butlers.daemon.cli.asking import Document, asking
from butlers.daemon.cli.declared import add_commands
from butlers.daemon.cli.options import lists_by_itself
from butlers.daemon.client import SystemClient
from butlers.operations import connectors
from butlers.operations.operation import when

_WORDS = ("sentence", "remedy")
app = typer.Typer(help="Who brings messages in, and whether it is there.")


def _lines(document: Document) -> Iterator[str]:
    for row in document["connectors"]:
        name = f"{row['connector_type']}:{row['endpoint_identity']}"
        today = row["today"]
        yield (
            f"{name:<32} {row['liveness']:<7}  {row['state']:<8}  up {row['uptime_s']:.0f} s"
            f"  seen {when(row['last_heartbeat_at'])}"
            f"  today {today['messages_ingested']} taken in, {today['messages_failed']} failed"
        )
        if row["error_message"]:
            yield f"    {row['error_message']}"
    for part in document["not_reporting"]:
        yield f"{part['part']:<32} {part['state']}: " + " ".join(part[key] for key in _WORDS if key in part)


@app.command("list")
@asking(_lines, none="no connector has reported yet")
def list_(client: SystemClient) -> Document:
    """Every connector that ever reported."""
    return client.get("/api/connectors") | {"not_reporting": _not_reporting(client)}


def _not_reporting(client: SystemClient) -> list[Document]:
    """Connectors of Switchboard's own process that are not well: one whose source refuses it never gets to a report."""
    parts: list[Document] = client.health(client.switchboard).get("parts", [])
    return [part for part in parts if part["part"].endswith(" connector") and part["state"] != "ok"]


lists_by_itself(app, list_)


add_commands(app, "connectors", connectors.DEREGISTER)
