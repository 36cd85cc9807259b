"""`butlers approvals`: what waits for a person, and the rules that let some of it pass."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Annotated, Any
from urllib.parse import quote

import typer
from pydantic_core import to_json

from butlers.daemon.cli.deliveries import an_id, say
from butlers.daemon.cli.exits import FAILED, OK, exiting
from butlers.daemon.cli.options import Config, DataDir, Json, settings_from
from butlers.daemon.client import SystemClient
from butlers.errors import ValidationError

app = typer.Typer(help="What waits for a person's approval.", no_args_is_help=True)
rules_app = typer.Typer(help="Rules that let calls pass without asking.", no_args_is_help=True)
app.add_typer(rules_app, name="rules")

ActionId = Annotated[str, typer.Argument(help="An action's id, as `approvals list` prints it.")]
RuleId = Annotated[str, typer.Argument(help="A rule's id, as `approvals rules list` prints it.")]
Butler = Annotated[str, typer.Option(help="Whose actions.")]
Reason = Annotated[str | None, typer.Option(help="Why; it is kept.")]
Limit = Annotated[int, typer.Option(min=1, max=500)]
Cursor = Annotated[str | None, typer.Option(help="Where an earlier page ended.")]
ToolName = Annotated[str | None, typer.Option("--tool", help="Only calls of this tool.")]
Expires = Annotated[str | None, typer.Option(help="RFC 3339 moment at which the rule ends.")]
MaxUses = Annotated[int | None, typer.Option(min=1, help="How many calls it lets pass.")]
Description = Annotated[str, typer.Option(help="What it is for.")]


class Status(StrEnum):
    PENDING = "pending"
    APPROVED = "approved"
    REJECTED = "rejected"
    EXPIRED = "expired"
    EXECUTED = "executed"
    ANY = "any"


@app.command("list")
@exiting
def list_(
    status: Annotated[Status, typer.Option(help="Only actions that stand like this.")] = Status.PENDING,
    tool: ToolName = None,
    limit: Limit = 20,
    cursor: Cursor = None,
    butler: Butler = "messenger",
    data_dir: DataDir = None,
    config: Config = None,
    as_json: Json = False,
) -> int:
    """Actions, newest first."""
    place = {"limit": limit, "cursor": cursor, "butler": butler}
    with SystemClient(settings_from(data_dir=data_dir, config=config)) as client:
        document = client.get("/api/approvals", status=status, tool_name=tool, **place)
    return _say(document, as_json, _action_lines)


@app.command("show")
@exiting
def show(
    action_id: ActionId,
    butler: Butler = "messenger",
    data_dir: DataDir = None,
    config: Config = None,
    as_json: Json = False,
) -> int:
    """One action: what would happen, who asked, and what became of it."""
    with SystemClient(settings_from(data_dir=data_dir, config=config)) as client:
        document = client.get(f"/api/approvals/{an_id(action_id)}", butler=butler)
    return _say(document, as_json, _whole_action)


@app.command("approve")
@exiting
def approve(
    action_id: ActionId,
    reason: Reason = None,
    butler: Butler = "messenger",
    data_dir: DataDir = None,
    config: Config = None,
    as_json: Json = False,
) -> int:
    """Let it happen; exit code 1 when it was tried and failed."""
    document = _decide("approve", action_id, reason, butler, data_dir, config)
    _say(document, as_json, _decision)
    return FAILED if "error" in (document["action"]["result"] or {}) else OK


@app.command("reject")
@exiting
def reject(
    action_id: ActionId,
    reason: Reason = None,
    butler: Butler = "messenger",
    data_dir: DataDir = None,
    config: Config = None,
    as_json: Json = False,
) -> int:
    """Refuse it for good."""
    return _say(_decide("reject", action_id, reason, butler, data_dir, config), as_json, _decision)


@rules_app.command("list")
@exiting
def list_rules(
    tool: ToolName = None,
    all_: Annotated[bool, typer.Option("--all", help="Also revoked rules.")] = False,
    limit: Limit = 20,
    cursor: Cursor = None,
    butler: Butler = "messenger",
    data_dir: DataDir = None,
    config: Config = None,
    as_json: Json = False,
) -> int:
    """Rules, newest first."""
    place = {"limit": limit, "cursor": cursor, "butler": butler}
    with SystemClient(settings_from(data_dir=data_dir, config=config)) as client:
        document = client.get("/api/approvals/rules", tool_name=tool, active_only=str(not all_).lower(), **place)
    return _say(document, as_json, _rule_lines)


@rules_app.command("show")
@exiting
def show_rule(
    rule_id: RuleId,
    butler: Butler = "messenger",
    data_dir: DataDir = None,
    config: Config = None,
    as_json: Json = False,
) -> int:
    """One rule and its latest uses."""
    with SystemClient(settings_from(data_dir=data_dir, config=config)) as client:
        document = client.get(f"/api/approvals/rules/{an_id(rule_id)}", butler=butler)
    return _say(document, as_json, _whole_rule)


@rules_app.command("create")
@exiting
def create_rule(
    tool: Annotated[str, typer.Argument(help="The gated tool, e.g. telegram_send_message.")],
    arg: Annotated[
        list[str] | None,
        typer.Option(help="NAME=exact:TEXT, NAME=json:VALUE (exact, too), NAME=pattern:GLOB or NAME=any."),
    ] = None,
    expires: Expires = None,
    max_uses: MaxUses = None,
    description: Description = "",
    butler: Butler = "messenger",
    data_dir: DataDir = None,
    config: Config = None,
    as_json: Json = False,
) -> int:
    """Let calls of a tool pass without asking."""
    rule = {"tool_name": tool, "arg_constraints": dict(_constraint(item) for item in arg or ())}
    bounds = _bounds(expires, max_uses, description)
    return _say(_create(rule | bounds, butler, data_dir, config), as_json, _whole_rule)


@rules_app.command("from-action")
@exiting
def create_rule_from_action(
    action_id: ActionId,
    expires: Expires = None,
    max_uses: MaxUses = None,
    description: Description = "",
    butler: Butler = "messenger",
    data_dir: DataDir = None,
    config: Config = None,
    as_json: Json = False,
) -> int:
    """Let more calls like this one pass: to the same recipient, whatever the words."""
    rule = {"action_id": an_id(action_id)} | _bounds(expires, max_uses, description)
    return _say(_create(rule, butler, data_dir, config), as_json, _whole_rule)


@rules_app.command("revoke")
@exiting
def revoke_rule(
    rule_id: RuleId,
    butler: Butler = "messenger",
    data_dir: DataDir = None,
    config: Config = None,
    as_json: Json = False,
) -> int:
    """End a rule."""
    with SystemClient(settings_from(data_dir=data_dir, config=config)) as client:
        document = client.post(f"/api/approvals/rules/{an_id(rule_id)}/revoke{_of(butler)}", b"{}")
    return _say(document, as_json, _whole_rule)


# --- asking ----------------------------------------------------------------------------------------------------------


def _decide(
    verb: str, action_id: str, reason: str | None, butler: str, data_dir: DataDir, config: Config
) -> dict[str, Any]:
    body = _body({} if reason is None else {"reason": reason})
    with SystemClient(settings_from(data_dir=data_dir, config=config)) as client:
        document: dict[str, Any] = client.post(f"/api/approvals/{an_id(action_id)}/{verb}{_of(butler)}", body)
    return document


def _create(rule: dict[str, Any], butler: str, data_dir: DataDir, config: Config) -> dict[str, Any]:
    with SystemClient(settings_from(data_dir=data_dir, config=config)) as client:
        document: dict[str, Any] = client.post(f"/api/approvals/rules{_of(butler)}", _body(rule))
    return document


def _of(butler: str) -> str:
    return f"?butler={quote(butler, safe='')}"


def _bounds(expires: str | None, max_uses: int | None, description: str) -> dict[str, Any]:
    bounds = {"expires_at": expires, "max_uses": max_uses, "description": description or None}
    return {name: value for name, value in bounds.items() if value is not None}


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


def _body(document: dict[str, Any]) -> bytes:
    try:
        return to_json(document)
    except ValueError:
        raise ValidationError("what is said must be text in UTF-8") from None


# --- saying ----------------------------------------------------------------------------------------------------------


def _say(document: dict[str, Any], as_json: bool, lines: Callable[[dict[str, Any]], Iterator[str]]) -> int:
    """Print what others wrote so that it cannot pretend to be something else on a terminal."""
    return say(document, as_json, lambda told: map(_plain, lines(told)))


def _plain(line: str) -> str:
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in line)


def _action_lines(document: dict[str, Any]) -> Iterator[str]:
    # Plain lines: a table would cut the ids that people copy.
    for action in document["actions"]:
        yield f"{action['id']}  {_when(action['requested_at'])}  {action['status']:<8}  {action['summary']}"
    yield from _end(document, "actions")


def _whole_action(document: dict[str, Any]) -> Iterator[str]:
    action = document["action"]
    yield f"action {action['id']}: {action['status']}"
    yield f"  what     {action['summary']}"
    yield f"  tool     {action['tool_name']} {json.dumps(action['tool_args'], ensure_ascii=False)}"
    yield f"  asked    {_when(action['requested_at'])} by {action['requested_by']}, until {_when(action['expires_at'])}"
    if action["needs_person"]:
        yield "  note     no rule may allow it"
    for event in action["events"]:
        reason = event["details"].get("reason")
        yield f"  {event['event']:<8} {_when(event['at'])} by {event['actor']}{f': {reason}' if reason else ''}"
    if action["result"]:
        yield f"  result   {json.dumps(action['result'], ensure_ascii=False)}"


def _decision(document: dict[str, Any]) -> Iterator[str]:
    action = document["action"]
    yield f"{action['status']}: {action['summary']}"
    if error := (action["result"] or {}).get("error"):
        yield f"  it failed: {error['class']}: {error['message']}"


def _rule_lines(document: dict[str, Any]) -> Iterator[str]:
    for rule in document["rules"]:
        yield f"{rule['id']}  {_state(rule):<8}  used {_uses(rule):<8}  {rule['tool_name']}  {_constraints(rule)}"
    yield from _end(document, "rules")


def _whole_rule(document: dict[str, Any]) -> Iterator[str]:
    rule = document["rule"]
    yield f"rule {rule['id']}: {_state(rule)}"
    yield f"  allows   {rule['tool_name']} {_constraints(rule)}"
    yield f"  used     {_uses(rule)}"
    if rule["expires_at"]:
        yield f"  until    {_when(rule['expires_at'])}"
    yield f"  made     {_when(rule['created_at'])} by {rule['created_by']} {rule['description']}".rstrip()


def _state(rule: dict[str, Any]) -> str:
    return "active" if rule["active"] else "revoked"


def _uses(rule: dict[str, Any]) -> str:
    return f"{rule['use_count']} of {rule['max_uses'] or 'any'}"


def _constraints(rule: dict[str, Any]) -> str:
    words = (f"{name}={_said(constraint)}" for name, constraint in rule["arg_constraints"].items())
    return ", ".join(words) or "whatever the arguments"


def _said(constraint: dict[str, Any]) -> str:
    if constraint["type"] == "any":
        return "any"
    return f"{constraint['type']}:{json.dumps(constraint['value'], ensure_ascii=False)}"


def _end(document: dict[str, Any], what: str) -> Iterator[str]:
    if not document[what]:
        yield f"no {what}"
    if document["next_cursor"]:
        yield f"more: --cursor {document['next_cursor']}"


def _when(timestamp: str) -> str:
    return timestamp[:19].replace("T", " ")
