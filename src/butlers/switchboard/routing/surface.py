"""Routing as an operator sees it: which prompt and model decide, what is on trial, and the two levers.

MCP `routing.status`, `routing.rollback`, `routing.resume`; HTTP `GET /api/routing` and the same two as POST.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import FastAPI
from pydantic import Field, StringConstraints
from starlette.requests import Request
from starlette.responses import Response

from butlers.butler.core_tools import wire
from butlers.butler.identity import Caller, Role
from butlers.butler.surface import ACTS, BUTLERS, READS, NoArguments, Result, Row, Tool
from butlers.contracts.envelope import Value, invalid
from butlers.errors import ClassifiedError
from butlers.switchboard.answers import Refused, fields, json_answer, may_decide
from butlers.switchboard.description import Behind
from butlers.switchboard.proxy import BodyOf, CallerOf, add_routes
from butlers.switchboard.routing.llm.rollout import Rollout

OPERATORS = frozenset({Role.OPERATOR})


class ReasonArguments(Value):
    reason: Annotated[str, StringConstraints(max_length=500)] = Field(default="", description="why, for the record")


class RoutingStatus(Result):
    llm: Row = Field(description="whether a model is asked, and which")
    skills: list[str] = Field(description="the skills that its prompt is made of")
    prompt_version: str | None = Field(description="the version of the prompt")
    stable: Row = Field(description="how the version in use does")
    canary: Row | None = Field(description="the version on trial, and how it does")
    history: list[Row] = Field(description="earlier trials, newest first")


class RolloutChanged(Result):
    """The trial as it stands now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingDesk:
    rollout: Rollout
    runtime: str | None  # which program is asked; None: no model is
    model: str | None
    skills: Sequence[str]

    async def status(self) -> dict[str, Any]:
        llm = {"enabled": self.runtime is not None, "runtime": self.runtime, "model": self.model}
        return wire({"llm": llm, "skills": list(self.skills), **await self.rollout.status()})

    async def change(self, deed: str, caller: Caller, reason: str) -> dict[str, Any]:
        act = self.rollout.rollback if deed == "rollback" else self.rollout.resume
        return wire(await act(by=caller.name, reason=reason or "the operator's decision"))

    def tools(self) -> list[Tool]:
        return [
            Tool(
                name="routing.status",
                description="What decides who gets a message.",
                returns=RoutingStatus,
                hints=READS,
                handler=self._status,
            ),
            Tool(
                name="routing.rollback",
                description="Take back the version of prompt and model that is on trial.",
                arguments=ReasonArguments,
                returns=RolloutChanged,
                hints=ACTS,
                handler=self._rollback,
                roles=OPERATORS,
            ),
            Tool(
                name="routing.resume",
                description="Go on with a trial that was rolled back; it is judged anew.",
                arguments=ReasonArguments,
                returns=RolloutChanged,
                hints=ACTS,
                handler=self._resume,
                roles=OPERATORS,
            ),
        ]

    def add_routes(self, app: FastAPI, caller_of: CallerOf, body_of: BodyOf) -> None:
        doors = _RoutingRoutes(desk=self, caller_of=caller_of, body_of=body_of)
        add_routes(
            app,
            ("GET", "/routing", doors.status, "What decides who gets a message", Behind(tool="routing.status")),
            (
                "POST",
                "/routing/rollback",
                doors.rollback,
                "Take back the version on trial",
                Behind(tool="routing.rollback", body=("reason",), decides=True),
            ),
            (
                "POST",
                "/routing/resume",
                doors.resume,
                "Go on with a trial that was rolled back",
                Behind(tool="routing.resume", body=("reason",), decides=True),
            ),
        )

    async def _status(self, _caller: Caller, _arguments: NoArguments) -> dict[str, Any]:
        return await self.status()

    async def _rollback(self, caller: Caller, arguments: ReasonArguments) -> dict[str, Any]:
        return await self.change("rollback", caller, arguments.reason)

    async def _resume(self, caller: Caller, arguments: ReasonArguments) -> dict[str, Any]:
        return await self.change("resume", caller, arguments.reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class _RoutingRoutes:
    desk: RoutingDesk
    caller_of: CallerOf
    body_of: BodyOf

    async def status(self, request: Request) -> Response:
        if self.caller_of(request).role not in BUTLERS:
            raise Refused(403, invalid("authorization", "this token may only hand in messages"))
        return json_answer(await self.desk.status())

    async def rollback(self, request: Request) -> Response:
        return await self._change("rollback", request)

    async def resume(self, request: Request) -> Response:
        return await self._change("resume", request)

    async def _change(self, deed: str, request: Request) -> Response:
        caller = self.caller_of(request)
        if not may_decide(caller):
            raise Refused(403, invalid("authorization", "only a person with an operator's token may decide this"))
        try:
            reason = fields(await self.body_of(request) or b"{}", ("reason",)).get("reason", "")
            if not isinstance(reason, str) or len(reason) > 500:
                raise invalid("reason", "must be a text of at most 500 characters")
            return json_answer(await self.desk.change(deed, caller, reason))
        except ClassifiedError as error:
            raise Refused(error.http_status, error) from error
