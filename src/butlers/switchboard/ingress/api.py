"""Switchboard's HTTP API: the routes of all operations, with OpenAPI at `/api/openapi.json`.

Bodies are read with a limit and checked by the contracts themselves; every refusal is JSON with class, message and
the list of fields. Bodies must say that they are JSON; what else keeps web pages out is `serving/guard.py`, before all
doors of a butler.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from fastapi import Depends, FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from butlers import __version__
from butlers.butler.identity import Caller, TokenFile
from butlers.butler.toolbox import AnyTool, EnvelopeTool, ToolBox, authenticate
from butlers.butler.transport import Transport
from butlers.contracts.envelope import invalid
from butlers.contracts.ingest import IngestEnvelope
from butlers.errors import (
    ClassifiedError,
    InternalError,
    NotFound,
    TimeoutExceeded,
    UnknownTool,
    ValidationError,
)
from butlers.operations.http import (
    HttpDoor,
    Refused,
    add_operations,
    bad_parameters,
    error_answer,
    json_object,
)
from butlers.operations.openapi import describe
from butlers.operations.operation import SWITCHBOARD, Role, Target
from butlers.operations.requests import INGEST, INGEST_BATCH, MOST_MESSAGES
from butlers.operations.table import OPERATIONS
from butlers.serving.guard import LOOPBACK, NUL
from butlers.serving.peer_account import is_own_account
from butlers.switchboard.ingress.ingress import Ingress
from butlers.telemetry import get_logger

log = get_logger("butlers.api")
ingress_log = get_logger("butlers.ingress")

LOCAL = Caller(name="local", role=Role.OPERATOR)  # a caller on this machine that shows no token
ANSWER_TIMEOUT_S = 25.0  # shorter than the command line waits
BODY_FACTOR = 8  # a batch may be so many times as large as a single message's body


async def accept_batch(ingress: Ingress, raw: dict[str, Any], *, submitted_by: Caller) -> dict[str, Any]:
    """A result per message, in their order: the reply, or `error`."""
    if unknown := sorted(raw.keys() - {"messages"}):
        raise invalid(unknown[0][:64], "is not a known field; there is messages")
    messages = raw.get("messages")
    if not isinstance(messages, list):
        raise invalid("messages", "is required" if messages is None else "must be a list")
    if not 1 <= len(messages) <= MOST_MESSAGES:
        raise invalid("messages", f"must hold 1 to {MOST_MESSAGES} messages")
    results = await asyncio.gather(*(_accept_one(ingress, message, submitted_by) for message in messages))
    refused = sum("error" in result for result in results)
    duplicates = sum(result.get("duplicate") is True for result in results)
    accepted = len(results) - refused - duplicates
    return {"results": results, "accepted": accepted, "duplicates": duplicates, "refused": refused}


async def _accept_one(ingress: Ingress, message: Any, submitted_by: Caller) -> dict[str, Any]:
    try:
        if not isinstance(message, dict):
            raise invalid("", "must be a JSON object")
        return (await ingress.accept(IngestEnvelope.parse(message), submitted_by=submitted_by)).to_wire()
    except Exception as error:
        refusal = error if isinstance(error, ClassifiedError) else InternalError("the message could not be taken")
        if refusal is not error:
            ingress_log.error("ingest failed", error=error)
        ingress.count_refusal(refusal)
        return {"error": {"fields": []} | refusal.describe()}


def ingest_tools(ingress: Ingress) -> list[AnyTool]:
    """The same doors as MCP tools."""

    async def ingest(caller: Caller | None, raw: dict[str, Any]) -> dict[str, Any]:
        reply = await ingress.accept(IngestEnvelope.parse(raw), submitted_by=_known(caller))
        return reply.to_wire()

    async def ingest_batch(caller: Caller | None, raw: dict[str, Any]) -> dict[str, Any]:
        return await accept_batch(ingress, raw, submitted_by=_known(caller))

    return [EnvelopeTool.of(INGEST, ingest), EnvelopeTool.of(INGEST_BATCH, ingest_batch)]


def _known(caller: Caller | None) -> Caller:
    if caller is None:
        raise invalid("authorization", "a bearer token is required to hand in messages")
    return caller


def may_decide(caller: Caller) -> bool:
    """Only a person with a token: a butler's own session runs on this machine, too, and must not decide for itself."""
    return caller.role is Role.OPERATOR and caller != LOCAL


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationCalls:
    tools: ToolBox  # Switchboard's own
    transport: Transport
    butlers: Collection[str] = ()  # all that there are; none: one that is away is not told apart from one unknown

    async def call(self, caller: Caller, target: Target, arguments: dict[str, Any]) -> dict[str, Any]:
        if target.butler == SWITCHBOARD:
            return await self.tools.call(target.operation, caller, arguments)
        if self.butlers and target.butler not in self.butlers:
            there = ", ".join(sorted(self.butlers))
            raise NotFound.of("butler", f"is no butler here; there are {there}")
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                return await self.transport.call(target.butler, target.operation, arguments)
        except TimeoutError:
            raise TimeoutExceeded(f"{target.butler} gave no answer within {ANSWER_TIMEOUT_S:g} s") from None
        except UnknownTool:
            problem = f"approvals are off for {target.butler}: add [modules.approvals] to its butler.toml"
            raise NotFound.of("butler", f"{problem} and start it again") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    ingress: Ingress
    tokens: TokenFile
    calls: OperationCalls
    max_body_bytes: int
    token_required: bool  # otherwise a caller on this machine needs none

    def app(self) -> FastAPI:
        app = FastAPI(
            title="butlers",
            version=__version__,
            openapi_url="/openapi.json",
            docs_url=None,
            redoc_url=None,
            redirect_slashes=False,  # a redirect would repeat whatever Host it was asked for
            dependencies=[Depends(refuse_nul), Depends(refuse_shadowed_names), Depends(refuse_unknown_keys)],
        )
        app.add_exception_handler(RequestValidationError, _answer_bad_parameter)
        app.add_exception_handler(HTTPException, _answer_http)
        app.add_exception_handler(Exception, _answer_unexpected)
        own = {INGEST.name: self._ingest, INGEST_BATCH.name: self._ingest_batch}
        door = HttpDoor(
            caller_of=self._caller, body_of=self._body, may_decide=may_decide, call=self.calls.call, own=own
        )
        served = add_operations(app, OPERATIONS, door)
        describing = functools.partial(describe, served=served, token_required=self.token_required)
        generate = app.openapi
        app.openapi = functools.cache(lambda: describing(generate()))  # type: ignore[method-assign]
        return app

    async def _ingest(self, caller: Caller, request: Request) -> dict[str, Any]:
        try:
            envelope = IngestEnvelope.parse(await self._body(request))
            reply = await self.ingress.accept(envelope, submitted_by=caller)
        except ClassifiedError as error:
            self.ingress.count_refusal(error)
            raise
        return reply.to_wire()

    async def _ingest_batch(self, caller: Caller, request: Request) -> dict[str, Any]:
        body = await self._body(request, limit=BODY_FACTOR * self.max_body_bytes)
        return await accept_batch(self.ingress, json_object(body), submitted_by=caller)

    def _caller(self, request: Request) -> Caller:
        """Who asks; refuses unknown tokens, and a missing one where it is required."""
        try:
            caller = authenticate(request, self.tokens)
        except ValidationError as error:
            raise Refused(401, error) from error
        if caller is not None:
            return caller
        peer = request.client.host if request.client else ""
        if self.token_required or peer not in LOOPBACK:
            raise Refused(401, invalid("authorization", "a bearer token is required"))
        if not is_own_account(request.scope):
            problem = "a bearer token is required from other accounts of this machine"
            raise Refused(401, invalid("authorization", problem))
        return LOCAL

    async def _body(self, request: Request, *, limit: int | None = None) -> bytes:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind not in ("", "application/json"):
            raise _not_json()
        limit = limit or self.max_body_bytes
        body = bytearray()
        try:
            async for chunk in request.stream():
                body += chunk
                if body and not kind:  # only nothing at all needs no name
                    raise _not_json()
                if len(body) > limit:
                    raise Refused(413, invalid("", f"is larger than {limit} bytes"))
        except ClientDisconnect:  # no client reads this answer
            raise Refused(400, invalid("", "did not come to its end")) from None
        return bytes(body)


