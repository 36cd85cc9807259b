"""Deliveries, dead letters and recipients over HTTP: thin proxies to Messenger's tools.

Whoever may see the system may read. Only a person with an operator's token may change something; Messenger hears the
person's name as `decided_by`. Messenger checks the arguments, so a refusal here is the refusal there: 404 where it
knows no such thing, 422 for a wrong argument.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from fastapi import FastAPI, Query
from starlette.requests import Request
from starlette.responses import Response

from butlers.butler.identity import Caller
from butlers.butler.surface import BUTLERS
from butlers.butler.transport import Transport
from butlers.contracts.envelope import invalid
from butlers.errors import ClassifiedError
from butlers.switchboard.answers import error_answer, fields, json_object, may_decide, passed_on

MESSENGER = "messenger"
LONGEST_PAGE = 500

CallerOf = Callable[[Request], Caller]
BodyOf = Callable[[Request], Awaitable[bytes]]


def add_delivery_routes(app: FastAPI, *, caller_of: CallerOf, body_of: BodyOf, transport: Transport) -> None:
    """All routes below `/deliveries`, `/dead-letters` and `/recipients`."""
    _DeliveryRoutes(caller_of=caller_of, body_of=body_of, transport=transport).add(app)


@dataclass(frozen=True, slots=True, kw_only=True)
class _DeliveryRoutes:
    caller_of: CallerOf
    body_of: BodyOf
    transport: Transport

    def add(self, app: FastAPI) -> None:
        def route(verb: str, path: str, answer: Any, summary: str) -> None:
            app.add_api_route(path, answer, methods=[verb], summary=summary)

        # Fixed names first: {delivery_id} would take them.
        route("GET", "/deliveries", self._search, "Deliveries, newest first")
        route("GET", "/deliveries/stats", self._stats, "Counts, rates and latencies")
        route("GET", "/deliveries/queue", self._queue, "What is on its way")
        route("GET", "/deliveries/limits", self._limits, "What is left of the budgets")
        route("GET", "/deliveries/circuits", self._circuits, "The circuit of each channel")
        route("POST", "/deliveries/dry-run", self._dry_run, "What would happen to a notify.v1")
        route("POST", "/deliveries/validate", self._validate, "Whether a notify.v1 is valid")
        route("GET", "/deliveries/trace/{request_id}", self._trace, "One request, from the door to the receipts")
        route("GET", "/deliveries/{delivery_id}", self._status, "One delivery")
        route("GET", "/deliveries/{delivery_id}/attempts", self._attempts, "Every attempt at it")
        route("GET", "/deliveries/{delivery_id}/why", self._why, "Which rule decided what, in plain words")
        route("POST", "/deliveries/{delivery_id}/settle", self._settle, "Say what became of an uncertain delivery")
        route("POST", "/deliveries/{delivery_id}/quarantine", self._quarantine, "Set it aside")
        route("GET", "/dead-letters", self._dead_letters, "Deliveries that were set aside, newest first")
        route("GET", "/dead-letters/{dead_letter_id}", self._dead_letter, "One of them, whole")
        route("POST", "/dead-letters/{dead_letter_id}/replay", self._replay, "Send it again")
        route("POST", "/dead-letters/{dead_letter_id}/discard", self._discard, "Give it up for good")
        route("GET", "/recipients", self._recipients, "Who is not written to, or has moved")
        route("POST", "/recipients", self._suppress, "Write to somebody no more")
        route("DELETE", "/recipients", self._release, "Write to somebody again")
        route("POST", "/recipients/release", self._release_named, "The same, for clients that only post")

    # --- deliveries --------------------------------------------------------------------------------------------------

    async def _search(
        self,
        request: Request,
        *,
        origin_butler: str | None = None,
        channel: str | None = None,
        intent: str | None = None,
        status: str | None = None,
        request_id: UUID | None = None,
        since: str | None = None,
        until: str | None = None,
        cursor: str | None = None,
        limit: int = Query(default=50, ge=1, le=LONGEST_PAGE),
    ) -> Response:
        return await self._read(
            request,
            "messenger_delivery_search",
            origin_butler=origin_butler,
            channel=channel,
            intent=intent,
            status=status,
            request_id=request_id,
            since=since,
            until=until,
            cursor=cursor,
            limit=limit,
        )

    async def _status(self, request: Request, delivery_id: UUID) -> Response:
        return await self._read(request, "messenger_delivery_status", delivery_id=delivery_id)

    async def _attempts(self, request: Request, delivery_id: UUID) -> Response:
        return await self._read(request, "messenger_delivery_attempts", delivery_id=delivery_id)

    async def _why(self, request: Request, delivery_id: UUID) -> Response:
        return await self._read(request, "messenger_delivery_why", delivery_id=delivery_id)

    async def _trace(self, request: Request, request_id: UUID) -> Response:
        return await self._read(request, "messenger_delivery_trace", request_id=request_id)

    async def _settle(self, request: Request, delivery_id: UUID) -> Response:
        return await self._change(request, "messenger_delivery_settle", "outcome", delivery_id=delivery_id)

    async def _quarantine(self, request: Request, delivery_id: UUID) -> Response:
        return await self._change(request, "messenger_dead_letter_quarantine", "reason", delivery_id=delivery_id)

    # --- health ------------------------------------------------------------------------------------------------------

    async def _stats(
        self, request: Request, since: str | None = None, until: str | None = None, group_by: str | None = None
    ) -> Response:
        return await self._read(request, "messenger_delivery_stats", since=since, until=until, group_by=group_by)

    async def _queue(self, request: Request, channel: str | None = None) -> Response:
        return await self._read(request, "messenger_queue_depth", channel=channel)

    async def _limits(
        self, request: Request, channel: str | None = None, identity_scope: str | None = None
    ) -> Response:
        return await self._read(request, "messenger_rate_limit_status", channel=channel, identity_scope=identity_scope)

    async def _circuits(self, request: Request, channel: str | None = None) -> Response:
        return await self._read(request, "messenger_circuit_status", channel=channel)

    async def _dry_run(self, request: Request) -> Response:
        return await self._ask_about(request, "messenger_dry_run")

    async def _validate(self, request: Request) -> Response:
        return await self._ask_about(request, "messenger_validate_notify")

    # --- dead letters ------------------------------------------------------------------------------------------------

    async def _dead_letters(
        self,
        request: Request,
        *,
        channel: str | None = None,
        origin_butler: str | None = None,
        error_class: str | None = None,
        since: str | None = None,
        cursor: str | None = None,
        include_discarded: bool = Query(default=False),
        limit: int = Query(default=50, ge=1, le=LONGEST_PAGE),
    ) -> Response:
        return await self._read(
            request,
            "messenger_dead_letter_list",
            channel=channel,
            origin_butler=origin_butler,
            error_class=error_class,
            since=since,
            cursor=cursor,
            include_discarded=include_discarded,
            limit=limit,
        )

    async def _dead_letter(self, request: Request, dead_letter_id: UUID) -> Response:
        return await self._read(request, "messenger_dead_letter_inspect", dead_letter_id=dead_letter_id)

    async def _replay(self, request: Request, dead_letter_id: UUID) -> Response:
        return await self._change(request, "messenger_dead_letter_replay", dead_letter_id=dead_letter_id)

    async def _discard(self, request: Request, dead_letter_id: UUID) -> Response:
        return await self._change(request, "messenger_dead_letter_discard", "reason", dead_letter_id=dead_letter_id)

    # --- recipients --------------------------------------------------------------------------------------------------

    async def _recipients(
        self,
        request: Request,
        channel: str | None = None,
        cursor: str | None = None,
        limit: int = Query(default=50, ge=1, le=LONGEST_PAGE),
    ) -> Response:
        return await self._read(request, "messenger_recipient_list", channel=channel, cursor=cursor, limit=limit)

    async def _suppress(self, request: Request) -> Response:
        return await self._change(request, "messenger_recipient_suppress", "channel", "target", "reason")

    async def _release(self, request: Request, channel: str, target: str) -> Response:
        return await self._change(request, "messenger_recipient_release", channel=channel, target=target)

    async def _release_named(self, request: Request) -> Response:
        return await self._change(request, "messenger_recipient_release", "channel", "target")

    # --- the way to Messenger ----------------------------------------------------------------------------------------

    async def _read(self, request: Request, tool: str, **arguments: Any) -> Response:
        caller = self.caller_of(request)
        if caller.role not in BUTLERS:
            return error_answer(403, invalid("authorization", f"{caller.role.value}s may only hand in messages"))
        return await self._call(tool, arguments)

    async def _change(self, request: Request, tool: str, *from_body: str, **arguments: Any) -> Response:
        caller = self.caller_of(request)
        if not may_decide(caller):
            return error_answer(403, invalid("authorization", "only a person with an operator's token may decide this"))
        try:
            said = fields(await self.body_of(request), from_body) if from_body else {}
        except ClassifiedError as error:
            return error_answer(422, error)
        return await self._call(tool, said | arguments | {"decided_by": caller.name})

    async def _ask_about(self, request: Request, tool: str) -> Response:
        caller = self.caller_of(request)
        if caller.role not in BUTLERS:
            return error_answer(403, invalid("authorization", f"{caller.role.value}s may only hand in messages"))
        try:
            notify = json_object(await self.body_of(request))
        except ClassifiedError as error:
            return error_answer(422, error)
        return await self._call(tool, {"notify_request": notify})

    async def _call(self, tool: str, arguments: dict[str, Any]) -> Response:
        return await passed_on(self.transport, MESSENGER, tool, arguments)
