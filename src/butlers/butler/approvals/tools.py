"""The tools by which people look at what waits, decide, and make rules.

Whatever decides is for operators, and for Switchboard on an operator's behalf: a butler's own LLM session must never
approve what it asked for itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pydantic_core import to_json

from butlers.butler.approvals import Allowed, GatedCall, MustWait
from butlers.butler.approvals.approvals import Approvals
from butlers.butler.approvals.runner import KEY, ActionRunner
from butlers.butler.core_tools import wire
from butlers.butler.identity import Caller
from butlers.butler.toolbox import AnyTool, Tool
from butlers.contracts.envelope import Value, invalid
from butlers.errors import ConfigurationError, OverloadRejected, ValidationError
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

_BOUNDS = {"expires_at", "max_uses", "description"}
_SUMMARY = 300  # characters
_VALUE = 80


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
        return wire(await self.approvals.actions.list(**arguments.model_dump() | {"status": status}))

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
            **arguments.model_dump(include=_BOUNDS),
        )
        return wire({"rule": rule})

    async def _create_from_action(self, caller: Caller, arguments: RuleFromActionArguments) -> dict[str, Any]:
        chosen = arguments.arg_constraints
        rule = await self.approvals.rules.create_from_action(
            arguments.action_id,
            created_by=_who(caller, arguments),
            constraints=None if chosen is None else {name: c.to_constraint() for name, c in chosen.items()},
            **arguments.model_dump(include=_BOUNDS),
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


def gate_tools(tools: Iterable[AnyTool], *, approvals: Approvals, runner: ActionRunner) -> list[AnyTool]:
    """The same tools, those that are gated behind the gate. Whoever calls: an operator's call waits, too."""
    return [_gated(tool, approvals, runner) if tool.name in approvals.gated else tool for tool in tools]


def _gated(tool: AnyTool, approvals: Approvals, runner: ActionRunner) -> Tool:
    if not isinstance(tool, Tool):
        raise ConfigurationError(
            f"{tool.name} cannot be gated: it takes an envelope and judges its callers itself",
            source="butler.toml",
            key="modules.approvals.gated_tools",
            remedy="gate the tools that act",
        )
    runner.take(tool)
    return replace(
        tool,
        description=f"{tool.description} Waits for a person's approval unless a rule allows it.",
        handler=_asking(tool, approvals),
        gated=True,
    )


def _asking(tool: Tool, approvals: Approvals) -> Callable[[Caller, Any], Awaitable[dict[str, Any]]]:
    async def ask(caller: Caller, arguments: Value) -> dict[str, Any]:
        # With its defaults: a rule made from this call must know that, say, no recipient was named.
        tool_args = arguments.model_dump(mode="json", by_alias=True)
        async with approvals.database.transaction() as connection:
            answer = await approvals.request(
                connection,
                GatedCall(
                    tool_name=tool.name,
                    tool_args=tool_args,
                    summary=summary_of(tool.name, tool_args),
                    requested_by=caller.name,
                    requested_role=caller.role.value,
                    key=_key(tool, caller, tool_args, approvals),
                ),
                now=approvals.clock.now(),
            )
        if isinstance(answer, Allowed):
            return await _call_by_rule(tool, caller, arguments, approvals, answer)
        return await _waiting_result(approvals, answer)

    return ask


def _key(tool: Tool, caller: Caller, tool_args: Mapping[str, Any], approvals: Approvals) -> str:
    """The caller's own key makes a repeat the same action; without one every call is a new one."""
    return f"{tool.name}:{caller.role.value}:{caller.name}:{tool_args.get(KEY) or approvals.new_id()}"


async def _call_by_rule(
    tool: Tool, caller: Caller, arguments: Value, approvals: Approvals, allowed: Allowed
) -> dict[str, Any]:
    try:
        return await tool.handler(caller, arguments)
    except (ValidationError, OverloadRejected):
        # Refused before anything happened. After any other failure it may have, so the use stays spent.
        async with approvals.database.transaction() as connection:
            await approvals.give_back(connection, allowed.rule_id)
        raise


async def _waiting_result(approvals: Approvals, answer: MustWait) -> dict[str, Any]:
    status = "pending_approval" if answer.status == "pending" else answer.status
    result = {"status": status, "action_id": str(answer.action_id), "expires_at": answer.expires_at.isoformat()}
    if answer.status == "executed" and answer.action_id is not None:
        result |= (await approvals.actions.show(answer.action_id))["result"] or {}
    return result


def summary_of(name: str, tool_args: Mapping[str, Any]) -> str:
    """What a person reads before deciding, e.g. `notify(recipient="7", message="Hello")`; long values are cut."""
    given = {key: value for key, value in tool_args.items() if value is not None}
    words = ", ".join(f"{key}={_cut(to_json(value).decode(), _VALUE)}" for key, value in given.items())
    return _cut(f"{name}({words})", _SUMMARY)


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"
