"""Carries out the operations about what messages told about people."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from butlers.butler.core_tools import wire
from butlers.butler.identity import Caller
from butlers.butler.surface import Tool
from butlers.operations import routing as operations
from butlers.operations.routing import DecideArguments, ListArguments
from butlers.switchboard.extraction.queue import ExtractionQueue


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtractionDesk:
    queue: ExtractionQueue
    confirmed: Callable[[], None]  # something is to be dispatched

    def tools(self) -> list[Tool]:
        return [
            Tool.of(operations.EXTRACTIONS, self._list),
            Tool.of(operations.CONFIRM, self._confirm),
            Tool.of(operations.DISMISS, self._dismiss),
        ]

    async def _list(self, _caller: Caller, arguments: ListArguments) -> dict[str, Any]:
        chosen = None if arguments.status == "any" else arguments.status
        return wire(await self.queue.list(status=chosen, before=arguments.cursor, limit=arguments.limit))

    async def _confirm(self, caller: Caller, arguments: DecideArguments) -> dict[str, Any]:
        return await self._decide(arguments.extraction_id, "confirmed", caller)

    async def _dismiss(self, caller: Caller, arguments: DecideArguments) -> dict[str, Any]:
        return await self._decide(arguments.extraction_id, "dismissed", caller)

    async def _decide(self, extraction_id: UUID, status: str, caller: Caller) -> dict[str, Any]:
        decided = await self.queue.decide(extraction_id, status, by=caller.name)
        self.confirmed()
        return wire(decided)
