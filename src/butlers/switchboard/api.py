"""Switchboard's HTTP API: `POST /api/ingest`, `/api/requests`, `/api/butlers`, with OpenAPI at `/api/openapi.json`.

Bodies are read with a limit and checked by the contracts themselves; every refusal is JSON with class, message and
the list of fields. A web page cannot use a visitor's browser to reach this API: the Host must be ours, a foreign
Origin is refused, and bodies must say that they are JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal
from urllib.parse import urlsplit
from uuid import UUID

from fastapi import Depends, FastAPI, Query
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from butlers import __version__
from butlers.butler.identity import Caller, TokenFile
from butlers.butler.surface import BUTLERS, authenticate
from butlers.butler.transport import Transport
from butlers.contracts.envelope import invalid
from butlers.contracts.ingest import IngestEnvelope, IngestReply
from butlers.errors import ClassifiedError, InternalError, ValidationError
from butlers.switchboard.answers import (
    LOCAL,
    Refused,
    answer_refusal,
    bad_parameters,
    door_status,
    error_answer,
    json_answer,
    json_object,
)
from butlers.switchboard.approvals_api import add_approval_routes
from butlers.switchboard.deliveries_api import add_delivery_routes
from butlers.switchboard.ingest_batch import BODY_FACTOR, MAX_MESSAGES, accept_batch
from butlers.switchboard.ingress import Ingress
from butlers.switchboard.operators.api import AddRoutes
from butlers.switchboard.query_keys import refuse_unknown_keys
from butlers.switchboard.registry import Registry
from butlers.switchboard.requests import COUNTED, RequestReader
from butlers.telemetry import Telemetry, get_logger

log = get_logger("butlers.api")

LifecycleState = Literal["accepted", "progress", "parsed", "errored"]
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiPolicy:
    max_body_bytes: int = 1_048_576
    token_required: bool = False  # otherwise a caller on this machine needs none
    loopback_only: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    ingress: Ingress
    requests: RequestReader
    registry: Registry
    tokens: TokenFile
    transport: Transport  # to the butlers whose records are shown
    telemetry: Telemetry
    policy: ApiPolicy
    operator_routes: AddRoutes
    butlers: Collection[str] = ()  # all that there are; none: nobody is told apart from one that is away

    def app(self) -> FastAPI:
        app = FastAPI(
            title="butlers",
            version=__version__,
            openapi_url="/openapi.json",
            docs_url=None,
            redoc_url=None,
            redirect_slashes=False,  # a redirect would repeat whatever Host it was asked for
            dependencies=[Depends(refuse_unknown_keys)],
        )
        app.add_exception_handler(Refused, answer_refusal)
        app.add_exception_handler(RequestValidationError, _answer_bad_parameter)
        app.add_exception_handler(HTTPException, _answer_http)
        app.add_exception_handler(Exception, _answer_unexpected)
        self._add_routes(app)
        app.openapi = _described(app.openapi)  # type: ignore[method-assign]
        return app

    def _add_routes(self, app: FastAPI) -> None:
        schema = {"requestBody": {"required": True, "content": {"application/json": {"schema": _INGEST}}}}
        app.add_api_route(
            "/ingest",
            self._ingest,
            methods=["POST"],
            status_code=202,
            response_model=IngestReply,
            openapi_extra=schema,
            summary="Hand in one message (ingest.v1)",
        )
        app.add_api_route(
            "/ingest/batch",
            self._ingest_batch,
            methods=["POST"],
            status_code=202,
            openapi_extra={"requestBody": {"required": True, "content": {"application/json": {"schema": _BATCH}}}},
            summary="Hand in many messages: a result or an error for each, in their order",
        )
        self.operator_routes(app, self._caller, self._body)
        app.add_api_route("/requests", self._list, methods=["GET"], summary="Recent requests, newest first")
        app.add_api_route("/requests/{request_id}", self._trace, methods=["GET"], summary="One request, every hop")
        app.add_api_route("/butlers", self._butlers, methods=["GET"], summary="The registry")
        app.add_api_route("/status", self._status, methods=["GET"], summary="Counts by state")
        add_delivery_routes(app, caller_of=self._caller, body_of=self._body, transport=self.transport)
        add_approval_routes(
            app, caller_of=self._caller, body_of=self._body, transport=self.transport, butlers=self.butlers
        )

    async def _ingest(self, request: Request) -> Response:
        caller = self._caller(request)
        try:
            envelope = IngestEnvelope.parse(await self._body(request))
            reply = await self.ingress.accept(envelope, submitted_by=caller)
        except ClassifiedError as error:
            self.ingress.count_refusal(error)
            raise Refused(door_status(error), error) from error
        return json_answer(reply.to_wire(), 202)

    async def _ingest_batch(self, request: Request) -> Response:
        caller = self._caller(request)
        try:
            body = await self._body(request, limit=BODY_FACTOR * self.policy.max_body_bytes)
            return json_answer(await accept_batch(self.ingress, json_object(body), submitted_by=caller), 202)
        except ClassifiedError as error:
            raise Refused(door_status(error), error) from error

    async def _list(
        self,
        request: Request,
        before: UUID | None = None,
        state: LifecycleState | None = None,
        limit: int = Query(default=50, ge=1, le=500),
    ) -> Response:
        self._reader(request)
        return json_answer(await self.requests.list(before=before, state=state, limit=limit))

    async def _trace(self, request: Request, request_id: UUID) -> Response:
        self._reader(request)
        trace = await self.requests.trace(request_id)
        if trace is None:
            raise Refused(404, invalid("request_id", "no such request"))
        return json_answer(trace)

    async def _butlers(self, request: Request) -> Response:
        self._reader(request)
        return json_answer({"butlers": await self.registry.rows()})

    async def _status(self, request: Request) -> Response:
        self._reader(request)
        hours = COUNTED / timedelta(hours=1)
        return json_answer({"requests": await self.requests.counts(), "ended_within_hours": hours})

    def _reader(self, request: Request) -> Caller:
        """Who may see what came in: not those that may only hand messages in."""
        caller = self._caller(request)
        if caller.role not in BUTLERS:
            raise Refused(403, invalid("authorization", "this token may only hand in messages"))
        return caller

    def _caller(self, request: Request) -> Caller:
        """Who asks; refuses foreign pages, unknown tokens, and nobody where a token is required."""
        if self.policy.loopback_only:
            _refuse_foreign_page(request)
        try:
            caller = authenticate(request, self.tokens)
        except ValidationError as error:
            raise Refused(401, error) from error
        if caller is not None:
            return caller
        peer = request.client.host if request.client else ""
        if self.policy.token_required or peer not in _LOOPBACK:
            raise Refused(401, invalid("authorization", "a bearer token is required"))
        return LOCAL

    async def _body(self, request: Request, *, limit: int | None = None) -> bytes:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind not in ("", "application/json"):
            raise _not_json()
        limit = limit or self.policy.max_body_bytes
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if body and not kind:  # only nothing at all needs no name
                raise _not_json()
            if len(body) > limit:
                raise Refused(413, invalid("", f"is larger than {limit} bytes"))
        return bytes(body)


def _not_json() -> Refused:
    return Refused(415, invalid("content-type", "must be application/json"))


def _refuse_foreign_page(request: Request) -> None:
    origin = request.headers.get("origin")
    host = _hostname(f"//{request.headers.get('host', '')}")
    if host not in _LOOPBACK or (origin is not None and _hostname(origin) not in _LOOPBACK):
        raise Refused(403, invalid("host", "requests from other sites are not served"))


def _hostname(address: str) -> str | None:
    try:
        return urlsplit(address).hostname
    except ValueError:  # half a bracket
        return None


async def _answer_bad_parameter(_request: Request, error: Exception) -> Response:
    problems = error.errors() if isinstance(error, RequestValidationError) else []
    return error_answer(422, bad_parameters(problems))


async def _answer_http(_request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    what = {404: "no such address", 405: "this method is not allowed here"}.get(status, "the request was refused")
    return error_answer(status, ValidationError(what))


async def _answer_unexpected(_request: Request, error: Exception) -> Response:
    log.error("api failed", error=error)
    return error_answer(500, InternalError("the request failed unexpectedly"))


def _described(generate: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    """The generated description with the parts of ingest.v1, which FastAPI does not see: bodies are read raw."""

    def openapi() -> dict[str, Any]:
        document = generate()
        document.setdefault("components", {}).setdefault("schemas", {}).update(_INGEST_PARTS)
        return document

    return openapi


_SCHEMA = IngestEnvelope.model_json_schema(by_alias=True, ref_template="#/components/schemas/{model}")
_INGEST = {key: part for key, part in _SCHEMA.items() if key != "$defs"}
_INGEST_PARTS = _SCHEMA["$defs"]
_BATCH = {
    "type": "object",
    "required": ["messages"],
    "additionalProperties": False,
    "properties": {"messages": {"type": "array", "minItems": 1, "maxItems": MAX_MESSAGES, "items": _INGEST}},
}
