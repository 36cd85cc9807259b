"""Carries out the operations about senders: who was refused, who has a code, and an operator's decision about both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from butlers.butler.activity import Report
from butlers.butler.core_tools import wire
from butlers.butler.identity import Caller
from butlers.butler.toolbox import AnyTool, Tool
from butlers.channels.registry import channel_of
from butlers.contracts.envelope import invalid
from butlers.errors import NotFound
from butlers.operations import people as operations
from butlers.operations.people import (
    AllowArguments,
    ApproveArguments,
    OwnerCodeArguments,
    PairingsArguments,
    RefusedArguments,
    SenderArguments,
)
from butlers.switchboard.senders.gate import SenderPolicies
from butlers.switchboard.senders.records import SenderRecords, read_code, shown


@dataclass(frozen=True, slots=True, kw_only=True)
class SenderTools:
    records: SenderRecords
    policies: SenderPolicies
    report: Report  # what operators did

    def tools(self) -> list[AnyTool]:
        return [
            Tool.of(operations.REFUSED, self._refused),
            Tool.of(operations.PAIRINGS, self._pairings),
            Tool.of(operations.APPROVE, self._approve),
            Tool.of(operations.ALLOW, self._allow),
            Tool.of(operations.REMOVE, self._remove),
            Tool.of(operations.OWNER_CODE, self._owner_code),
        ]

    async def _refused(self, _caller: Caller, given: RefusedArguments) -> dict[str, Any]:
        return wire(await self.records.refused(channel=given.channel, before=given.cursor, limit=given.limit))

    async def _pairings(self, _caller: Caller, given: PairingsArguments) -> dict[str, Any]:
        return wire(await self.records.pairings(before=given.cursor, limit=given.limit))

    async def _approve(self, caller: Caller, given: ApproveArguments) -> dict[str, Any]:
        code = read_code(given.code)
        approved = await self.records.approve(code, by=caller.name) if code is not None else None
        if approved is None:
            raise NotFound.of("code", "no such code: it is unknown, was used, or is older than 24 hours")
        return self._done(caller, "senders.approve", approved)

    async def _allow(self, caller: Caller, given: AllowArguments) -> dict[str, Any]:
        identity = _identity(given)
        allowed = await self.records.allow(given.channel, identity, name=given.name, owner=given.owner)
        return self._done(caller, "senders.allow", allowed)

    async def _remove(self, caller: Caller, given: SenderArguments) -> dict[str, Any]:
        return self._done(caller, "senders.remove", await self.records.remove(given.channel, _identity(given)))

    async def _owner_code(self, _caller: Caller, given: OwnerCodeArguments) -> dict[str, Any]:
        found = await self.records.owner_code(given.channel) if self.policies.pairs_owner(given.channel) else None
        code, expires_at = (shown(found[0]), found[1]) if found is not None else (None, None)
        return wire({"channel": given.channel, "code": code, "expires_at": expires_at})

    def _done(self, caller: Caller, operation: str, result: dict[str, Any]) -> dict[str, Any]:
        self.report(operation, {"channel": result["channel"]}, result="completed", error=None, actor=caller.name)
        return wire(result)


def _identity(given: SenderArguments) -> str:
    """The identity as messages carry it; raises for what no message can carry."""
    try:
        return channel_of(given.channel).address.person(given.identity)
    except ValueError as error:
        raise invalid("identity", str(error)) from error
