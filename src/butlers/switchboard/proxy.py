"""Addresses of the HTTP API behind which a butler's tool answers: who may ask, what is passed on, what comes back.

Whoever may see the system may read. Only a person with an operator's token may change something; the butler hears the
person's name as `decided_by`. The butler checks the arguments, so a refusal here is the refusal there: 404 where it
knows no such thing, 422 for a wrong argument.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from butlers.butler.identity import Caller
from butlers.butler.surface import BUTLERS
from butlers.butler.transport import Transport
from butlers.contracts.envelope import invalid
from butlers.errors import ClassifiedError
from butlers.switchboard.answers import Refused, answer_refusal, fields, json_object, may_decide, passed_on
from butlers.switchboard.description import Behind

CallerOf = Callable[[Request], Caller]
BodyOf = Callable[[Request], Awaitable[bytes]]
Answer = Callable[..., Awaitable[Response]]
# Verb, path, answer, summary, and the tool that answers: from it the address gets its description.
Route = tuple[str, str, Answer, str] | tuple[str, str, Answer, str, Behind]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolProxy:
    caller_of: CallerOf
    body_of: BodyOf
    transport: Transport
    butlers: Collection[str] = ()  # all that there are, where a caller names one

    async def read(self, request: Request, butler: str, tool: str, **arguments: Any) -> Response:
        self._must_be_inside(request)
        self.must_exist(butler)
        return await passed_on(self.transport, butler, tool, arguments)

    async def ask_about(self, request: Request, butler: str, tool: str, argument: str) -> Response:
        """What a tool says to the object in the body; nothing changes."""
        self._must_be_inside(request)
        return await passed_on(self.transport, butler, tool, {argument: await self._said(request, json_object)})

    async def change(self, request: Request, butler: str, tool: str, *from_body: str, **arguments: Any) -> Response:
        """A person's deed; the named fields come from the body, and all of them may be left out with it."""
        given = await self.decided(request, *from_body) | arguments
        self.must_exist(butler)
        return await passed_on(self.transport, butler, tool, given)

    async def decided(self, request: Request, *from_body: str) -> dict[str, Any]:
        """What a person says, and who it is."""
        caller = self.caller_of(request)
        if not may_decide(caller):
            raise Refused(403, invalid("authorization", "only a person with an operator's token may decide this"))
        said = await self._said(request, lambda body: fields(body or b"{}", from_body)) if from_body else {}
        return said | {"decided_by": caller.name}

    def must_exist(self, butler: str) -> None:
        """One that is away may come back; one that nobody knows will not."""
        if self.butlers and butler not in self.butlers:
            there = ", ".join(sorted(self.butlers))
            raise Refused(404, invalid("butler", f"is no butler here; there are {there}"))

    def _must_be_inside(self, request: Request) -> None:
        caller = self.caller_of(request)
        if caller.role not in BUTLERS:
            raise Refused(403, invalid("authorization", f"{caller.role.value}s may only hand in messages"))

    async def _said(self, request: Request, read: Callable[[bytes], dict[str, Any]]) -> dict[str, Any]:
        try:
            return read(await self.body_of(request))
        except ClassifiedError as error:
            raise Refused(422, error) from error


def add_routes(app: FastAPI, *routes: Route) -> None:
    """In this order: a fixed name goes before the {id} that would take it."""
    app.add_exception_handler(Refused, answer_refusal)
    for verb, path, answer, summary, *rest in routes:
        behind = rest[0] if rest else Behind(tool="")
        app.add_api_route(
            path, answer, methods=[verb], summary=summary, status_code=behind.status, openapi_extra=behind.extra()
        )
