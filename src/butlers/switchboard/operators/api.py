"""Operators' tools over HTTP. Whoever may see the system may read what is on record; only a person with an operator's
token may act. What is not possible as things are is 409, what is not there 404.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any
from uuid import UUID

from fastapi import FastAPI, Query
from starlette.requests import Request
from starlette.responses import Response

from butlers.butler.identity import Caller
from butlers.butler.surface import BUTLERS, ToolBox
from butlers.contracts.envelope import invalid
from butlers.errors import ClassifiedError
from butlers.switchboard.answers import Refused, fields, json_answer, may_decide
from butlers.switchboard.description import Behind
from butlers.switchboard.operators.paging import LONGEST_PAGE
from butlers.switchboard.proxy import BodyOf, CallerOf, Route, add_routes

Limit = Annotated[int, Query(ge=1, le=LONGEST_PAGE)]
AddRoutes = Callable[[FastAPI, CallerOf, BodyOf], None]


def operator_routes(tools: ToolBox) -> AddRoutes:
    """Adds all routes of operators; before `/requests/{request_id}`, which would take the fixed names."""

    def add(app: FastAPI, caller_of: CallerOf, body_of: BodyOf) -> None:
        _OperatorRoutes(tools=tools, caller_of=caller_of, body_of=body_of).add(app)

    return add


@dataclass(frozen=True, slots=True, kw_only=True)
class _OperatorRoutes:
    tools: ToolBox
    caller_of: CallerOf
    body_of: BodyOf

    def add(self, app: FastAPI) -> None:
        add_routes(app, *self._acting(), *self._records())

    def _acting(self) -> tuple[Route, ...]:
        return (
            (
                "GET",
                "/requests/dead-letters",
                self._dead_letters,
                "Requests that failed for good, newest first",
                Behind(tool="request.dead_letters"),
            ),
            (
                "GET",
                "/requests/dead-letters/{dead_letter_id}",
                self._dead_letter,
                "One of them, whole",
                Behind(tool="request.dead_letters"),
            ),
            (
                "POST",
                "/requests/dead-letters/{dead_letter_id}/replay",
                self._replay,
                "Work on it again",
                Behind(tool="request.replay", body=("reason",), decides=True),
            ),
            (
                "POST",
                "/requests/{request_id}/reroute",
                self._reroute,
                "Send it to another butler",
                Behind(tool="request.reroute", body=("target", "reason"), decides=True),
            ),
            (
                "POST",
                "/requests/{request_id}/cancel",
                self._cancel,
                "Withdraw it before anybody works on it",
                Behind(tool="request.cancel", body=("reason",), decides=True),
            ),
            (
                "POST",
                "/requests/{request_id}/abort",
                self._abort,
                "Stop the work on it",
                Behind(tool="request.abort", body=("reason",), decides=True),
            ),
            (
                "POST",
                "/requests/{request_id}/retry",
                self._retry,
                "Work on it again after it ended badly",
                Behind(tool="request.retry", body=("reason",), decides=True),
            ),
            (
                "POST",
                "/requests/{request_id}/force-complete",
                self._force_complete,
                "Declare it done, with a note",
                Behind(tool="request.force_complete", body=("annotation", "reason"), decides=True),
            ),
        )

    def _records(self) -> tuple[Route, ...]:
        return (
            (
                "GET",
                "/audit",
                self._activity,
                "What butlers and operators did, newest first",
                Behind(tool="audit.list"),
            ),
            (
                "GET",
                "/audit/operators",
                self._audit,
                "What operators did about requests, newest first",
                Behind(tool="request.audit"),
            ),
        )

    # --- acting ------------------------------------------------------------------------------------------------------

    async def _reroute(self, request: Request, request_id: UUID) -> Response:
        return await self._act(request, "request.reroute", "target", "reason", request_id=request_id)

    async def _cancel(self, request: Request, request_id: UUID) -> Response:
        return await self._act(request, "request.cancel", "reason", request_id=request_id)

    async def _abort(self, request: Request, request_id: UUID) -> Response:
        return await self._act(request, "request.abort", "reason", request_id=request_id)

    async def _retry(self, request: Request, request_id: UUID) -> Response:
        return await self._act(request, "request.retry", "reason", request_id=request_id)

    async def _force_complete(self, request: Request, request_id: UUID) -> Response:
        return await self._act(request, "request.force_complete", "annotation", "reason", request_id=request_id)

    async def _replay(self, request: Request, dead_letter_id: UUID) -> Response:
        return await self._act(request, "request.replay", "reason", dead_letter_id=dead_letter_id)

    # --- reading -----------------------------------------------------------------------------------------------------

    async def _dead_letters(
        self,
        request: Request,
        *,
        request_id: UUID | None = None,
        target_butler: str | None = None,
        error_class: str | None = None,
        failure_category: str | None = None,
        since: str | None = None,
        include_resolved: bool = False,
        cursor: str | None = None,
        limit: Limit = 50,
    ) -> Response:
        return await self._read(
            request,
            "request.dead_letters",
            request_id=request_id,
            target_butler=target_butler,
            error_class=error_class,
            failure_category=failure_category,
            since=since,
            include_resolved=include_resolved,
            cursor=cursor,
            limit=limit,
        )

    async def _dead_letter(self, request: Request, dead_letter_id: UUID) -> Response:
        return await self._read(request, "request.dead_letters", dead_letter_id=dead_letter_id)

    async def _audit(
        self,
        request: Request,
        *,
        request_id: UUID | None = None,
        operator: str | None = None,
        action: str | None = None,
        since: str | None = None,
        cursor: str | None = None,
        limit: Limit = 50,
    ) -> Response:
        given = {"request_id": request_id, "operator": operator, "action": action}
        return await self._read(request, "request.audit", **given, since=since, cursor=cursor, limit=limit)

    async def _activity(
        self,
        request: Request,
        *,
        butler: str | None = None,
        operation: str | None = None,
        result: str | None = None,
        since: str | None = None,
        cursor: str | None = None,
        limit: Limit = 50,
    ) -> Response:
        given = {"butler": butler, "operation": operation, "result": result}
        return await self._read(request, "audit.list", **given, since=since, cursor=cursor, limit=limit)

    # --- through the tools -------------------------------------------------------------------------------------------

    async def _act(self, request: Request, tool: str, *from_body: str, **arguments: Any) -> Response:
        caller = self.caller_of(request)
        if not may_decide(caller):
            raise Refused(403, invalid("authorization", "only a person with an operator's token may decide this"))
        body = await self.body_of(request)
        try:
            said = fields(body or b"{}", from_body)
        except ClassifiedError as error:
            raise Refused(422, error) from error
        return await self._call(tool, caller, said | arguments)

    async def _read(self, request: Request, tool: str, **arguments: Any) -> Response:
        caller = self.caller_of(request)
        if caller.role not in BUTLERS:
            raise Refused(403, invalid("authorization", f"{caller.role.value}s may only hand in messages"))
        return await self._call(tool, caller, arguments)

    async def _call(self, tool: str, caller: Caller, arguments: dict[str, Any]) -> Response:
        given = {name: str(value) if isinstance(value, UUID) else value for name, value in arguments.items()}
        try:
            return json_answer(await self.tools.call(tool, caller, _said(given)))
        except ClassifiedError as error:
            raise Refused(error.http_status, error) from error


def _said(arguments: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if value is not None}
