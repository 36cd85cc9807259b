"""The service levels at the doors: MCP `service_levels`, HTTP `GET /api/service-levels`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from fastapi import FastAPI
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from butlers.butler.core_tools import wire
from butlers.butler.identity import Caller
from butlers.butler.stretch import StretchArguments
from butlers.butler.surface import BUTLERS, READS, Result, Row, Tool, ToolBox
from butlers.clock import Clock
from butlers.contracts.envelope import invalid
from butlers.errors import ClassifiedError
from butlers.switchboard.answers import Refused, json_answer
from butlers.switchboard.description import Behind
from butlers.switchboard.proxy import BodyOf, CallerOf, add_routes
from butlers.switchboard.service_levels.levels import ServiceLevels

TOOL: Final = "service_levels"


class ServiceLevelsResult(Result):
    window: Row = Field(description="since and until")
    accept: Row | list[Row] = Field(description="how long the door took")
    completion: Row | list[Row] = Field(description="how long requests took to their end")
    routes: Row = Field(description="how many routes succeeded, in all and by butler")
    interactive: Row | list[Row] = Field(description="how long people waited for an answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceLevelDesk:
    levels: ServiceLevels
    clock: Clock

    def tools(self) -> list[Tool]:
        return [
            Tool(
                name=TOOL,
                description="How well messages are taken in and dealt with: accept, completion, routes, interactive.",
                arguments=StretchArguments,
                returns=ServiceLevelsResult,
                hints=READS,
                handler=self._answer,
                roles=BUTLERS,
            )
        ]

    def add_routes(self, app: FastAPI, caller_of: CallerOf, _body_of: BodyOf) -> None:
        box = ToolBox(self.tools())

        async def service_levels(request: Request, since: str | None = None, until: str | None = None) -> Response:
            caller = caller_of(request)
            if caller.role not in BUTLERS:
                raise Refused(403, invalid("authorization", f"{caller.role.value}s may only hand in messages"))
            given = {name: value for name, value in {"since": since, "until": until}.items() if value is not None}
            try:
                return json_answer(await box.call(TOOL, caller, given))
            except ClassifiedError as error:
                raise Refused(error.http_status, error) from error

        add_routes(
            app,
            ("GET", "/service-levels", service_levels, "The service levels of a stretch of time", Behind(tool=TOOL)),
        )

    async def _answer(self, _caller: Caller, arguments: StretchArguments) -> dict[str, Any]:
        since, until = arguments.between(self.clock.now())
        return wire(await self.levels.slis(since, until))
