"""`butlers requests`: what came in, what became of it, and what a person can do about it."""

from __future__ import annotations

import inspect
from typing import Annotated, Any

import typer

from butlers.daemon.cli import ask, explain, request_lines
from butlers.daemon.cli.asking import Document, an_id, asking, body
from butlers.daemon.cli.options import Cursor, Limit, Reason, Since
from butlers.daemon.client import SystemClient

app = typer.Typer(help="Recent requests, newest first, and what can be done about them.", invoke_without_command=True)

RequestId = Annotated[str, typer.Argument(help="A request's id, as `requests list` prints it.")]
DeadLetterId = Annotated[str, typer.Argument(help="A dead letter's id, as `requests dead-letters` prints it.")]
OfRequest = Annotated[str | None, typer.Option("--request", help="Only about this request.")]


def _listing(**given: Any) -> None:
    """Recent requests, newest first, and what can be done about them."""
    context: typer.Context = given["context"]
    if context.invoked_subcommand is None:
        ask.requests(**given)
    elif misplaced := _said(context):
        raise typer.BadParameter(f"{misplaced} belongs behind `{context.invoked_subcommand}`")


def _said(context: typer.Context) -> str | None:
    """An option that was given to the group instead of to its command."""
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if source is not None and source.name == "COMMANDLINE":
            return parameter.opts[0]
    return None


def _with_signature_of(command: Any) -> Any:
    _listing.__signature__ = inspect.signature(command)  # type: ignore[attr-defined]
    _listing.__annotations__ = command.__annotations__
    return _listing


app.callback(invoke_without_command=True)(_with_signature_of(ask.requests))
app.command("list")(ask.requests)


@app.command("show")
@asking(explain.trace)
def show(client: SystemClient, request_id: RequestId) -> Document:
    """One request, every hop."""
    return client.get(f"/api/requests/{an_id(request_id)}")


@app.command("reroute")
@asking(request_lines.acted)
def reroute(
    client: SystemClient,
    request_id: RequestId,
    to: Annotated[str, typer.Option("--to", help="The butler that is to have it.")],
    reason: Reason,
) -> Document:
    """Send a request that is open, or ended badly, to another butler."""
    return _act(client, request_id, "reroute", target=to, reason=reason)


@app.command("cancel")
@asking(request_lines.acted)
def cancel(client: SystemClient, request_id: RequestId, reason: Reason) -> Document:
    """Withdraw a request that nobody works on yet."""
    return _act(client, request_id, "cancel", reason=reason)


@app.command("abort")
@asking(request_lines.acted)
def abort(client: SystemClient, request_id: RequestId, reason: Reason) -> Document:
    """Stop the work on a request."""
    return _act(client, request_id, "abort", reason=reason)


@app.command("retry")
@asking(request_lines.acted)
def retry(client: SystemClient, request_id: RequestId, reason: Reason) -> Document:
    """Work on a request again that ended badly; what succeeded is not repeated."""
    return _act(client, request_id, "retry", reason=reason)


@app.command("force-complete")
@asking(request_lines.acted)
def force_complete(
    client: SystemClient,
    request_id: RequestId,
    annotation: Annotated[str, typer.Option("--annotation", help="What was done about it otherwise; it is shown.")],
    reason: Annotated[str, typer.Option("--reason", help="Why; it is kept.")] = "force-completed",
) -> Document:
    """Declare a request done, with a note."""
    return _act(client, request_id, "force-complete", annotation=annotation, reason=reason)


@app.command("replay")
@asking(request_lines.acted)
def replay(client: SystemClient, dead_letter_id: DeadLetterId, reason: Reason) -> Document:
    """Work on a dead letter's request again, under its own id."""
    return client.post(f"/api/requests/dead-letters/{an_id(dead_letter_id)}/replay", body({"reason": reason}))


@app.command("dead-letters")
@asking(request_lines.dead_letters, more="butlers requests dead-letters --cursor", none="no dead letters")
def dead_letters(
    client: SystemClient,
    request: OfRequest = None,
    butler: Annotated[str | None, typer.Option(help="Only what this butler was to do.")] = None,
    error_class: Annotated[str | None, typer.Option(help="Only this class of error.")] = None,
    category: Annotated[str | None, typer.Option(help="Only this category of failure.")] = None,
    since: Since = None,
    settled: Annotated[bool, typer.Option("--settled", help="Also what is settled.")] = False,
    limit: Limit = 20,
    cursor: Cursor = None,
) -> Document:
    """Requests, and parts of them, that failed for good, newest first."""
    which = {"request_id": request and an_id(request), "target_butler": butler, "error_class": error_class}
    place = {"include_resolved": str(settled).lower(), "limit": limit, "cursor": cursor}
    return client.get("/api/requests/dead-letters", **which, failure_category=category, since=since, **place)


@app.command("dead-letter")
@asking(request_lines.dead_letter)
def dead_letter(client: SystemClient, dead_letter_id: DeadLetterId) -> Document:
    """One dead letter, whole."""
    return client.get(f"/api/requests/dead-letters/{an_id(dead_letter_id)}")


@app.command("audit")
@asking(request_lines.actions, more="butlers requests audit --cursor", none="no operator has acted")
def audit(
    client: SystemClient,
    request: OfRequest = None,
    operator: Annotated[str | None, typer.Option(help="Only what this operator did.")] = None,
    action: Annotated[str | None, typer.Option(help="Only this action, e.g. manual_reroute.")] = None,
    since: Since = None,
    limit: Limit = 20,
    cursor: Cursor = None,
) -> Document:
    """What operators did about requests, newest first."""
    which = {"request_id": request and an_id(request), "operator": operator, "action": action}
    return client.get("/api/audit/operators", **which, since=since, limit=limit, cursor=cursor)


@app.command("activity")
@asking(request_lines.activity, more="butlers requests activity --cursor", none="nothing on record")
def activity(
    client: SystemClient,
    butler: Annotated[str | None, typer.Option(help="Only what this butler did.")] = None,
    operation: Annotated[str | None, typer.Option(help="Only this, e.g. session.")] = None,
    result: Annotated[str | None, typer.Option(help="Only with this result, e.g. failed.")] = None,
    since: Since = None,
    limit: Limit = 20,
    cursor: Cursor = None,
) -> Document:
    """What butlers and operators did, newest first: sessions, schedules, actions."""
    which = {"butler": butler, "operation": operation, "result": result}
    return client.get("/api/audit", **which, since=since, limit=limit, cursor=cursor)


def _act(client: SystemClient, request_id: str, action: str, **said: str) -> Document:
    return client.post(f"/api/requests/{an_id(request_id)}/{action}", body(said))
