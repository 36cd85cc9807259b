"""Deliveries, dead letters and recipients over HTTP: thin proxies to Messenger's tools (see `proxy.py`)."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from fastapi import FastAPI, Query
from starlette.requests import Request
from starlette.responses import Response

from butlers.butler.transport import Transport
from butlers.switchboard.description import Behind
from butlers.switchboard.proxy import BodyOf, CallerOf, Route, ToolProxy, add_routes

MESSENGER = "messenger"
LONGEST_PAGE = 500


def _read(tool: str) -> Behind:
    return Behind(tool=tool, butler=MESSENGER)


def _ask(tool: str) -> Behind:
    return Behind(tool=tool, butler=MESSENGER, argument="notify_request")


def _change(tool: str, *body: str) -> Behind:
    return Behind(tool=tool, butler=MESSENGER, body=body, decides=True)


def add_delivery_routes(app: FastAPI, *, caller_of: CallerOf, body_of: BodyOf, transport: Transport) -> None:
    """All routes below `/deliveries`, `/dead-letters`, `/mailbox` and `/recipients`."""
    proxy = ToolProxy(caller_of=caller_of, body_of=body_of, transport=transport)
    _DeliveryRoutes(proxy=proxy).add(app)


@dataclass(frozen=True, slots=True, kw_only=True)
class _DeliveryRoutes:
    proxy: ToolProxy

    def add(self, app: FastAPI) -> None:
        add_routes(app, *self._reading(), *self._watching(), *self._keeping())

    def _reading(self) -> tuple[Route, ...]:
        return (
            ("GET", "/deliveries", self._search, "Deliveries, newest first", _read("messenger_delivery_search")),
            ("GET", "/deliveries/stats", self._stats, "Counts, rates and latencies", _read("messenger_delivery_stats")),
            ("GET", "/deliveries/queue", self._queue, "What is on its way", _read("messenger_queue_depth")),
            (
                "GET",
                "/deliveries/limits",
                self._limits,
                "What is left of the budgets",
                _read("messenger_rate_limit_status"),
            ),
            (
                "GET",
                "/deliveries/circuits",
                self._circuits,
                "The circuit of each channel",
                _read("messenger_circuit_status"),
            ),
            (
                "POST",
                "/deliveries/dry-run",
                self._dry_run,
                "What would happen to a notify.v1",
                _ask("messenger_dry_run"),
            ),
            (
                "POST",
                "/deliveries/validate",
                self._validate,
                "Whether a notify.v1 is valid",
                _ask("messenger_validate_notify"),
            ),
            (
                "GET",
                "/deliveries/trace/{request_id}",
                self._trace,
                "One request, from the door to the receipts",
                _read("messenger_delivery_trace"),
            ),
        )

    def _watching(self) -> tuple[Route, ...]:
        return (
            ("GET", "/deliveries/{delivery_id}", self._status, "One delivery", _read("messenger_delivery_status")),
            (
                "GET",
                "/deliveries/{delivery_id}/attempts",
                self._attempts,
                "Every attempt at it",
                _read("messenger_delivery_attempts"),
            ),
            (
                "GET",
                "/deliveries/{delivery_id}/why",
                self._why,
                "Which rule decided what, in plain words",
                _read("messenger_delivery_why"),
            ),
            (
                "POST",
                "/deliveries/{delivery_id}/settle",
                self._settle,
                "Say what became of an uncertain delivery",
                _change("messenger_delivery_settle", "outcome"),
            ),
            (
                "POST",
                "/deliveries/{delivery_id}/quarantine",
                self._quarantine,
                "Set it aside",
                _change("messenger_dead_letter_quarantine", "reason"),
            ),
            (
                "GET",
                "/dead-letters",
                self._dead_letters,
                "Deliveries that were set aside, newest first",
                _read("messenger_dead_letter_list"),
            ),
            (
                "GET",
                "/dead-letters/{dead_letter_id}",
                self._dead_letter,
                "One of them, whole",
                _read("messenger_dead_letter_inspect"),
            ),
            (
                "POST",
                "/dead-letters/{dead_letter_id}/replay",
                self._replay,
                "Send it again",
                _change("messenger_dead_letter_replay"),
            ),
        )

    def _keeping(self) -> tuple[Route, ...]:
        return (
            (
                "POST",
                "/dead-letters/{dead_letter_id}/discard",
                self._discard,
                "Give it up for good",
                _change("messenger_dead_letter_discard", "reason"),
            ),
            (
                "GET",
                "/mailbox/quarantine",
                self._quarantined_mails,
                "Mails that could not be handled, newest first",
                _read("email_list_quarantined"),
            ),
            (
                "POST",
                "/mailbox/quarantine/{mail}/retry",
                self._retry_mail,
                "Try one of them again",
                _change("email_retry_quarantined"),
            ),
            (
                "GET",
                "/recipients",
                self._recipients,
                "Who is not written to, or has moved",
                _read("messenger_recipient_list"),
            ),
            (
                "POST",
                "/recipients",
                self._suppress,
                "Write to somebody no more",
                _change("messenger_recipient_suppress", "channel", "target", "reason"),
            ),
            ("DELETE", "/recipients", self._release, "Write to somebody again", _change("messenger_recipient_release")),
            (
                "POST",
                "/recipients/release",
                self._release_named,
                "The same, for clients that only post",
                _change("messenger_recipient_release", "channel", "target"),
            ),
        )

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
        return await self.proxy.read(
            request,
            MESSENGER,
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
        return await self.proxy.read(request, MESSENGER, "messenger_delivery_status", delivery_id=delivery_id)

    async def _attempts(self, request: Request, delivery_id: UUID) -> Response:
        return await self.proxy.read(request, MESSENGER, "messenger_delivery_attempts", delivery_id=delivery_id)

    async def _why(self, request: Request, delivery_id: UUID) -> Response:
        return await self.proxy.read(request, MESSENGER, "messenger_delivery_why", delivery_id=delivery_id)

    async def _trace(self, request: Request, request_id: UUID) -> Response:
        return await self.proxy.read(request, MESSENGER, "messenger_delivery_trace", request_id=request_id)

    async def _settle(self, request: Request, delivery_id: UUID) -> Response:
        return await self.proxy.change(
            request, MESSENGER, "messenger_delivery_settle", "outcome", delivery_id=delivery_id
        )

    async def _quarantine(self, request: Request, delivery_id: UUID) -> Response:
        return await self.proxy.change(
            request, MESSENGER, "messenger_dead_letter_quarantine", "reason", delivery_id=delivery_id
        )

    # --- health ------------------------------------------------------------------------------------------------------

    async def _stats(
        self, request: Request, since: str | None = None, until: str | None = None, group_by: str | None = None
    ) -> Response:
        return await self.proxy.read(
            request, MESSENGER, "messenger_delivery_stats", since=since, until=until, group_by=group_by
        )

    async def _queue(self, request: Request, channel: str | None = None) -> Response:
        return await self.proxy.read(request, MESSENGER, "messenger_queue_depth", channel=channel)

    async def _limits(
        self, request: Request, channel: str | None = None, identity_scope: str | None = None
    ) -> Response:
        return await self.proxy.read(
            request, MESSENGER, "messenger_rate_limit_status", channel=channel, identity_scope=identity_scope
        )

    async def _circuits(self, request: Request, channel: str | None = None) -> Response:
        return await self.proxy.read(request, MESSENGER, "messenger_circuit_status", channel=channel)

    async def _dry_run(self, request: Request) -> Response:
        return await self.proxy.ask_about(request, MESSENGER, "messenger_dry_run", "notify_request")

    async def _validate(self, request: Request) -> Response:
        return await self.proxy.ask_about(request, MESSENGER, "messenger_validate_notify", "notify_request")

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
        return await self.proxy.read(
            request,
            MESSENGER,
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
        return await self.proxy.read(request, MESSENGER, "messenger_dead_letter_inspect", dead_letter_id=dead_letter_id)

    async def _replay(self, request: Request, dead_letter_id: UUID) -> Response:
        return await self.proxy.change(
            request, MESSENGER, "messenger_dead_letter_replay", dead_letter_id=dead_letter_id
        )

    async def _discard(self, request: Request, dead_letter_id: UUID) -> Response:
        return await self.proxy.change(
            request, MESSENGER, "messenger_dead_letter_discard", "reason", dead_letter_id=dead_letter_id
        )

    # --- mailbox -----------------------------------------------------------------------------------------------------

    async def _quarantined_mails(
        self, request: Request, cursor: str | None = None, limit: int = Query(default=50, ge=1, le=LONGEST_PAGE)
    ) -> Response:
        return await self.proxy.read(request, MESSENGER, "email_list_quarantined", cursor=cursor, limit=limit)

    async def _retry_mail(self, request: Request, mail: str) -> Response:
        return await self.proxy.change(request, MESSENGER, "email_retry_quarantined", mail=mail)

    # --- recipients --------------------------------------------------------------------------------------------------

    async def _recipients(
        self,
        request: Request,
        channel: str | None = None,
        cursor: str | None = None,
        limit: int = Query(default=50, ge=1, le=LONGEST_PAGE),
    ) -> Response:
        return await self.proxy.read(
            request, MESSENGER, "messenger_recipient_list", channel=channel, cursor=cursor, limit=limit
        )

    async def _suppress(self, request: Request) -> Response:
        return await self.proxy.change(
            request, MESSENGER, "messenger_recipient_suppress", "channel", "target", "reason"
        )

    async def _release(self, request: Request, channel: str, target: str) -> Response:
        return await self.proxy.change(
            request, MESSENGER, "messenger_recipient_release", channel=channel, target=target
        )

    async def _release_named(self, request: Request) -> Response:
        return await self.proxy.change(request, MESSENGER, "messenger_recipient_release", "channel", "target")
