"""`butlers approvals`: what waits for a person."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from butlers.daemon.cli import approval_lines as lines
from butlers.daemon.cli import approval_rules
from butlers.daemon.cli.approval_options import ActionId, Butler, OptionalReason, ToolName, of_butler
from butlers.daemon.cli.asking import Document, an_id, asking, body
from butlers.daemon.cli.options import Cursor, Limit
from butlers.daemon.client import SystemClient

app = typer.Typer(help="What waits for a person's approval.", no_args_is_help=True)
app.add_typer(approval_rules.app, name="rules")


class Status(StrEnum):
    PENDING = "pending"
    APPROVED = "approved"
    REJECTED = "rejected"
    EXPIRED = "expired"
    EXECUTED = "executed"
    ANY = "any"


@app.command("list")
@asking(lines.listed_actions, more="butlers approvals list --cursor", none="no actions")
def list_(
    client: SystemClient,
    status: Annotated[Status, typer.Option(help="Only actions that stand like this.")] = Status.PENDING,
    tool: ToolName = None,
    limit: Limit = 20,
    cursor: Cursor = None,
    butler: Butler = "messenger",
) -> Document:
    """Actions, newest first."""
    place = {"limit": limit, "cursor": cursor, "butler": butler}
    return client.get("/api/approvals", status=status, tool_name=tool, **place)


@app.command("show")
@asking(lines.whole_action)
def show(client: SystemClient, action_id: ActionId, butler: Butler = "messenger") -> Document:
    """One action: what would happen, who asked, and what became of it."""
    return client.get(f"/api/approvals/{an_id(action_id)}", butler=butler)


@app.command("approve")
@asking(lines.decision, failed=lambda decided: "error" in (decided["action"]["result"] or {}))
def approve(
    client: SystemClient, action_id: ActionId, reason: OptionalReason = None, butler: Butler = "messenger"
) -> Document:
    """Let it happen; exit code 1 when it was tried and failed."""
    return _decide(client, "approve", action_id, reason, butler)


@app.command("reject")
@asking(lines.decision)
def reject(
    client: SystemClient, action_id: ActionId, reason: OptionalReason = None, butler: Butler = "messenger"
) -> Document:
    """Refuse it for good."""
    return _decide(client, "reject", action_id, reason, butler)


def _decide(client: SystemClient, verb: str, action_id: str, reason: str | None, butler: str) -> Document:
    return client.post(f"/api/approvals/{an_id(action_id)}/{verb}{of_butler(butler)}", body({"reason": reason}))
