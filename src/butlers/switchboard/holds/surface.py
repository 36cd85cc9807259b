"""Carries out the operations that take butlers out of service and put them back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from butlers.butler.core_tools import wire
from butlers.butler.identity import Caller
from butlers.butler.surface import AnyTool, Tool
from butlers.operations import butlers as operations
from butlers.operations.butlers import HistoryArguments, HoldArguments
from butlers.switchboard.holds.holds import Holds


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldTools:
    holds: Holds

    def tools(self) -> list[AnyTool]:
        return [
            Tool.of(operations.HOLD, self._hold),
            Tool.of(operations.RELEASE, self._release),
            Tool.of(operations.HISTORY, self._history),
        ]

    async def _hold(self, caller: Caller, given: HoldArguments) -> dict[str, Any]:
        return wire(await self.holds.hold(given.butler, operator=caller.name, reason=given.reason))

    async def _release(self, caller: Caller, given: HoldArguments) -> dict[str, Any]:
        return wire(await self.holds.release(given.butler, operator=caller.name, reason=given.reason))

    async def _history(self, _caller: Caller, given: HistoryArguments) -> dict[str, Any]:
        return wire(await self.holds.history(given.butler, before=given.cursor, limit=given.limit))
