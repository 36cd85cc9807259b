"""Tools that act or say what an act would do: replay, settle, validate, dry run (seed 001 sections 5.1.2 and 5.1.3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from pydantic import Field, JsonValue

from butlers.butler.core_tools import wire
from butlers.butler.identity import Caller
from butlers.butler.surface import READS, SENDS, Hints, Tool
from butlers.contracts.envelope import Value
from butlers.messenger.preflight import Preflight
from butlers.messenger.release import Release, Word
from butlers.messenger.tools.records import SWITCHBOARD, DecidedArguments, decided_by
from butlers.messenger.tools.results import DeliveryReleased, DryRun, NotifyValidity


class ReplayArguments(DecidedArguments):
    dead_letter_id: UUID = Field(description="the dead letter, by its id")


class SettleArguments(DecidedArguments):
    delivery_id: UUID = Field(description="the delivery, by its id")
    outcome: Word = Field(description="confirmed_sent: it arrived; send_again: it did not")


class NotifyArguments(Value):
    notify_request: dict[str, JsonValue] = Field(description="a notify.v1 envelope, as notify.dispatch takes it")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeedTools:
    release: Release
    preflight: Preflight

    def tools(self) -> list[Tool]:
        return [
            Tool(
                name="messenger_dead_letter_replay",
                description="Send a dead letter again as a new delivery; returns its outcome, or where it stands.",
                arguments=ReplayArguments,
                returns=DeliveryReleased,
                hints=SENDS,
                handler=self._replay,
                owner=SWITCHBOARD,
            ),
            Tool(
                name="messenger_delivery_settle",
                description="Say what became of an uncertain delivery: confirmed_sent, or send_again.",
                arguments=SettleArguments,
                returns=DeliveryReleased,
                hints=Hints(destructive=True, open_world=True),
                handler=self._settle,
                owner=SWITCHBOARD,
            ),
            Tool(
                name="messenger_validate_notify",
                description="Whether a notify.v1 would pass the checks, field by field; nothing happens.",
                arguments=NotifyArguments,
                returns=NotifyValidity,
                hints=READS,
                handler=self._validate,
            ),
            Tool(
                name="messenger_dry_run",
                description="What would become of a notify.v1 now: target, adapter, headroom, admission.",
                arguments=NotifyArguments,
                returns=DryRun,
                hints=READS,
                handler=self._dry_run,
            ),
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
