"""Recipients that are not to be written to, and how to change that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from butlers.butler.core_tools import wire
from butlers.butler.identity import Caller
from butlers.butler.toolbox import Tool
from butlers.channels.registry import canonical_address, channel_of
from butlers.clock import Clock
from butlers.contracts.envelope import invalid
from butlers.errors import NotFound
from butlers.messenger.tools.records import DeliveryRecords, decided_by
from butlers.operations import people as operations
from butlers.operations.people import RecipientListArguments, ReleaseArguments, SuppressArguments
from butlers.telemetry import get_logger

log = get_logger("butlers.messenger.recipients")

SEPARATOR = "/"  # no channel's name has it


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipientTools:
    records: DeliveryRecords
    clock: Clock

    def tools(self) -> list[Tool]:
        return [
            Tool.of(operations.LIST, self._list),
            Tool.of(operations.SUPPRESS, self._suppress),
            Tool.of(operations.RELEASE, self._release),
        ]

    async def _list(self, _caller: Caller, wanted: RecipientListArguments) -> dict[str, Any]:
        rows = await self.records.rows(
            self.records.queries.recipient_rules, wanted.channel, *_place(wanted.cursor), wanted.limit + 1
        )
        shown = rows[: wanted.limit]
        more = len(rows) > wanted.limit
        cursor = f"{shown[-1]['channel']}{SEPARATOR}{shown[-1]['target']}" if more else None
        return wire({"recipients": shown, "next_cursor": cursor})

    async def _suppress(self, caller: Caller, arguments: SuppressArguments) -> dict[str, Any]:
        person, target = decided_by(caller, arguments), canonical_address(arguments.channel, arguments.target)
        if (problem := channel_of(arguments.channel).address.problem(target)) is not None:
            raise invalid("target", problem)
        row = await self.records.row(
            self.records.queries.suppress, arguments.channel, target, arguments.reason, person, self.clock.now()
        )
        log.info("recipient suppressed", channel=arguments.channel, caller=person)
        return wire({"recipient": row})

    async def _release(self, caller: Caller, arguments: ReleaseArguments) -> dict[str, Any]:
        target = canonical_address(arguments.channel, arguments.target)
        row = await self.records.row(self.records.queries.release, arguments.channel, target)
        if row is None:
            raise NotFound.of("target", "no such recipient: it has no rule on this channel")
        person = decided_by(caller, arguments)
        log.info("recipient released", channel=arguments.channel, caller=person)
        return wire({"released": row, "released_by": person})


def _place(cursor: str | None) -> tuple[str | None, str | None]:
    if cursor is None:
        return None, None
    channel, separator, target = cursor.partition(SEPARATOR)
    if not separator:
        raise invalid("cursor", "is not the next_cursor of an earlier page")
    return channel, target
