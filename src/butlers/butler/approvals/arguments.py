"""What the approval tools take."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self
from uuid import UUID

from pydantic import Field, JsonValue, StringConstraints, model_validator

from butlers.butler.approvals.values import Status
from butlers.contracts.envelope import MAX_IDENTITY, Identity, Timestamp, Value

PAGE = 50
MAX_USES = 1_000_000
Reason = Annotated[str, StringConstraints(max_length=2_000)]
Limit = Annotated[int, Field(ge=1, le=500)]


class ActorArguments(Value):
    decided_by: Identity | None = None  # the person for whom Switchboard asks


class ActionArguments(Value):
    action_id: UUID


class DecisionArguments(ActorArguments):
    action_id: UUID
    reason: Reason | None = None


class ListExecutedArguments(Value):
    tool_name: Identity | None = None
    cursor: UUID | None = None
    limit: Limit = PAGE


class ListActionsArguments(ListExecutedArguments):
    status: Status | Literal["any"] = "pending"


class RuleArguments(Value):
    rule_id: UUID


class RevokeArguments(ActorArguments):
    rule_id: UUID


class ListRulesArguments(Value):
    tool_name: Identity | None = None
    active_only: bool = True
    cursor: UUID | None = None
    limit: Limit = PAGE


class Constraint(Value):
    """What one argument of a call must be."""

    type: Literal["exact", "pattern", "any"]
    value: JsonValue = None

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
    expires_at: Timestamp | None = None
    max_uses: Annotated[int, Field(ge=1, le=MAX_USES)] | None = None
    description: Reason = ""


class CreateRuleArguments(RuleBounds):
    tool_name: Identity
    arg_constraints: Constraints = Field(default_factory=dict)


class RuleFromActionArguments(RuleBounds):
    action_id: UUID
    arg_constraints: Constraints | None = None  # instead of the suggested ones
