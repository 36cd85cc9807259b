"""`butlers approvals`: what waits for a person."""

from __future__ import annotations

from uuid import UUID

import typer

from butlers.daemon.cli import approval_rules
from butlers.daemon.cli.approval_options import ActionId, Butler, OptionalReason, of_butler
from butlers.daemon.cli.asking import Document, an_id, asking, body
from butlers.daemon.cli.declared import add_commands
from butlers.daemon.client import SystemClient
from butlers.errors import ClassifiedError, FieldError, ValidationError
from butlers.operations import approvals as lines
from butlers.operations import approvals as operations

app = typer.Typer(help="What waits for a person's approval.", no_args_is_help=True)
app.add_typer(approval_rules.app, name="rules")


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
