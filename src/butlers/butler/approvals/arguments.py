"""What the approval tools take and answer."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self
from uuid import UUID

from pydantic import Field, JsonValue, StringConstraints, model_validator

from butlers.butler.approvals.values import Status
from butlers.butler.results import Page
from butlers.butler.surface import Result, Row
from butlers.contracts.envelope import MAX_IDENTITY, Identity, Timestamp, Value

PAGE = 50
MAX_USES = 1_000_000
Reason = Annotated[str, StringConstraints(max_length=2_000)]
Limit = Annotated[int, Field(ge=1, le=500)]


class ActorArguments(Value):
    decided_by: Identity | None = Field(
        default=None, description="the person for whom Switchboard asks; absent: the caller"
    )


class ActionArguments(Value):
    action_id: UUID = Field(description="the pending action, by its id")


class DecisionArguments(ActorArguments):
    action_id: UUID = Field(description="the pending action, by its id")
    reason: Reason | None = Field(default=None, description="why, for the record")


class ListExecutedArguments(Value):
    tool_name: Identity | None = Field(default=None, description="only actions of this tool")
    cursor: UUID | None = Field(default=None, description="next_cursor of the page before; absent: the first page")
    limit: Limit = Field(default=PAGE, description="at most so many, on one page")


class ListActionsArguments(ListExecutedArguments):
    status: Status | Literal["any"] = Field(default="pending", description="only actions in this state")


class RuleArguments(Value):
    rule_id: UUID = Field(description="the rule, by its id")


class RevokeArguments(ActorArguments):
    rule_id: UUID = Field(description="the rule, by its id")


class ListRulesArguments(Value):
    tool_name: Identity | None = Field(default=None, description="only rules about this tool")
    active_only: bool = Field(default=True, description="leave out rules that have ended")
    cursor: UUID | None = Field(default=None, description="next_cursor of the page before; absent: the first page")
    limit: Limit = Field(default=PAGE, description="at most so many, on one page")


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


class RuleBounds(ActorArguments):
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


class ActionResult(Result):
    action: Row = Field(description="the action: what was asked, by whom, and what was decided")


class ActionList(Page):
    actions: list[Row] = Field(description="the actions: id, tool, summary, status, who asked and who decided")


class ActionCounts(Result):
    pending: int = Field(description="how many wait")
    by_tool: dict[str, int] = Field(description="how many wait, by tool")
    by_status: dict[str, int] = Field(description="how many there are, by status")
    oldest_requested_at: str | None = Field(description="since when the oldest waits")
    next_expires_at: str | None = Field(description="when the next one runs out")


class ExpiredActions(Result):
    expired: int = Field(description="how many were closed")


class RuleResult(Result):
    rule: Row = Field(description="the rule: tool, constraints, bounds and uses")


class RuleList(Page):
    rules: list[Row] = Field(description="the rules: tool, constraints, bounds and uses")
