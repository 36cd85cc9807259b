"""Butlers of one process call each other's tools directly; whoever is not here is called over `elsewhere`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from butlers.butler.identity import Caller
from butlers.butler.surface import ToolBox
from butlers.butler.transport import Transport


class InProcessTransport:
    def __init__(self, *, caller: Caller, tool_boxes: Mapping[str, ToolBox], elsewhere: Transport) -> None:
        self._caller = caller
        self._tool_boxes = tool_boxes  # shared and live: butlers appear in it as they start
        self._elsewhere = elsewhere

    async def call(self, butler: str, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        tools = self._tool_boxes.get(butler)
        if tools is None:
            return await self._elsewhere.call(butler, tool, arguments)
        return await tools.call(tool, self._caller, dict(arguments))

    async def close(self) -> None:
        await self._elsewhere.close()
