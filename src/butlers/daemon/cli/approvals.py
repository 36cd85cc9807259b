"""`butlers approvals`: what waits for a person."""

from __future__ import annotations

import json
from typing import Annotated, Any
from urllib.parse import quote
from uuid import UUID

import typer

from butlers.daemon.cli.asking import Document, an_id, asking, body
from butlers.daemon.cli.declared import add_commands
from butlers.daemon.client import SystemClient
from butlers.errors import ClassifiedError, FieldError, ValidationError
from butlers.operations import approvals as lines
from butlers.operations import approvals as operations

ActionId = Annotated[str, typer.Argument(help="An action's id, as `approvals list` prints it.")]
Butler = Annotated[str, typer.Option(help="Whose actions.")]
OptionalReason = Annotated[str | None, typer.Option("--reason", help="Why; it is kept.")]


def of_butler(name: str) -> str:
    """The query that names the butler whose actions are meant."""
    return f"?butler={quote(name, safe='')}"


rules_app = typer.Typer(help="Rules that let calls pass without asking.", no_args_is_help=True)

Expires = Annotated[str | None, typer.Option(help="RFC 3339 moment at which the rule ends.")]
MaxUses = Annotated[int | None, typer.Option(min=1, help="How many calls it lets pass.")]
Description = Annotated[str, typer.Option(help="What it is for.")]
Constraints = Annotated[
    list[str] | None,
    typer.Option(help="NAME=exact:TEXT, NAME=json:VALUE (exact, too), NAME=pattern:GLOB or NAME=any."),
]


add_commands(rules_app, "approvals rules", operations.RULES, operations.SHOW_RULE)


@rules_app.command("create")
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


@rules_app.command("from-action")
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


add_commands(rules_app, "approvals rules", operations.REVOKE)


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


app = typer.Typer(help="What waits for a person's approval.", no_args_is_help=True)
app.add_typer(rules_app, name="rules")


add_commands(app, "approvals", operations.LIST, operations.SHOW)


@app.command("approve")
@asking(lines.print_decision, failed=lambda decided: "error" in (decided["action"]["result"] or {}))
def approve(
    client: SystemClient, action_id: ActionId, reason: OptionalReason = None, butler: Butler = "messenger"
) -> Document:
    """Let it happen; exit code 1 when it was tried and failed."""
    return _decide(client, "approve", action_id, reason, butler)


@app.command("reject")
@asking(lines.print_decision)
def reject(
    client: SystemClient, action_id: ActionId, reason: OptionalReason = None, butler: Butler = "messenger"
) -> Document:
    """Refuse it for good."""
    return _decide(client, "reject", action_id, reason, butler)


def _decide(client: SystemClient, verb: str, action_id: str, reason: str | None, butler: str) -> Document:
    wanted = an_id(action_id)
    try:
        decided = client.post(f"/api/approvals/{wanted}/{verb}{of_butler(butler)}", body({"reason": reason}))
    except ValidationError as error:
        raise _already(error) from None
    return decided | _delivery(client, wanted)


def _already(error: ValidationError) -> ValidationError:
    """A decision that comes too late, in words that say that nothing was changed by it."""
    _, late, stands = error.message.partition("the action is not pending: it ")
    if not late:
        return error
    problem = f"the action {stands} already"
    return ValidationError(f"nothing was changed: {problem}", fields=(FieldError(field="action_id", error=problem),))


def _delivery(client: SystemClient, action_id: UUID) -> Document:
    """The delivery that the action held back, when it held one back, and where it stands now."""
    try:
        found = client.get(f"/api/deliveries/{action_id}/why")
    except ClassifiedError:  # decided it is, whatever can be said about it
        return {}
    return {"delivery": {"delivery_id": found["delivery_id"], "status": found["status"]}}
