"""`butlers approvals rules`: which calls pass without asking."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from butlers.daemon.cli import approval_lines as lines
from butlers.daemon.cli.approval_options import ActionId, Butler, ToolName, of_butler
from butlers.daemon.cli.asking import Document, an_id, asking, body
from butlers.daemon.cli.options import Cursor, Limit
from butlers.daemon.client import SystemClient
from butlers.errors import ValidationError

app = typer.Typer(help="Rules that let calls pass without asking.", no_args_is_help=True)

RuleId = Annotated[str, typer.Argument(help="A rule's id, as `approvals rules list` prints it.")]
Expires = Annotated[str | None, typer.Option(help="RFC 3339 moment at which the rule ends.")]
MaxUses = Annotated[int | None, typer.Option(min=1, help="How many calls it lets pass.")]
Description = Annotated[str, typer.Option(help="What it is for.")]
Constraints = Annotated[
    list[str] | None,
    typer.Option(help="NAME=exact:TEXT, NAME=json:VALUE (exact, too), NAME=pattern:GLOB or NAME=any."),
]


@app.command("list")
@asking(lines.listed_rules, more="butlers approvals rules list --cursor", none="no rules")
def list_rules(
    client: SystemClient,
    tool: ToolName = None,
    all_: Annotated[bool, typer.Option("--all", help="Also revoked rules.")] = False,
    limit: Limit = 20,
    cursor: Cursor = None,
    butler: Butler = "messenger",
) -> Document:
    """Rules, newest first."""
    place = {"limit": limit, "cursor": cursor, "butler": butler}
    return client.get("/api/approvals/rules", tool_name=tool, active_only=str(not all_).lower(), **place)


@app.command("show")
@asking(lines.whole_rule)
def show_rule(client: SystemClient, rule_id: RuleId, butler: Butler = "messenger") -> Document:
    """One rule and its latest uses."""
    return client.get(f"/api/approvals/rules/{an_id(rule_id)}", butler=butler)


@app.command("create")
@asking(lines.whole_rule)
def create_rule(
    client: SystemClient,
    tool: Annotated[str, typer.Argument(help="The gated tool, e.g. telegram_send_message.")],
    arg: Constraints = None,
    expires: Expires = None,
    max_uses: MaxUses = None,
    description: Description = "",
    butler: Butler = "messenger",
) -> Document:
    """Let calls of a tool pass without asking."""
    rule = {"tool_name": tool, "arg_constraints": dict(_constraint(item) for item in arg or ())}
    return _create(client, rule | _bounds(expires, max_uses, description), butler)


@app.command("from-action")
@asking(lines.whole_rule)
def create_rule_from_action(
    client: SystemClient,
    action_id: ActionId,
    expires: Expires = None,
    max_uses: MaxUses = None,
    description: Description = "",
    butler: Butler = "messenger",
) -> Document:
    """Let more calls like this one pass: to the same recipient, whatever the words."""
    return _create(client, {"action_id": an_id(action_id)} | _bounds(expires, max_uses, description), butler)


@app.command("revoke")
@asking(lines.whole_rule)
def revoke_rule(client: SystemClient, rule_id: RuleId, butler: Butler = "messenger") -> Document:
    """End a rule."""
    return client.post(f"/api/approvals/rules/{an_id(rule_id)}/revoke{of_butler(butler)}", b"{}")


def _create(client: SystemClient, rule: dict[str, Any], butler: str) -> Document:
    return client.post(f"/api/approvals/rules{of_butler(butler)}", body(rule))


def _bounds(expires: str | None, max_uses: int | None, description: str) -> dict[str, Any]:
    return {"expires_at": expires, "max_uses": max_uses, "description": description or None}


def _constraint(item: str) -> tuple[str, dict[str, Any]]:
    name, _, said = item.partition("=")
    kind, colon, value = said.partition(":")
    if name and kind == "any" and not colon:
        return name, {"type": "any"}
    if name and colon and kind in ("exact", "pattern"):
        return name, {"type": kind, "value": value}
    if name and colon and kind == "json":
        return name, {"type": "exact", "value": _parsed(value)}
    raise ValidationError(f"--arg {item!r} must be NAME=exact:TEXT, NAME=json:VALUE, NAME=pattern:GLOB or NAME=any")


def _parsed(value: str) -> Any:
    try:
        return json.loads(value)
    except ValueError:
        raise ValidationError(f"{value!r} is not JSON") from None
