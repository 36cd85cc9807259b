"""Tools that act or say what an act would do: replay, settle, validate, dry run (seed 001 sections 5.1.2 and 5.1.3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from butlers.butler.core_tools import wire
from butlers.butler.identity import Caller
from butlers.butler.surface import Tool
from butlers.messenger.preflight import Preflight
from butlers.messenger.release import Release
from butlers.messenger.tools.records import decided_by
from butlers.operations.dead_letters import REPLAY, ReplayArguments
from butlers.operations.deliveries import (
    DRY_RUN,
    SETTLE,
    VALIDATE,
    NotifyArguments,
    SettleArguments,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeedTools:
    release: Release
    preflight: Preflight

    def tools(self) -> list[Tool]:
        return [
            Tool.of(REPLAY, self._replay),
            Tool.of(SETTLE, self._settle),
            Tool.of(VALIDATE, self._validate),
            Tool.of(DRY_RUN, self._dry_run),
        ]

    async def _replay(self, caller: Caller, arguments: ReplayArguments) -> dict[str, Any]:
        return wire(await self.release.replay(arguments.dead_letter_id, by=decided_by(caller, arguments)))

    async def _settle(self, caller: Caller, arguments: SettleArguments) -> dict[str, Any]:
        by = decided_by(caller, arguments)
        return wire(await self.release.settle(arguments.delivery_id, arguments.outcome, by=by))

    async def _validate(self, caller: Caller, arguments: NotifyArguments) -> dict[str, Any]:
        return wire(await self.preflight.validate(caller, arguments.notify_request))

    async def _dry_run(self, caller: Caller, arguments: NotifyArguments) -> dict[str, Any]:
        return wire(await self.preflight.dry_run(caller, arguments.notify_request))
