"""Holds as MCP tools, and the same over HTTP below `/butlers`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any
from uuid import UUID

from fastapi import FastAPI, Query
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from butlers.butler.core_tools import wire
from butlers.butler.identity import Caller, Role
from butlers.butler.results import Page
from butlers.butler.surface import ACTS, BUTLERS, READS, AnyTool, Result, Row, Tool
from butlers.contracts.envelope import Identity, Value, invalid
from butlers.errors import ClassifiedError
from butlers.switchboard.answers import Refused, fields, json_answer, may_decide
from butlers.switchboard.description import Behind
from butlers.switchboard.holds.holds import Holds
from butlers.switchboard.operators.api import AddRoutes
from butlers.switchboard.proxy import BodyOf, CallerOf, add_routes

LONGEST_PAGE = 500


class HoldArguments(Value):
    butler: Identity = Field(description="the butler, by its name")
    reason: Identity = Field(description="why, for the record")


class HistoryArguments(Value):
    butler: Identity = Field(description="the butler, by its name")
    cursor: UUID | None = Field(default=None, description="next_cursor of the page before; absent: the first page")
    limit: int = Field(default=50, ge=1, le=LONGEST_PAGE, description="at most so many, on one page")


class HoldResult(Result):
    butler: str = Field(description="the butler, by its name")
    held: Row | None = Field(description="who holds it, why and since when; null: nobody")
    eligibility_state: str = Field(description="whether it gets routes")


class HoldHistory(Page):
    butler: str = Field(description="the butler, by its name")
    history: list[Row] = Field(description="what changed, when and why, newest first")


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldTools:
    holds: Holds

    def tools(self) -> list[AnyTool]:
        operators = frozenset({Role.OPERATOR})
        return [
            Tool(
                name="butler.hold",
                description="Take a butler out of service: no new routes until it is released.",
                arguments=HoldArguments,
                returns=HoldResult,
                hints=ACTS,
                handler=self._hold,
                roles=operators,
            ),
            Tool(
                name="butler.release",
                description="Put a butler back into service that was held.",
                arguments=HoldArguments,
                returns=HoldResult,
                hints=ACTS,
                handler=self._release,
                roles=operators,
            ),
            Tool(
                name="butler.history",
                description="Why a butler was or was not routable, newest first.",
                arguments=HistoryArguments,
                returns=HoldHistory,
                hints=READS,
                handler=self._history,
                roles=BUTLERS,
            ),
        ]

    async def _hold(self, caller: Caller, given: HoldArguments) -> dict[str, Any]:
        return wire(await self.holds.hold(given.butler, operator=caller.name, reason=given.reason))

    async def _release(self, caller: Caller, given: HoldArguments) -> dict[str, Any]:
        return wire(await self.holds.release(given.butler, operator=caller.name, reason=given.reason))

    async def _history(self, _caller: Caller, given: HistoryArguments) -> dict[str, Any]:
        return wire(await self.holds.history(given.butler, before=given.cursor, limit=given.limit))


def hold_routes(holds: Holds) -> AddRoutes:
    def add(app: FastAPI, caller_of: CallerOf, body_of: BodyOf) -> None:
        routes = _HoldRoutes(holds=holds, caller_of=caller_of, body_of=body_of)
        add_routes(
            app,
            (
                "POST",
                "/butlers/{butler}/hold",
                routes.hold,
                "Take a butler out of service",
                Behind(tool="butler.hold", body=("reason",), decides=True),
            ),
            (
                "POST",
                "/butlers/{butler}/release",
                routes.release,
                "Put a butler back into service",
                Behind(tool="butler.release", body=("reason",), decides=True),
            ),
            (
                "GET",
                "/butlers/{butler}/history",
                routes.history,
                "Why a butler was or was not routable",
                Behind(tool="butler.history"),
            ),
        )

    return add


@dataclass(frozen=True, slots=True, kw_only=True)
class _HoldRoutes:
    holds: Holds
    caller_of: CallerOf
    body_of: BodyOf

    async def hold(self, request: Request, butler: str) -> Response:
        operator, reason = await self._decided(request)
        return await _answered(self.holds.hold(butler, operator=operator, reason=reason))

    async def release(self, request: Request, butler: str) -> Response:
        operator, reason = await self._decided(request)
        return await _answered(self.holds.release(butler, operator=operator, reason=reason))

    async def history(
        self,
        request: Request,
        butler: str,
        cursor: UUID | None = None,
        limit: Annotated[int, Query(ge=1, le=LONGEST_PAGE)] = 50,
    ) -> Response:
        if self.caller_of(request).role not in BUTLERS:
            raise Refused(403, invalid("authorization", "this token may only hand in messages"))
        return await _answered(self.holds.history(butler, before=cursor, limit=limit))

    async def _decided(self, request: Request) -> tuple[str, str]:
        """Who decides and why."""
        caller = self.caller_of(request)
        if not may_decide(caller):
            raise Refused(403, invalid("authorization", "the operator's token is required"))
        try:
            reason = fields(await self.body_of(request), ("reason",)).get("reason")
            if not isinstance(reason, str) or not reason.strip():
                raise invalid("reason", "is required")
        except ClassifiedError as error:
            raise Refused(error.http_status, error) from error
        return caller.name, reason.strip()


async def _answered(asked: Any) -> Response:
    try:
        return json_answer(await asked)
    except ClassifiedError as error:
        raise Refused(error.http_status, error) from error
