"""Approvals over HTTP: thin proxies to the tools of the butler whose actions they are (`?butler=`, else Messenger).

Butlers and people may read; only a person with an operator's token may decide, and the
butler hears the person's name as `decided_by`. The butler checks the arguments, so a refusal here is the refusal
there: 404 where it knows no such thing or has no approvals, 422 otherwise.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any
from uuid import UUID

from fastapi import FastAPI, Query
from starlette.requests import Request
from starlette.responses import Response

from butlers.butler.identity import Caller
from butlers.butler.surface import BUTLERS
from butlers.butler.transport import Transport
from butlers.contracts.envelope import invalid
from butlers.errors import ClassifiedError
from butlers.switchboard.answers import error_answer, fields, may_decide, passed_on

_RULE_FIELDS = ("tool_name", "action_id", "arg_constraints", "expires_at", "max_uses", "description")

CallerOf = Callable[[Request], Caller]
BodyOf = Callable[[Request], Awaitable[bytes]]
Butler = Annotated[str, Query(pattern=r"^[a-z][a-z0-9_-]{0,62}$", description="whose actions")]
Limit = Annotated[int, Query(ge=1, le=500)]


def add_approval_routes(app: FastAPI, *, caller_of: CallerOf, body_of: BodyOf, transport: Transport) -> None:
    """All routes below `/approvals`."""
    _ApprovalRoutes(caller_of=caller_of, body_of=body_of, transport=transport).add(app)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ApprovalRoutes:
    caller_of: CallerOf
    body_of: BodyOf
    transport: Transport

    def add(self, app: FastAPI) -> None:
        def route(verb: str, path: str, answer: Any, summary: str) -> None:
            app.add_api_route(path, answer, methods=[verb], summary=summary)

        # Fixed names first: {action_id} would take them.
        route("GET", "/approvals", self._list, "Actions, newest first")
        route("GET", "/approvals/count", self._count, "How many actions wait")
        route("GET", "/approvals/rules", self._rules, "Rules, newest first")
        route("POST", "/approvals/rules", self._create_rule, "Let calls pass without asking")
        route("GET", "/approvals/rules/{rule_id}", self._rule, "One rule and its latest uses")
        route("DELETE", "/approvals/rules/{rule_id}", self._revoke, "End a rule")
        # For callers that cannot send DELETE.
        route("POST", "/approvals/rules/{rule_id}/revoke", self._revoke, "End a rule")
        route("GET", "/approvals/{action_id}", self._show, "One action, whole, with its record")
        route("POST", "/approvals/{action_id}/approve", self._approve, "Let it happen")
        route("POST", "/approvals/{action_id}/reject", self._reject, "Refuse it for good")

    # --- actions -----------------------------------------------------------------------------------------------------

    async def _list(
        self,
        request: Request,
        *,
        status: str = "pending",
        tool_name: str | None = None,
        cursor: UUID | None = None,
        limit: Limit = 50,
        butler: Butler = "messenger",
    ) -> Response:
        given = {"status": status, "tool_name": tool_name, "cursor": cursor, "limit": limit}
        return await self._read(request, butler, "list_pending_actions", **given)

    async def _count(self, request: Request, butler: Butler = "messenger") -> Response:
        return await self._read(request, butler, "pending_action_count")

    async def _show(self, request: Request, action_id: UUID, butler: Butler = "messenger") -> Response:
        return await self._read(request, butler, "show_pending_action", action_id=action_id)

    async def _approve(self, request: Request, action_id: UUID, butler: Butler = "messenger") -> Response:
        return await self._decide(request, butler, "approve_action", action_id)

    async def _reject(self, request: Request, action_id: UUID, butler: Butler = "messenger") -> Response:
        return await self._decide(request, butler, "reject_action", action_id)

    # --- rules -------------------------------------------------------------------------------------------------------

    async def _rules(
        self,
        request: Request,
        *,
        tool_name: str | None = None,
        active_only: Annotated[bool, Query()] = True,
        cursor: UUID | None = None,
        limit: Limit = 50,
        butler: Butler = "messenger",
    ) -> Response:
        given = {"tool_name": tool_name, "active_only": active_only, "cursor": cursor, "limit": limit}
        return await self._read(request, butler, "list_approval_rules", **given)

    async def _rule(self, request: Request, rule_id: UUID, butler: Butler = "messenger") -> Response:
        return await self._read(request, butler, "show_approval_rule", rule_id=rule_id)

    async def _create_rule(self, request: Request, butler: Butler = "messenger") -> Response:
        if (refused := self._refusal(request)) is not None:
            return refused
        try:
            said = fields(await self.body_of(request), _RULE_FIELDS)
        except ClassifiedError as error:
            return error_answer(422, error)
        tool = "create_rule_from_action" if "action_id" in said else "create_approval_rule"
        return await self._call(butler, tool, said | {"decided_by": self.caller_of(request).name}, status=201)

    async def _revoke(self, request: Request, rule_id: UUID, butler: Butler = "messenger") -> Response:
        if (refused := self._refusal(request)) is not None:
            return refused
        given = {"rule_id": rule_id, "decided_by": self.caller_of(request).name}
        return await self._call(butler, "revoke_approval_rule", given)

    # --- the way to the butler ---------------------------------------------------------------------------------------

    async def _read(self, request: Request, butler: str, tool: str, **arguments: Any) -> Response:
        caller = self.caller_of(request)
        if caller.role not in BUTLERS:
            return error_answer(403, invalid("authorization", f"{caller.role.value}s may only hand in messages"))
        return await self._call(butler, tool, arguments)

    async def _decide(self, request: Request, butler: str, tool: str, action_id: UUID) -> Response:
        if (refused := self._refusal(request)) is not None:
            return refused
        try:
            said = fields(await self.body_of(request) or b"{}", ("reason",))
        except ClassifiedError as error:
            return error_answer(422, error)
        given = said | {"action_id": action_id, "decided_by": self.caller_of(request).name}
        return await self._call(butler, tool, given)

    def _refusal(self, request: Request) -> Response | None:
        if may_decide(self.caller_of(request)):
            return None
        return error_answer(403, invalid("authorization", "only a person with an operator's token may decide this"))

    async def _call(self, butler: str, tool: str, arguments: dict[str, Any], *, status: int = 200) -> Response:
        return await passed_on(self.transport, butler, tool, arguments, status=status)
