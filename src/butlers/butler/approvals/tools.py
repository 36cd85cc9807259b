"""The tools by which people look at what waits, decide, and make rules.

Whatever decides is for operators, and for Switchboard on an operator's behalf: a butler's own LLM session must never
approve what it asked for itself.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from butlers.butler.approvals.approvals import Approvals
from butlers.butler.approvals.arguments import (
    ActionArguments,
    ActionCounts,
    ActionList,
    ActionResult,
    ActorArguments,
    CreateRuleArguments,
    DecisionArguments,
    ExpiredActions,
    ListActionsArguments,
    ListExecutedArguments,
    ListRulesArguments,
    RevokeArguments,
    RuleArguments,
    RuleFromActionArguments,
    RuleList,
    RuleResult,
)
from butlers.butler.approvals.runner import ActionRunner
from butlers.butler.core_tools import wire
from butlers.butler.identity import Caller, Role
from butlers.butler.surface import ACTS, ADDS, CHANGES, READS, NoArguments, Tool, ToolLine, tools_of
from butlers.contracts.envelope import invalid

SWITCHBOARD = "switchboard"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalTools:
    approvals: Approvals
    runner: ActionRunner | None = None  # of tools behind `gate_tools`
    wait_s: float = 2.0  # how long an approval waits for the result

    def tools(self) -> list[Tool]:
        return [*tools_of(self._reading()), *tools_of(self._deciding(), owner=SWITCHBOARD)]

    def _reading(self) -> tuple[ToolLine, ...]:
        return (
            ("list_pending_actions", "Actions, newest first.", ListActionsArguments, ActionList, READS, self._list),
            (
                "show_pending_action",
                "One action, whole, with its record.",
                ActionArguments,
                ActionResult,
                READS,
                self._show,
            ),
            (
                "pending_action_count",
                "How many actions wait, and since when.",
                NoArguments,
                ActionCounts,
                READS,
                self._count,
            ),
            (
                "list_executed_actions",
                "Executed actions, newest first.",
                ListExecutedArguments,
                ActionList,
                READS,
                self._executed,
            ),
            ("list_approval_rules", "Rules, newest first.", ListRulesArguments, RuleList, READS, self._list_rules),
            ("show_approval_rule", "One rule and its latest uses.", RuleArguments, RuleResult, READS, self._show_rule),
        )

    def _deciding(self) -> tuple[ToolLine, ...]:
        return (
            (
                "approve_action",
                "Let a pending action happen.",
                DecisionArguments,
                ActionResult,
                replace(ACTS, open_world=True),
                self._approve,
            ),
            (
                "reject_action",
                "Refuse a pending action for good.",
                DecisionArguments,
                ActionResult,
                ACTS,
                self._reject,
            ),
            (
                "expire_stale_actions",
                "Close what nobody decided in time.",
                NoArguments,
                ExpiredActions,
                CHANGES,
                self._expire,
            ),
            (
                "create_approval_rule",
                "Let calls pass without asking.",
                CreateRuleArguments,
                RuleResult,
                ADDS,
                self._create_rule,
            ),
            (
                "create_rule_from_action",
                "Let more calls like this one pass without asking.",
                RuleFromActionArguments,
                RuleResult,
                ADDS,
                self._create_from_action,
            ),
            ("revoke_approval_rule", "End a rule.", RevokeArguments, RuleResult, ACTS, self._revoke),
        )

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


def _who(caller: Caller, arguments: ActorArguments) -> str:
    """Whose decision it is: the caller's own, or that of the person for whom Switchboard asks."""
    named = arguments.decided_by
    if named is None or named == caller.name:
        return caller.name
    if caller.role is Role.BUTLER and caller.name == SWITCHBOARD:
        return named
    raise invalid("decided_by", "only switchboard may decide in another's name")
