"""The tool that shows the service levels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import Field
from pydantic_core import to_jsonable_python

from butlers.butler.identity import Caller
from butlers.butler.surface import Tool
from butlers.clock import Clock
from butlers.messenger.service_levels.levels import ServiceLevels
from butlers.operations.operation import BUTLERS, READS, Result, Row
from butlers.operations.time_range import TimeRangeArguments


class DeliveryLevels(Result):
    window: Row = Field(description="since and until")
    objective: float = Field(description="the share of deliveries that should succeed")
    success: list[Row] = Field(description="how many succeeded, by channel")
    error_budget: Row | list[Row] = Field(description="what is left of the error budget, by channel")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceLevelTools:
    """Builds `messenger_service_levels`."""

    levels: ServiceLevels
    clock: Clock

    def tools(self) -> list[Tool]:
        return [
            Tool(
                name="messenger_service_levels",
                description="How well deliveries go: success, p95, duplicates, rejections, dead letters, error budget.",
                arguments=TimeRangeArguments,
                returns=DeliveryLevels,
                hints=READS,
                handler=self._service_levels,
                roles=BUTLERS,
            )
        ]

    async def _service_levels(self, _caller: Caller, arguments: TimeRangeArguments) -> dict[str, Any]:
        since, until = arguments.between(self.clock.now())
        ready: dict[str, Any] = to_jsonable_python(await self.levels.slis(since, until))
        return ready
