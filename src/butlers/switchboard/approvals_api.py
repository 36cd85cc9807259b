"""Approvals over HTTP: thin proxies (see `proxy.py`) to the tools of the butler whose actions they are (`?butler=`,
else Messenger); 404 also where there is no such butler or it has no approvals.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated
from uuid import UUID

from fastapi import FastAPI, Query
from starlette.requests import Request
from starlette.responses import Response

from butlers.butler.transport import Transport
from butlers.switchboard.answers import passed_on
from butlers.switchboard.description import Behind
from butlers.switchboard.proxy import BodyOf, CallerOf, Route, ToolProxy, add_routes

MESSENGER = "messenger"
_RULE_FIELDS = ("tool_name", "action_id", "arg_constraints", "expires_at", "max_uses", "description")

Butler = Annotated[str, Query(pattern=r"^[a-z][a-z0-9_-]{0,62}$", description="whose actions")]
Limit = Annotated[int, Query(ge=1, le=500)]


def _read(tool: str) -> Behind:
    return Behind(tool=tool, butler=MESSENGER)


def _change(tool: str, *body: str) -> Behind:
    return Behind(tool=tool, butler=MESSENGER, body=body, decides=True)


def add_approval_routes(
    app: FastAPI, *, caller_of: CallerOf, body_of: BodyOf, transport: Transport, butlers: Collection[str] = ()
) -> None:
    """All routes below `/approvals`."""
    proxy = ToolProxy(caller_of=caller_of, body_of=body_of, transport=transport, butlers=butlers)
    _ApprovalRoutes(proxy=proxy).add(app)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ApprovalRoutes:
    proxy: ToolProxy

    def add(self, app: FastAPI) -> None:
        add_routes(app, *self._shown(), *self._decided())

    def _shown(self) -> tuple[Route, ...]:
        return (
            ("GET", "/approvals", self._list, "Actions, newest first", _read("list_pending_actions")),
            ("GET", "/approvals/count", self._count, "How many actions wait", _read("pending_action_count")),
            ("GET", "/approvals/rules", self._rules, "Rules, newest first", _read("list_approval_rules")),
            (
                "POST",
                "/approvals/rules",
                self._create_rule,
                "Let calls pass without asking",
                Behind(tool="create_approval_rule", butler=MESSENGER, body=_RULE_FIELDS, decides=True, status=201),
            ),
            (
                "GET",
                "/approvals/rules/{rule_id}",
                self._rule,
                "One rule and its latest uses",
                _read("show_approval_rule"),
            ),
        )

    def _decided(self) -> tuple[Route, ...]:
        return (
            ("DELETE", "/approvals/rules/{rule_id}", self._revoke, "End a rule", _change("revoke_approval_rule")),
            ("POST", "/approvals/rules/{rule_id}/revoke", self._revoke, "End a rule", _change("revoke_approval_rule")),
            (
                "GET",
                "/approvals/{action_id}",
                self._show,
                "One action, whole, with its record",
                _read("show_pending_action"),
            ),
            (
                "POST",
                "/approvals/{action_id}/approve",
                self._approve,
                "Let it happen",
                _change("approve_action", "reason"),
            ),
            (
                "POST",
                "/approvals/{action_id}/reject",
                self._reject,
                "Refuse it for good",
                _change("reject_action", "reason"),
            ),
        )

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
        return await self.proxy.read(request, butler, "list_pending_actions", **given)

    async def _count(self, request: Request, butler: Butler = "messenger") -> Response:
        return await self.proxy.read(request, butler, "pending_action_count")

    async def _show(self, request: Request, action_id: UUID, butler: Butler = "messenger") -> Response:
        return await self.proxy.read(request, butler, "show_pending_action", action_id=action_id)

    async def _approve(self, request: Request, action_id: UUID, butler: Butler = "messenger") -> Response:
        return await self.proxy.change(request, butler, "approve_action", "reason", action_id=action_id)

    async def _reject(self, request: Request, action_id: UUID, butler: Butler = "messenger") -> Response:
        return await self.proxy.change(request, butler, "reject_action", "reason", action_id=action_id)

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
        return await self.proxy.read(request, butler, "list_approval_rules", **given)

    async def _rule(self, request: Request, rule_id: UUID, butler: Butler = "messenger") -> Response:
        return await self.proxy.read(request, butler, "show_approval_rule", rule_id=rule_id)

    async def _create_rule(self, request: Request, butler: Butler = "messenger") -> Response:
        said = await self.proxy.decided(request, *_RULE_FIELDS)
        self.proxy.must_exist(butler)
        tool = "create_rule_from_action" if "action_id" in said else "create_approval_rule"
        return await passed_on(self.proxy.transport, butler, tool, said, status=201)

    async def _revoke(self, request: Request, rule_id: UUID, butler: Butler = "messenger") -> Response:
        return await self.proxy.change(request, butler, "revoke_approval_rule", rule_id=rule_id)
