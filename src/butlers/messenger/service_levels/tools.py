"""The tool that shows the service levels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic_core import to_jsonable_python

from butlers.butler.identity import Caller
from butlers.butler.stretch import StretchArguments
from butlers.butler.surface import BUTLERS, READS, Tool
from butlers.clock import Clock
from butlers.messenger.service_levels.levels import ServiceLevels
from butlers.messenger.tools.results import DeliveryLevels


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
                arguments=StretchArguments,
                returns=DeliveryLevels,
                hints=READS,
                handler=self._service_levels,
                roles=BUTLERS,
            )
        ]

    async def _service_levels(self, _caller: Caller, arguments: StretchArguments) -> dict[str, Any]:
        since, until = arguments.between(self.clock.now())
        ready: dict[str, Any] = to_jsonable_python(await self.levels.slis(since, until))
        return ready