def _not_json() -> Refused:
    return Refused(415, invalid("content-type", "must be application/json"))


async def _answer_bad_parameter(_request: Request, error: Exception) -> Response:
    problems = error.errors() if isinstance(error, RequestValidationError) else []
    return error_answer(422, bad_parameters(problems))


async def _answer_http(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    what = {404: "no such address", 405: "this method is not allowed here"}.get(status, "the request was refused")
    answer = error_answer(status, ValidationError(what))
    if status == 405:
        answer.headers.update(allowed(request))
    return answer


async def _answer_unexpected(_request: Request, error: Exception) -> Response:
    log.error("api failed", error=error)
    return error_answer(500, InternalError("the request failed unexpectedly"))


async def refuse_unknown_keys(request: Request) -> None:
    """422 for the first key that the route does not know: a filter with a slip of the pen would show everything."""
    route = request.scope.get("route")
    if not request.query_params or not isinstance(route, APIRoute):
        return
    known = [parameter.alias for parameter in route.dependant.query_params]
    if unknown := [key for key in request.query_params if key not in known]:
        there = f"there are {', '.join(known)}" if known else "there are none here"
        raise Refused(422, invalid(unknown[0][:64], f"is not a known parameter; {there}"))


async def refuse_nul(request: Request) -> None:
    """422 for a part of the path that cannot be stored; queries are checked before (`serving/guard.py`)."""
    for name, value in request.path_params.items():
        if "\x00" in str(value):
            raise Refused(422, invalid(name, NUL))


async def refuse_shadowed_names(request: Request) -> None:
    """405 where a fixed name was taken for an id, because the fixed name does not have this method."""
    route = request.scope.get("route")
    if isinstance(route, APIRoute) and "{" in route.path and (methods := _methods(request, fixed=True)):
        raise HTTPException(405, headers={"Allow": ", ".join(methods)})


def allowed(request: Request) -> dict[str, str]:
    """Which methods a path has, over all of its routes; the first of them alone would say less."""
    methods = _methods(request, fixed=True) or _methods(request, fixed=False)
    return {"Allow": ", ".join(methods)} if methods else {}


def _methods(request: Request, *, fixed: bool) -> list[str]:
    app: FastAPI = request.app
    path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
    routes = [route for route in app.routes if isinstance(route, APIRoute) and route.path_regex.match(path)]
    chosen = [route for route in routes if ("{" not in route.path) is fixed]
    same = [route for route in chosen if route.path == chosen[0].path] if chosen else []
    return sorted({method for route in same for method in route.methods or ()})
