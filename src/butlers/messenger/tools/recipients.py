"""Recipients that are not to be written to, and how to change that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import Field

from butlers.butler.core_tools import wire
from butlers.butler.identity import Caller
from butlers.butler.surface import ACTS, CHANGES, READS, Tool
from butlers.clock import Clock
from butlers.contracts.envelope import MAX_IDENTITY, Identity, Value, invalid
from butlers.contracts.notify import Channel
from butlers.errors import NotFound
from butlers.messenger.addresses import canonical, problem_with
from butlers.messenger.tools.records import SWITCHBOARD, DecidedArguments, DeliveryRecords, decided_by
from butlers.messenger.tools.results import RecipientList, RecipientReleased, RecipientResult
from butlers.messenger.tools.tracking import LONGEST_PAGE, PAGE
from butlers.telemetry import get_logger

log = get_logger("butlers.messenger.recipients")

SEPARATOR = "/"  # no channel's name has it


class RecipientListArguments(Value):
    channel: Channel | None = Field(default=None, description="only this channel")
    limit: int = Field(default=PAGE, ge=1, le=LONGEST_PAGE, description="at most so many, on one page")
    cursor: str | None = Field(
        default=None, max_length=2 * MAX_IDENTITY, description="next_cursor of the page before; absent: the first page"
    )


class SuppressArguments(DecidedArguments):
    channel: Channel = Field(description="the channel of the address")
    target: Identity = Field(description="the address")
    reason: Identity = Field(description="why, for the record")


class ReleaseArguments(DecidedArguments):
    channel: Channel = Field(description="the channel of the address")
    target: Identity = Field(description="the address")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipientTools:
    records: DeliveryRecords
    clock: Clock

    def tools(self) -> list[Tool]:
        return [
            Tool(
                name="messenger_recipient_list",
                description="Recipients that are suppressed or have moved, by channel and address.",
                arguments=RecipientListArguments,
                returns=RecipientList,
                hints=READS,
                handler=self._list,
            ),
            Tool(
                name="messenger_recipient_suppress",
                description="From now on send nothing to this recipient.",
                arguments=SuppressArguments,
                returns=RecipientResult,
                hints=CHANGES,
                handler=self._suppress,
                owner=SWITCHBOARD,
            ),
            Tool(
                name="messenger_recipient_release",
                description="This recipient may be written to again.",
                arguments=ReleaseArguments,
                returns=RecipientReleased,
                hints=ACTS,
                handler=self._release,
                owner=SWITCHBOARD,
            ),
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
        person, target = decided_by(caller, arguments), canonical(arguments.channel, arguments.target)
        if (problem := problem_with(arguments.channel, target)) is not None:
            raise invalid("target", problem)
        row = await self.records.row(
            self.records.queries.suppress, arguments.channel, target, arguments.reason, person, self.clock.now()
        )
        log.info("recipient suppressed", channel=arguments.channel, caller=person)
        return wire({"recipient": row})

    async def _release(self, caller: Caller, arguments: ReleaseArguments) -> dict[str, Any]:
        target = canonical(arguments.channel, arguments.target)
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
