"""The tools by which people look at what waits, decide, and make rules.

Whatever decides is for operators, and for Switchboard on an operator's behalf: a butler's own LLM session must never
approve what it asked for itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from butlers.butler.approvals.approvals import Approvals
from butlers.butler.approvals.runner import ActionRunner
from butlers.butler.core_tools import wire
from butlers.butler.identity import Caller
from butlers.butler.toolbox import Tool
from butlers.contracts.envelope import invalid
from butlers.operations import approvals as operations
from butlers.operations.approvals import (
    ActionArguments,
    CreateRuleArguments,
    DecisionArguments,
    ListActionsArguments,
    ListExecutedArguments,
    ListRulesArguments,
    RevokeArguments,
    RuleArguments,
    RuleFromActionArguments,
)
from butlers.operations.operation import SWITCHBOARD, DecidedArguments, NoArguments, Role


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalTools:
    approvals: Approvals
    runner: ActionRunner | None = None  # of tools behind `gate_tools`
    wait_s: float = 2.0  # how long an approval waits for the result

    def tools(self) -> list[Tool]:
        return [
            Tool.of(operations.LIST, self._list),
            Tool.of(operations.SHOW, self._show),
            Tool.of(operations.COUNT, self._count),
            Tool.of(operations.EXECUTED, self._executed),
            Tool.of(operations.RULES, self._list_rules),
            Tool.of(operations.SHOW_RULE, self._show_rule),
            Tool.of(operations.APPROVE, self._approve),
            Tool.of(operations.REJECT, self._reject),
            Tool.of(operations.EXPIRE, self._expire),
            Tool.of(operations.CREATE_RULE, self._create_rule),
            Tool.of(operations.FROM_ACTION, self._create_from_action),
            Tool.of(operations.REVOKE, self._revoke),
        ]

    # --- reading -----------------------------------------------------------------------------------------------------

    async def _list(self, _caller: Caller, arguments: ListActionsArguments) -> dict[str, Any]:
        status = None if arguments.status == "any" else arguments.status
        return wire(
            await self.approvals.actions.list(
                status=status, tool_name=arguments.tool_name, cursor=arguments.cursor, limit=arguments.limit
            )
        )

    async def _executed(self, _caller: Caller, arguments: ListExecutedArguments) -> dict[str, Any]:
        return wire(await self.approvals.actions.list(status="executed", **arguments.model_dump()))

    async def _show(self, _caller: Caller, arguments: ActionArguments) -> dict[str, Any]:
        return wire({"action": await self.approvals.actions.show(arguments.action_id)})

    async def _count(self, _caller: Caller, _arguments: NoArguments) -> dict[str, Any]:
        return wire(await self.approvals.actions.counts())

    async def _list_rules(self, _caller: Caller, arguments: ListRulesArguments) -> dict[str, Any]:
        return wire(await self.approvals.rules.list(**arguments.model_dump()))

    async def _show_rule(self, _caller: Caller, arguments: RuleArguments) -> dict[str, Any]:
        return wire({"rule": await self.approvals.rules.show(arguments.rule_id)})

    # --- deciding ----------------------------------------------------------------------------------------------------

    async def _approve(self, caller: Caller, arguments: DecisionArguments) -> dict[str, Any]:
        action = await self.approvals.decide(
            arguments.action_id, approve=True, decided_by=_who(caller, arguments), reason=arguments.reason
        )
        if self.runner is not None and action["status"] == "approved":
            action = await self.runner.execute(arguments.action_id, wait_s=self.wait_s)
        return wire({"action": action})

    async def _reject(self, caller: Caller, arguments: DecisionArguments) -> dict[str, Any]:
        action = await self.approvals.decide(
            arguments.action_id, approve=False, decided_by=_who(caller, arguments), reason=arguments.reason
        )
        return wire({"action": action})

    async def _expire(self, _caller: Caller, _arguments: NoArguments) -> dict[str, Any]:
        return {"expired": await self.approvals.expire()}

    async def _create_rule(self, caller: Caller, arguments: CreateRuleArguments) -> dict[str, Any]:
        rule = await self.approvals.rules.create(
            tool_name=arguments.tool_name,
            constraints={name: constraint.to_constraint() for name, constraint in arguments.arg_constraints.items()},
            created_by=_who(caller, arguments),
            expires_at=arguments.expires_at,
            max_uses=arguments.max_uses,
            description=arguments.description,
        )
        return wire({"rule": rule})

    async def _create_from_action(self, caller: Caller, arguments: RuleFromActionArguments) -> dict[str, Any]:
        chosen = arguments.arg_constraints
        rule = await self.approvals.rules.create_from_action(
            arguments.action_id,
            created_by=_who(caller, arguments),
            constraints=None if chosen is None else {name: c.to_constraint() for name, c in chosen.items()},
            expires_at=arguments.expires_at,
            max_uses=arguments.max_uses,
            description=arguments.description,
        )
        return wire({"rule": rule})

    async def _revoke(self, caller: Caller, arguments: RevokeArguments) -> dict[str, Any]:
        return wire({"rule": await self.approvals.rules.revoke(arguments.rule_id, revoked_by=_who(caller, arguments))})


def _who(caller: Caller, arguments: DecidedArguments) -> str:
    """Whose decision it is: the caller's own, or that of the person for whom Switchboard asks."""
    named = arguments.decided_by
    if named is None or named == caller.name:
        return caller.name
    if caller.role is Role.BUTLER and caller.name == SWITCHBOARD:
        return named
    raise invalid("decided_by", "only switchboard may decide in another's name")
