"""`butlers extractions`: what messages told about people, and what waits for a person to say whether it is so."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated

import typer

from butlers.daemon.cli import explain
from butlers.daemon.cli.asking import Document, asking
from butlers.daemon.cli.options import Cursor, Limit
from butlers.daemon.client import SystemClient


class Status(StrEnum):
    PENDING = "pending"
    CONFIRMED = "confirmed"
    DISMISSED = "dismissed"
    EXPIRED = "expired"
    REFUSED = "refused"
    ANY = "any"


def _lines(document: Document) -> Iterator[str]:
    for row in document["extractions"]:
        told = ", ".join(f"{name} {value}" for name, value in row["data"].items() if value not in (None, ""))
        kind, who = row["signal_type"], row["contact_hint"] or "-"
        created = explain.when(row["created_at"])
        yield f"{row['id']}  {created}  {row['status']:<9}  {row['confidence']:.2f}  {kind:<11}  {who}: {told}"


@asking(_lines, more="butlers extractions --cursor", none="no extractions")
def extractions(
    client: SystemClient,
    status: Annotated[Status, typer.Option(help="Only those that stand like this.")] = Status.PENDING,
    limit: Limit = 20,
    cursor: Cursor = None,
) -> Document:
    """What messages told about people, newest first; pending: it waits for a person."""
    return client.get("/api/extractions", status=status, limit=limit, cursor=cursor)
