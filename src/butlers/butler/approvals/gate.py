"""Putting tools behind the gate: a gated tool answers at once, and is called when a person says so.

Messenger's deliveries do not come this way: its intake asks for approval itself, in the transaction that stores the
delivery.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from pydantic_core import to_json

from butlers.butler.approvals.approvals import Approvals
from butlers.butler.approvals.runner import KEY, ActionRunner
from butlers.butler.approvals.values import Allowed, MustWait, Wanted
from butlers.butler.identity import Caller
from butlers.butler.toolbox import AnyTool, Tool
from butlers.contracts.envelope import Value
from butlers.errors import ConfigurationError, OverloadRejected, ValidationError

_SUMMARY = 300  # characters
_VALUE = 80


def gate_tools(tools: Iterable[AnyTool], *, approvals: Approvals, runner: ActionRunner) -> list[AnyTool]:
    """The same tools, those that are gated behind the gate. Whoever calls: an operator's call waits, too."""
    return [_gated(tool, approvals, runner) if approvals.gates(tool.name) else tool for tool in tools]


def _gated(tool: AnyTool, approvals: Approvals, runner: ActionRunner) -> Tool:
    if not isinstance(tool, Tool):
        raise ConfigurationError(
            f"{tool.name} cannot be gated: it takes an envelope and judges its callers itself",
            source="butler.toml",
            key="modules.approvals.gated_tools",
            remedy="gate the tools that do the deed",
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
                Wanted(
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
        return await _told_to_wait(approvals, answer)

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


async def _told_to_wait(approvals: Approvals, answer: MustWait) -> dict[str, Any]:
    status = "pending_approval" if answer.status == "pending" else answer.status
    told = {"status": status, "action_id": str(answer.action_id), "expires_at": answer.expires_at.isoformat()}
    if answer.status == "executed" and answer.action_id is not None:
        told |= (await approvals.actions.show(answer.action_id))["result"] or {}
    return told


def summary_of(name: str, tool_args: Mapping[str, Any]) -> str:
    """What a person reads before deciding, e.g. `notify(recipient="7", message="Hello")`; long values are cut."""
    given = {key: value for key, value in tool_args.items() if value is not None}
    words = ", ".join(f"{key}={_cut(to_json(value).decode(), _VALUE)}" for key, value in given.items())
    return _cut(f"{name}({words})", _SUMMARY)


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"
