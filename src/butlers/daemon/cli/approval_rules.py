"""`butlers approvals rules`: which calls pass without asking."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from butlers.daemon.cli.approval_options import ActionId, Butler, of_butler
from butlers.daemon.cli.asking import Document, an_id, asking, body
from butlers.daemon.cli.declared import add_commands
from butlers.daemon.client import SystemClient
from butlers.errors import ValidationError
from butlers.operations import approvals as lines
from butlers.operations import approvals as operations

app = typer.Typer(help="Rules that let calls pass without asking.", no_args_is_help=True)

Expires = Annotated[str | None, typer.Option(help="RFC 3339 moment at which the rule ends.")]
MaxUses = Annotated[int | None, typer.Option(min=1, help="How many calls it lets pass.")]
Description = Annotated[str, typer.Option(help="What it is for.")]
Constraints = Annotated[
    list[str] | None,
    typer.Option(help="NAME=exact:TEXT, NAME=json:VALUE (exact, too), NAME=pattern:GLOB or NAME=any."),
]


add_commands(app, "approvals rules", operations.RULES, operations.SHOW_RULE)


@app.command("create")
@asking(lines.print_rule)
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
@asking(lines.print_rule)
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


add_commands(app, "approvals rules", operations.REVOKE)


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
