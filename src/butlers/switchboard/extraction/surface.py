"""What was learned about people, for whoever decides on it.

MCP `extraction.list`, `extraction.confirm`, `extraction.dismiss`; HTTP `GET /api/extractions` and the same two as POST.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import FastAPI, Query
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from butlers.butler.core_tools import wire
from butlers.butler.identity import Caller, Role
from butlers.butler.results import Page
from butlers.butler.surface import ACTS, BUTLERS, READS, Result, Row, Tool
from butlers.contracts.envelope import Value, invalid
from butlers.errors import ClassifiedError
from butlers.switchboard.answers import Refused, json_answer, may_decide
from butlers.switchboard.description import Behind
from butlers.switchboard.extraction.queue import ExtractionQueue
from butlers.switchboard.proxy import BodyOf, CallerOf, add_routes

OPERATORS = frozenset({Role.OPERATOR})
Status = Literal["pending", "confirmed", "dismissed", "expired", "refused", "any"]


class ListArguments(Value):
    status: Status = Field(default="pending", description="only what stands so")
    cursor: UUID | None = Field(default=None, description="next_cursor of the page before; absent: the first page")
    limit: Annotated[int, Field(ge=1, le=500)] = Field(default=50, description="at most so many, on one page")


class DecideArguments(Value):
    extraction_id: UUID = Field(description="what was learned, by its id")


class ExtractionList(Page):
    extractions: list[Row] = Field(description="what was learned: id, type, data, confidence and status")


class ExtractionResult(Result):
    id: str = Field(description="what was learned, by its id")
    status: str = Field(description="what was decided")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtractionDesk:
    queue: ExtractionQueue
    confirmed: Callable[[], None]  # something is to be dispatched

    async def listed(self, status: Status, cursor: UUID | None, limit: int) -> dict[str, Any]:
        chosen = None if status == "any" else status
        return wire(await self.queue.list(status=chosen, before=cursor, limit=limit))

    async def decide(self, extraction_id: UUID, status: str, caller: Caller) -> dict[str, Any]:
        decided = await self.queue.decide(extraction_id, status, by=caller.name)
        self.confirmed()
        return wire(decided)

    def tools(self) -> list[Tool]:
        return [
            Tool(
                name="extraction.list",
                description="What messages told about people, newest first.",
                arguments=ListArguments,
                returns=ExtractionList,
                hints=READS,
                handler=self._list,
            ),
            Tool(
                name="extraction.confirm",
                description="Let the relationship butler record what was learned.",
                arguments=DecideArguments,
                returns=ExtractionResult,
                hints=ACTS,
                handler=self._confirm,
                roles=OPERATORS,
            ),
            Tool(
                name="extraction.dismiss",
                description="Forget what was learned.",
                arguments=DecideArguments,
                returns=ExtractionResult,
                hints=ACTS,
                handler=self._dismiss,
                roles=OPERATORS,
            ),
        ]

    def add_routes(self, app: FastAPI, caller_of: CallerOf, _body_of: BodyOf) -> None:
        doors = _ExtractionRoutes(desk=self, caller_of=caller_of)
        add_routes(
            app,
            (
                "GET",
                "/extractions",
                doors.list,
                "What messages told about people, newest first",
                Behind(tool="extraction.list"),
            ),
            (
                "POST",
                "/extractions/{extraction_id}/confirm",
                doors.confirm,
                "Let it be recorded",
                Behind(tool="extraction.confirm", decides=True),
            ),
            (
                "POST",
                "/extractions/{extraction_id}/dismiss",
                doors.dismiss,
                "Forget it",
                Behind(tool="extraction.dismiss", decides=True),
            ),
        )

    async def _list(self, _caller: Caller, arguments: ListArguments) -> dict[str, Any]:
        return await self.listed(arguments.status, arguments.cursor, arguments.limit)

    async def _confirm(self, caller: Caller, arguments: DecideArguments) -> dict[str, Any]:
        return await self.decide(arguments.extraction_id, "confirmed", caller)

    async def _dismiss(self, caller: Caller, arguments: DecideArguments) -> dict[str, Any]:
        return await self.decide(arguments.extraction_id, "dismissed", caller)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ExtractionRoutes:
    desk: ExtractionDesk
    caller_of: CallerOf

    async def list(
        self,
        request: Request,
        status: Status = "pending",
        cursor: UUID | None = None,
        limit: Annotated[int, Query(ge=1, le=500)] = 50,
    ) -> Response:
        if self.caller_of(request).role not in BUTLERS:
            raise Refused(403, invalid("authorization", "may only hand in messages"))
        return json_answer(await self.desk.listed(status, cursor, limit))

    async def confirm(self, request: Request, extraction_id: UUID) -> Response:
        return await self._decide(request, extraction_id, "confirmed")

    async def dismiss(self, request: Request, extraction_id: UUID) -> Response:
        return await self._decide(request, extraction_id, "dismissed")

    async def _decide(self, request: Request, extraction_id: UUID, status: str) -> Response:
        caller = self.caller_of(request)
        if not may_decide(caller):
            raise Refused(403, invalid("authorization", "only a person with an operator's token may decide this"))
        try:
            return json_answer(await self.desk.decide(extraction_id, status, caller))
        except ClassifiedError as error:
            raise Refused(error.http_status, error) from error
