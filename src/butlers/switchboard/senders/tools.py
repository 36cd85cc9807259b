"""Senders at the doors: who was refused, who has a code, and an operator's word about both. MCP tools, and the same
over HTTP below `/senders`. Codes are shown to a person with an operator's token only: whoever knows the owner's can
become the owner.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import FastAPI, Query
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from butlers.butler.activity import Report
from butlers.butler.core_tools import wire
from butlers.butler.identity import Caller, Role
from butlers.butler.results import Page
from butlers.butler.surface import ACTS, CHANGES, READS, AnyTool, Result, Row, Tool, ToolBox
from butlers.contracts.envelope import Identity, Value, invalid
from butlers.errors import NotFound
from butlers.switchboard.description import Behind
from butlers.switchboard.fleet.routes import FleetDoor
from butlers.switchboard.operators.paging import LONGEST_PAGE
from butlers.switchboard.proxy import BodyOf, CallerOf, add_routes
from butlers.switchboard.senders.codes import read_code, shown
from butlers.switchboard.senders.gate import SenderPolicies
from butlers.switchboard.senders.records import SenderRecords

OPERATORS = frozenset({Role.OPERATOR})
WrittenChannel = Literal["telegram", "email"]
PageSize = Annotated[int, Query(ge=1, le=LONGEST_PAGE)]


class RefusedArguments(Value):
    channel: WrittenChannel | None = Field(default=None, description="only senders on this channel")
    cursor: UUID | None = Field(default=None, description="next_cursor of the page before; absent: the first page")
    limit: int = Field(default=50, ge=1, le=LONGEST_PAGE, description="at most so many, on one page")


class PairingsArguments(Value):
    cursor: UUID | None = Field(default=None, description="next_cursor of the page before; absent: the first page")
    limit: int = Field(default=50, ge=1, le=LONGEST_PAGE, description="at most so many, on one page")


class ApproveArguments(Value):
    code: Identity = Field(description="the code that the stranger was given, like K7QF-2M9X")


class SenderArguments(Value):
    channel: WrittenChannel = Field(description="the channel that the person writes by")
    identity: Identity = Field(description="who it is there: a Telegram user's number, or a mail address")


class AllowArguments(SenderArguments):
    name: Identity | None = Field(default=None, description="the person's name; absent: the identity")
    owner: bool = Field(default=False, description="true: it is the owner's own identity")


class OwnerCodeArguments(Value):
    channel: Literal["telegram"] = Field(default="telegram", description="the channel that the owner writes by")


class RefusedSenders(Page):
    senders: list[Row] = Field(description="the senders: channel, identity, why, how often and when last")


class Pairings(Page):
    pairings: list[Row] = Field(description="the strangers: channel, identity, code and until when it counts")


class SenderAllowed(Result):
    channel: str = Field(description="the channel that the person writes by")
    identity: str = Field(description="who it is there")
    contact_id: str = Field(description="the contact that the person is now")


class SenderRemoved(Result):
    channel: str = Field(description="the channel that the person wrote by")
    identity: str = Field(description="who it is there")
    removed: bool = Field(description="true")


class OwnerCode(Result):
    channel: str = Field(description="the channel that the owner writes by")
    code: str | None = Field(description="the code to send; null: the owner is known there, or pairing is off")
    expires_at: str | None = Field(description="until when the code counts")


@dataclass(frozen=True, slots=True, kw_only=True)
class SenderTools:
    records: SenderRecords
    policies: SenderPolicies
    report: Report  # what operators did

    def tools(self) -> list[AnyTool]:
        return [
            Tool(
                name="senders.refused",
                description="Senders that wrote in and were not served, and why; what they wrote is not kept.",
                arguments=RefusedArguments,
                returns=RefusedSenders,
                hints=READS,
                handler=self._refused,
            ),
            Tool(
                name="senders.pairings",
                description="Strangers that were given a pairing code, newest first.",
                arguments=PairingsArguments,
                returns=Pairings,
                hints=READS,
                handler=self._pairings,
                roles=OPERATORS,
            ),
            Tool(
                name="senders.approve",
                description="Let the stranger with this pairing code in: it becomes a contact and is served.",
                arguments=ApproveArguments,
                returns=SenderAllowed,
                hints=ACTS,
                handler=self._approve,
                roles=OPERATORS,
            ),
            Tool(
                name="senders.allow",
                description="Let a person in without a code, or add an identity of the owner's.",
                arguments=AllowArguments,
                returns=SenderAllowed,
                hints=CHANGES,
                handler=self._allow,
                roles=OPERATORS,
            ),
            Tool(
                name="senders.remove",
                description="Serve this person no longer; the owner's identities stay.",
                arguments=SenderArguments,
                returns=SenderRemoved,
                hints=CHANGES,
                handler=self._remove,
                roles=OPERATORS,
            ),
            Tool(
                name="senders.owner_code",
                description="The code that makes the chat that sends it the owner's, while the owner has none there.",
                arguments=OwnerCodeArguments,
                returns=OwnerCode,
                hints=READS,
                handler=self._owner_code,
                roles=OPERATORS,
            ),
        ]

    def add_routes(self, app: FastAPI, caller_of: CallerOf, body_of: BodyOf) -> None:
        door = FleetDoor(tools=ToolBox(self.tools()), caller_of=caller_of, body_of=body_of)

        _add_listings(app, door)
        _add_decisions(app, door)

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


def _add_listings(app: FastAPI, door: FleetDoor) -> None:
    async def refused(
        request: Request, channel: WrittenChannel | None = None, cursor: UUID | None = None, limit: PageSize = 50
    ) -> Response:
        return await door.read(request, "senders.refused", channel=channel, cursor=cursor, limit=limit)

    async def pairings(request: Request, cursor: UUID | None = None, limit: PageSize = 50) -> Response:
        return await door.act(request, "senders.pairings", cursor=cursor, limit=limit)

    async def owner_code(request: Request) -> Response:
        return await door.act(request, "senders.owner_code")

    listed = Behind(tool="senders.refused")
    paired = Behind(tool="senders.pairings", decides=True)
    coded = Behind(tool="senders.owner_code", decides=True)
    add_routes(
        app,
        ("GET", "/senders/refused", refused, "Senders that were not served, and why", listed),
        ("GET", "/senders/pairings", pairings, "Strangers that were given a pairing code", paired),
        ("GET", "/senders/owner-code", owner_code, "The code that makes a chat the owner's", coded),
    )


def _add_decisions(app: FastAPI, door: FleetDoor) -> None:
    async def approve(request: Request) -> Response:
        return await door.act(request, "senders.approve", *ApproveArguments.model_fields)

    async def allow(request: Request) -> Response:
        return await door.act(request, "senders.allow", *AllowArguments.model_fields)

    async def remove(request: Request) -> Response:
        return await door.act(request, "senders.remove", *SenderArguments.model_fields)

    approved = Behind(tool="senders.approve", body=tuple(ApproveArguments.model_fields), decides=True)
    allowed = Behind(tool="senders.allow", body=tuple(AllowArguments.model_fields), decides=True)
    removed = Behind(tool="senders.remove", body=tuple(SenderArguments.model_fields), decides=True)
    add_routes(
        app,
        ("POST", "/senders/approve", approve, "Let the stranger with a pairing code in", approved),
        ("POST", "/senders/allow", allow, "Let a person in without a code", allowed),
        ("POST", "/senders/remove", remove, "Serve a person no longer", removed),
    )


def _identity(given: SenderArguments) -> str:
    """The identity as messages carry it; raises for what no message can carry."""
    identity = given.identity.strip()
    if given.channel == "email":
        if identity.count("@") != 1 or identity.strip("@") != identity:
            raise invalid("identity", "must be a mail address")
        return identity.lower()
    if not (identity.isascii() and identity.isdigit()):
        raise invalid("identity", "must be the number of a Telegram user, as `butlers senders refused` shows it")
    return identity
