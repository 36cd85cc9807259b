"""Carries out the operations about routing: which prompt and model decide, what is on trial, and its two levers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from butlers.butler.core_tools import wire
from butlers.butler.identity import Caller
from butlers.butler.surface import Tool
from butlers.operations import routing as operations
from butlers.operations.operation import NoArguments
from butlers.operations.routing import ReasonArguments
from butlers.switchboard.routing.llm.rollout import Rollout

_UNSAID = "the operator's decision"


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingDesk:
    rollout: Rollout
    runtime: str | None  # which program is asked; None: no model is
    model: str | None
    skills: Sequence[str]

    def tools(self) -> list[Tool]:
        return [
            Tool.of(operations.STATUS, self._status),
            Tool.of(operations.ROLLBACK, self._rollback),
            Tool.of(operations.RESUME, self._resume),
        ]

    async def _status(self, _caller: Caller, _arguments: NoArguments) -> dict[str, Any]:
        llm = {"enabled": self.runtime is not None, "runtime": self.runtime, "model": self.model}
        return wire({"llm": llm, "skills": list(self.skills), **await self.rollout.status()})

    async def _rollback(self, caller: Caller, arguments: ReasonArguments) -> dict[str, Any]:
        return wire(await self.rollout.rollback(by=caller.name, reason=arguments.reason or _UNSAID))

    async def _resume(self, caller: Caller, arguments: ReasonArguments) -> dict[str, Any]:
        return wire(await self.rollout.resume(by=caller.name, reason=arguments.reason or _UNSAID))
