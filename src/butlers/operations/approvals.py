"""Approvals: what waits for a person, the decisions, and rules that let calls pass without asking.

The butler whose actions they are carries them out: over HTTP `?butler=` names it, else it is Messenger. Whatever
decides is for operators, and for Switchboard on an operator's behalf.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Annotated, Any, Final, Literal, Self
from uuid import UUID

from pydantic import Field, JsonValue, StringConstraints, model_validator

from butlers.contracts.approval_state import Status
from butlers.contracts.envelope import MAX_IDENTITY, Identity, Timestamp, Value
from butlers.errors import ClassifiedError, FieldError, ValidationError
from butlers.operations import operation as op

DEFAULT_BUTLER = "messenger"  # whose actions are meant when nobody is named
MAX_USES = 1_000_000
_BUTLER = op.Parameter(
    name="butler",
    annotation=Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_-]{0,62}$")],
    default=op.MESSENGER,
    description="whose actions",
)
_ACTION = op.Option("action_id", "An action's id, as `approvals list` prints it.", positional=True)
_RULE = op.Option("rule_id", "A rule's id, as `approvals rules list` prints it.")
_TOOL = op.Option("tool_name", "Only calls of this tool.", "--tool")
_WHOSE = op.Option("butler", "Whose actions.")
_PAGE = (op.LIMIT, op.CURSOR, _WHOSE)
_BOUNDS = (
    op.Option("expires_at", "RFC 3339 moment at which the rule ends.", "--expires"),
    op.Option("max_uses", "How many calls it lets pass."),
    op.Option("description", "What it is for."),
    _WHOSE,
)


def print_actions(document: op.Document) -> Iterator[str]:
    # Plain lines: a table would cut the ids that people copy.
    for action in document["actions"]:
        yield f"{action['id']}  {op.when(action['requested_at'])}  {action['status']:<8}  {action['summary']}"


def print_action(document: op.Document) -> Iterator[str]:
    action = document["action"]
    yield f"action {action['id']}: {action['status']}"
    yield f"  what     {action['summary']}"
    yield f"  tool     {action['tool_name']} {json.dumps(action['tool_args'], ensure_ascii=False)}"
    until = op.when(action["expires_at"])
    yield f"  asked    {op.when(action['requested_at'])} by {action['requested_by']}, until {until}"
    if action["needs_person"]:
        yield "  note     no rule may allow it"
    for event in action["events"]:
        reason = event["details"].get("reason")
        yield f"  {event['event']:<8} {op.when(event['at'])} by {event['actor']}{f': {reason}' if reason else ''}"
    if action["result"]:
        yield f"  result   {json.dumps(action['result'], ensure_ascii=False)}"
    if action["status"] == "pending":
        of = f" --butler {butler}" if (butler := document.get("butler", DEFAULT_BUTLER)) != DEFAULT_BUTLER else ""
        yield op.Hint(f"  let it happen: butlers approvals approve {action['id']}{of}")
        yield op.Hint(f"  refuse it:     butlers approvals reject {action['id']}{of}")


def print_decision(document: op.Document) -> Iterator[str]:
    action = document["action"]
    yield f"{action['status']}: {action['summary']}"
    if error := (action["result"] or {}).get("error"):
        yield f"  it failed: {error['class']}: {error['message']}"
    if delivery := document.get("delivery"):
        yield f"delivery {delivery['delivery_id']}: {delivery['status']}"
        yield op.Hint(f"follow it with: butlers why {delivery['delivery_id']}")


def print_rules(document: op.Document) -> Iterator[str]:
    for rule in document["rules"]:
        yield f"{rule['id']}  {_state(rule):<8}  used {_uses(rule):<8}  {rule['tool_name']}  {_constraints(rule)}"


def print_rule(document: op.Document) -> Iterator[str]:
    rule = document["rule"]
    yield f"rule {rule['id']}: {_state(rule)}"
    yield f"  allows   {rule['tool_name']} {_constraints(rule)}"
    yield f"  used     {_uses(rule)}"
    if rule["expires_at"]:
        yield f"  until    {op.when(rule['expires_at'])}"
    yield f"  made     {op.when(rule['created_at'])} by {rule['created_by']} {rule['description']}".rstrip()


def _state(rule: op.Document) -> str:
    return "active" if rule["active"] else "revoked"


def _uses(rule: op.Document) -> str:
    return f"{rule['use_count']} of {rule['max_uses'] or 'any'}"


def _constraints(rule: op.Document) -> str:
    words = (f"{name}={_constraint_text(constraint)}" for name, constraint in rule["arg_constraints"].items())
    return ", ".join(words) or "whatever the arguments"


def _constraint_text(constraint: op.Document) -> str:
    if constraint["type"] == "any":
        return "any"
    return f"{constraint['type']}:{json.dumps(constraint['value'], ensure_ascii=False)}"


Reason = Annotated[str, StringConstraints(max_length=2_000)]
Limit = Annotated[int, Field(ge=1, le=500)]


class ActionArguments(Value):
    action_id: UUID = Field(description="the pending action, by its id")


class DecisionArguments(op.DecidedArguments):
    action_id: UUID = Field(description="the pending action, by its id")
    reason: Reason | None = Field(default=None, description="why, for the record")


class ListExecutedArguments(Value):
    tool_name: Identity | None = Field(default=None, description="only actions of this tool")
    cursor: UUID | None = Field(default=None, description="next_cursor of the page before; absent: the first page")
    limit: Limit = Field(default=op.PAGE, description="at most so many, on one page")


class ListActionsArguments(ListExecutedArguments):
    status: Status | Literal["any"] = Field(default="pending", description="only actions in this state")


class RuleArguments(Value):
    rule_id: UUID = Field(description="the rule, by its id")


class RevokeArguments(op.DecidedArguments):
    rule_id: UUID = Field(description="the rule, by its id")


class ListRulesArguments(Value):
    tool_name: Identity | None = Field(default=None, description="only rules about this tool")
    active_only: bool = Field(default=True, description="leave out rules that have ended")
    cursor: UUID | None = Field(default=None, description="next_cursor of the page before; absent: the first page")
    limit: Limit = Field(default=op.PAGE, description="at most so many, on one page")


class Constraint(Value):
    """What one argument of a call must be."""

    type: Literal["exact", "pattern", "any"] = Field(
        description="exact: equals value; pattern: fits value (* and ? are wild); any: whatever it is"
    )
    value: JsonValue = Field(default=None, description="what is compared with; none for any")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.type == "exact" and "value" not in self.model_fields_set:
            raise ValueError("exact needs a value")
        if self.type == "pattern" and not (isinstance(self.value, str) and 0 < len(self.value) <= MAX_IDENTITY):
            raise ValueError(f"pattern needs a text of 1 to {MAX_IDENTITY} characters as its value")
        if self.type == "any" and self.value is not None:
            raise ValueError("any takes no value")
        return self

    def to_constraint(self) -> dict[str, Any]:
        return {"type": self.type} if self.type == "any" else {"type": self.type, "value": self.value}


Constraints = Annotated[dict[Identity, Constraint], Field(max_length=50)]


class RuleBounds(op.DecidedArguments):
    expires_at: Timestamp | None = Field(default=None, description="the rule ends then: RFC 3339 with an offset")
    max_uses: Annotated[int, Field(ge=1, le=MAX_USES)] | None = Field(
        default=None, description="the rule ends after so many calls"
    )
    description: Reason = Field(default="", description="what the rule is for, in words")


class CreateRuleArguments(RuleBounds):
    tool_name: Identity = Field(description="the tool whose calls pass")
    arg_constraints: Constraints = Field(default_factory=dict, description="by argument: what it must be")


class RuleFromActionArguments(RuleBounds):
    action_id: UUID = Field(description="the action that the rule is made from")
    arg_constraints: Constraints | None = Field(
        default=None, description="by argument: what it must be; absent: as the action suggests"
    )


class ActionResult(op.Result):
    action: op.Row = Field(description="the action: what was asked, by whom, and what was decided")


class ActionList(op.Page):
    actions: list[op.Row] = Field(description="the actions: id, tool, summary, status, who asked and who decided")


class ActionCounts(op.Result):
    pending: int = Field(description="how many wait")
    by_tool: dict[str, int] = Field(description="how many wait, by tool")
    by_status: dict[str, int] = Field(description="how many there are, by status")
    oldest_requested_at: str | None = Field(description="since when the oldest waits")
    next_expires_at: str | None = Field(description="when the next one runs out")


class ExpiredActions(op.Result):
    expired: int = Field(description="how many were closed")


class RuleResult(op.Result):
    rule: op.Row = Field(description="the rule: tool, constraints, bounds and uses")


class RuleList(op.Page):
    rules: list[op.Row] = Field(description="the rules: tool, constraints, bounds and uses")


def _route(method: str, path: str, summary: str, name: str) -> op.Route:
    """The butler whose actions are meant carries the operation out."""
    return op.Route(
        method=method,
        path=path,
        summary=summary,
        parameters=(_BUTLER,),
        target=lambda given: op.Target(butler=given.pop("butler"), operation=name),
    )


def _rule_maker(given: dict[str, Any]) -> op.Target:
    made_from = FROM_ACTION if "action_id" in given else CREATE_RULE
    return op.Target(butler=given.pop("butler"), operation=made_from.name)


def _with_delivery(system: op.System, _given: op.Document, decided: dict[str, Any]) -> dict[str, Any]:
    """The delivery that the action held back, when it held one back, and where it stands now."""
    try:
        found = system.get(f"/api/deliveries/{decided['action']['id']}/why")
    except ClassifiedError:  # decided it is, whatever can be said about it
        return decided
    return decided | {"delivery": {"delivery_id": found["delivery_id"], "status": found["status"]}}


def _already(error: ValidationError) -> ValidationError:
    """A decision that comes too late, in words that say that nothing was changed by it."""
    _, late, stands = error.message.partition("the action is not pending: it ")
    if not late:
        return error
    problem = f"the action {stands} already"
    return ValidationError(f"nothing was changed: {problem}", fields=(FieldError(field="action_id", error=problem),))


def _parse_constraints(texts: Sequence[str]) -> dict[str, dict[str, Any]]:
    """By argument what each text says: NAME=exact:TEXT, NAME=json:VALUE, NAME=pattern:GLOB or NAME=any."""
    constraints: dict[str, dict[str, Any]] = {}
    for text in texts:
        name, _, constraint = text.partition("=")
        kind, colon, value = constraint.partition(":")
        if name and kind == "any" and not colon:
            constraints[name] = {"type": "any"}
        elif name and colon and kind in ("exact", "pattern"):
            constraints[name] = {"type": kind, "value": value}
        elif name and colon and kind == "json":
            try:
                constraints[name] = {"type": "exact", "value": json.loads(value)}
            except ValueError:
                raise ValidationError(f"{value!r} is not JSON") from None
        else:
            forms = "NAME=exact:TEXT, NAME=json:VALUE, NAME=pattern:GLOB or NAME=any"
            raise ValidationError(f"--arg {text!r} must be {forms}")
    return constraints


_reads = partial(op.Operation, hints=op.READS, butler=op.MESSENGER)
_decides = partial(op.Operation, owner=op.SWITCHBOARD, butler=op.MESSENGER)

LIST: Final = _reads(
    name="list_pending_actions",
    description="Actions, newest first.",
    arguments=ListActionsArguments,
    returns=ActionList,
    routes=(_route("GET", "/approvals", "Actions, newest first", "list_pending_actions"),),
    commands=(
        op.Command(
            "approvals list",
            "Actions, newest first.",
            print_actions,
            (
                op.Option("status", "Only actions that stand like this.", choices=True),
                _TOOL,
                op.LIMIT,
                op.CURSOR,
                _WHOSE,
            ),
            none="no actions",
        ),
    ),
)
SHOW: Final = _reads(
    name="show_pending_action",
    description="One action, whole, with its record.",
    arguments=ActionArguments,
    returns=ActionResult,
    routes=(_route("GET", "/approvals/{action_id}", "One action, whole, with its record", "show_pending_action"),),
    commands=(
        op.Command(
            "approvals show",
            "One action: what would happen, who asked, and what became of it.",
            print_action,
            (_ACTION, _WHOSE),
            completed=lambda _system, given, found: found | {"butler": given["butler"]},
        ),
    ),
)
COUNT: Final = _reads(
    name="pending_action_count",
    description="How many actions wait, and since when.",
    returns=ActionCounts,
    routes=(_route("GET", "/approvals/count", "How many actions wait", "pending_action_count"),),
)
EXECUTED: Final = op.Operation(
    name="list_executed_actions",
    description="Executed actions, newest first.",
    arguments=ListExecutedArguments,
    returns=ActionList,
    hints=op.READS,
)
RULES: Final = _reads(
    name="list_approval_rules",
    description="Rules, newest first.",
    arguments=ListRulesArguments,
    returns=RuleList,
    routes=(_route("GET", "/approvals/rules", "Rules, newest first", "list_approval_rules"),),
    commands=(
        op.Command(
            "approvals rules list",
            "Rules, newest first.",
            print_rules,
            (
                _TOOL,
                op.Option("active_only", "Also revoked rules.", "--all", negates=True),
                op.LIMIT,
                op.CURSOR,
                _WHOSE,
            ),
            none="no rules",
        ),
    ),
)
SHOW_RULE: Final = _reads(
    name="show_approval_rule",
    description="One rule and its latest uses.",
    arguments=RuleArguments,
    returns=RuleResult,
    routes=(_route("GET", "/approvals/rules/{rule_id}", "One rule and its latest uses", "show_approval_rule"),),
    commands=(op.Command("approvals rules show", "One rule and its latest uses.", print_rule, (_RULE, _WHOSE)),),
)
APPROVE: Final = _decides(
    name="approve_action",
    description="Let a pending action happen.",
    arguments=DecisionArguments,
    returns=ActionResult,
    hints=op.ACTS_OUTSIDE,
    routes=(_route("POST", "/approvals/{action_id}/approve", "Let it happen", "approve_action"),),
    commands=(
        op.Command(
            "approvals approve",
            "Let it happen; exit code 1 when it was tried and failed.",
            print_decision,
            (_ACTION, op.REASON, _WHOSE),
            failed=lambda decided: "error" in (decided["action"]["result"] or {}),
            completed=_with_delivery,
            refused=_already,
        ),
    ),
)
REJECT: Final = _decides(
    name="reject_action",
    description="Refuse a pending action for good.",
    arguments=DecisionArguments,
    returns=ActionResult,
    hints=op.ACTS,
    routes=(_route("POST", "/approvals/{action_id}/reject", "Refuse it for good", "reject_action"),),
    commands=(
        op.Command(
            "approvals reject",
            "Refuse it for good.",
            print_decision,
            (_ACTION, op.REASON, _WHOSE),
            completed=_with_delivery,
            refused=_already,
        ),
    ),
)
EXPIRE: Final = op.Operation(
    name="expire_stale_actions",
    description="Close what nobody decided in time.",
    returns=ExpiredActions,
    hints=op.CHANGES,
    owner=op.SWITCHBOARD,
)
CREATE_RULE: Final = _decides(
    name="create_approval_rule",
    description="Let calls pass without asking.",
    arguments=CreateRuleArguments,
    returns=RuleResult,
    hints=op.ADDS,
    routes=(
        op.post(
            "/approvals/rules",
            "Let calls pass without asking",
            body=("tool_name", "action_id", "arg_constraints", "expires_at", "max_uses", "description"),
            status=201,
            parameters=(_BUTLER,),
            target=_rule_maker,
        ),
    ),
    commands=(
        op.Command(
            "approvals rules create",
            "Let calls of a tool pass without asking.",
            print_rule,
            (
                op.Option("tool_name", "The gated tool, e.g. telegram_send_message.", positional=True, metavar="tool"),
                op.Option(
                    "arg_constraints",
                    "NAME=exact:TEXT, NAME=json:VALUE (exact, too), NAME=pattern:GLOB or NAME=any.",
                    "--arg",
                    default=None,
                    parse=_parse_constraints,
                ),
                *_BOUNDS,
            ),
        ),
        op.Command(
            "approvals rules from-action",
            "Let more calls like this one pass: to the same recipient, whatever the words.",
            print_rule,
            (_ACTION, *_BOUNDS),
        ),
    ),
)
FROM_ACTION: Final = op.Operation(
    name="create_rule_from_action",
    description="Let more calls like this one pass without asking.",
    arguments=RuleFromActionArguments,
    returns=RuleResult,
    hints=op.ADDS,
    owner=op.SWITCHBOARD,
)
REVOKE: Final = _decides(
    name="revoke_approval_rule",
    description="End a rule.",
    arguments=RevokeArguments,
    returns=RuleResult,
    hints=op.ACTS,
    routes=(
        _route("DELETE", "/approvals/rules/{rule_id}", "End a rule", "revoke_approval_rule"),
        _route("POST", "/approvals/rules/{rule_id}/revoke", "End a rule", "revoke_approval_rule"),
    ),
    commands=(op.Command("approvals rules revoke", "End a rule.", print_rule, (_RULE, _WHOSE), route=1),),
)

OPERATIONS: Final = (LIST, SHOW, COUNT, RULES, SHOW_RULE, APPROVE, REJECT, CREATE_RULE, REVOKE)
