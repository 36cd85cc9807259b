"""Carries out the operation that shows the service levels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from butlers.butler.core_tools import wire
from butlers.butler.identity import Caller
from butlers.butler.surface import Tool
from butlers.clock import Clock
from butlers.operations.routing import SERVICE_LEVELS
from butlers.operations.time_range import TimeRangeArguments
from butlers.switchboard.service_levels.levels import ServiceLevels


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceLevelDesk:
    levels: ServiceLevels
    clock: Clock

    def tools(self) -> list[Tool]:
        return [Tool.of(SERVICE_LEVELS, self._answer)]

    async def _answer(self, _caller: Caller, arguments: TimeRangeArguments) -> dict[str, Any]:
        since, until = arguments.between(self.clock.now())
        return wire(await self.levels.slis(since, until))
