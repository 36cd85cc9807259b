"""Who carries out the operations of the HTTP API: Switchboard itself, or another butler over the transport."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from butlers.butler.identity import Caller
from butlers.butler.surface import ToolBox
from butlers.butler.transport import Transport
from butlers.errors import NotFound, TimeoutExceeded, UnknownTool
from butlers.operations.operation import SWITCHBOARD, Role, Target

ANSWER_TIMEOUT_S = 25.0  # shorter than the command line waits
LOCAL = Caller(name="local", role=Role.OPERATOR)  # whoever is on this machine and shows no token


def may_decide(caller: Caller) -> bool:
    """Only a person with a token: a butler's own session runs on this machine, too, and must not decide for itself."""
    return caller.role is Role.OPERATOR and caller != LOCAL


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationCalls:
    tools: ToolBox  # Switchboard's own
    transport: Transport
    butlers: Collection[str] = ()  # all that there are; none: one that is away is not told apart from one unknown

    async def call(self, caller: Caller, target: Target, arguments: dict[str, Any]) -> dict[str, Any]:
        if target.butler == SWITCHBOARD:
            return await self.tools.call(target.operation, caller, arguments)
        if self.butlers and target.butler not in self.butlers:
            there = ", ".join(sorted(self.butlers))
            raise NotFound.of("butler", f"is no butler here; there are {there}")
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                return await self.transport.call(target.butler, target.operation, arguments)
        except TimeoutError:
            raise TimeoutExceeded(f"{target.butler} gave no answer within {ANSWER_TIMEOUT_S:g} s") from None
        except UnknownTool:
            problem = f"approvals are off for {target.butler}: add [modules.approvals] to its butler.toml"
            raise NotFound.of("butler", f"{problem} and start it again") from None
