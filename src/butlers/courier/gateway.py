"""The gateway: HTTP for producers, readers and operators. Subscribers and live readers have `sockets`.

POST /v1/enqueue            {"to", "envelope"} -> {"id", "duplicate"}; {"messages": [...]} -> {"results": [...]}
GET  /v1/stats?stream=      one stream, or all without it; /v1/audit?stream=, /v1/metrics, /health
GET  /v1/snapshot?view=     /v1/live?view= (server-sent events; also as WebSocket)
GET  /v1/dead?stream=       POST /v1/dead/replay, /v1/dead/discard {"stream", "ids"}
POST /v1/streams/pause      /resume, /drain {"stream"}; /v1/groups/remove {"stream", "group"}
POST /v1/explain            {"envelope"}: which triggers would run, and why the others would not
GET  /v1/services           what is registered with the kernel, alive and where
WS   /v1/subscribe?stream=&group=&format=&batch=, /v1/pipe (for a kernel elsewhere)
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

from pydantic_core import to_json
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route, WebSocketRoute

from butlers.courier.access import Access, Identify, Principal
from butlers.courier.asyncapi import document
from butlers.courier.envelope import read_json
from butlers.courier.errors import CourierError, InvalidEnvelope, MessageTooLarge, UnknownStream
from butlers.courier.kernel_adapter import Fabric
from butlers.courier.live import HEARTBEAT_S, LiveReader, ReaderEnded
from butlers.courier.messages import StoredMessage
from butlers.courier.metrics import all_stats, exposition
from butlers.courier.names import DEAD_SUFFIX
from butlers.courier.service import Courier
from butlers.courier.sockets import Sockets
from butlers.telemetry import get_logger

MOST_IN_BATCH = 1_000
log = get_logger(__name__)

Handler = Callable[[Principal, Request], Awaitable[Response]]


class Gateway:
    def __init__(self, courier: Courier, fabric: Fabric, *, identify: Identify | None = None) -> None:
        self._courier = courier
        self._fabric = fabric
        self._queue = courier.queue
        self._access = Access(courier.config, courier.clock, identify)
        self.sockets = Sockets(courier, self._access)
        self._readers: dict[LiveReader, Request] = {}

    def app(self) -> Starlette:
        routes: list[BaseRoute] = [
            self._route("POST", "/v1/enqueue", self._enqueue),
            self._route("GET", "/v1/stats", self._stats),
            self._route("GET", "/v1/audit", self._audit),
            self._route("GET", "/v1/metrics", self._metrics),
            self._route("GET", "/v1/services", self._services),
            self._route("GET", "/v1/snapshot", self._snapshot),
            self._route("GET", "/v1/live", self._live),
            self._route("GET", "/v1/dead", self._dead),
            self._route("POST", "/v1/dead/replay", self._replay),
            self._route("POST", "/v1/dead/discard", self._discard),
            self._route("POST", "/v1/groups/remove", self._remove_group),
            self._route("POST", "/v1/explain", self._explain),
            *(self._route("POST", f"/v1/streams/{verb}", self._steer(verb)) for verb in ("pause", "resume", "drain")),
            *(Route(path, self._health, methods=["GET"]) for path in ("/health", "/healthz")),
            Route("/readyz", self._readiness, methods=["GET"]),
            Route("/v1/asyncapi.json", self._asyncapi, methods=["GET"]),
            WebSocketRoute("/v1/subscribe", self.sockets.subscribe),
            WebSocketRoute("/v1/live", self.sockets.live),
            WebSocketRoute("/v1/pipe", self.sockets.pipe),
        ]
        return Starlette(routes=routes, exception_handlers={404: _not_found, 405: _not_found})

    def _route(self, method: str, path: str, handler: Handler) -> Route:
        async def endpoint(request: Request) -> Response:
            try:
                return await handler(self._access.principal_of(request), request)
            except CourierError as error:
                return _refusal(error)
            except ClientDisconnect:
                raise
            except Exception as error:
                log.error("the courier failed", error=error, tool=path)
                return _refusal(CourierError("failed unexpectedly"))

        return Route(path, endpoint, methods=[method], name=path)

    # --- producers ---------------------------------------------------------------------------------------------------

    async def _enqueue(self, principal: Principal, request: Request) -> Response:
        body = await self._body(request)
        if "messages" not in body:
            accepted = await self._accept(principal, body)
            await self._queue.durable()
            return _json(accepted)
        messages = body["messages"]
        if not isinstance(messages, list) or not 0 < len(messages) <= MOST_IN_BATCH:
            raise InvalidEnvelope(f"must be a list of 1 to {MOST_IN_BATCH} messages", field="messages")
        results: list[dict[str, Any]] = []
        for message in messages:
            try:
                results.append(await self._accept(principal, message))
            except CourierError as error:
                results.append({"error": error.describe()})
        await self._queue.durable()
        return _json({"results": results})

    async def _accept(self, principal: Principal, message: Any) -> dict[str, Any]:
        if not isinstance(message, Mapping) or not isinstance(message.get("envelope"), Mapping):
            raise InvalidEnvelope("must be an object with an envelope", field="envelope")
        to = message.get("to", message["envelope"].get("to"))
        if not isinstance(to, str):
            raise InvalidEnvelope("is required and must be text", field="to")
        principal.check("streams", to, "enqueue")
        principal.spend()
        accepted = await self._courier.enqueue(message["envelope"], to=to)
        return {"id": accepted.id, "duplicate": accepted.duplicate}

    # --- readers -----------------------------------------------------------------------------------------------------

    async def _stats(self, principal: Principal, request: Request) -> Response:
        if (stream := request.query_params.get("stream")) is not None:
            principal.check("streams", stream, "subscribe")
            return _json(await self._queue.stats(stream))
        principal.check("streams", "*", "subscribe")
        return _json({"streams": await all_stats(self._queue)})

    async def _audit(self, principal: Principal, request: Request) -> Response:
        stream = _parameter(request, "stream")
        principal.check("streams", stream, "subscribe")
        return _json(await self._queue.audit(stream))

    async def _metrics(self, principal: Principal, _request: Request) -> Response:
        principal.check("streams", "*", "subscribe")
        return Response(await exposition(self._courier), media_type="text/plain; version=0.0.4")

    async def _services(self, principal: Principal, _request: Request) -> Response:
        principal.check("streams", "*", "subscribe")
        return _json({"services": self._fabric.services(self._courier.clock.monotonic())})

    async def _snapshot(self, principal: Principal, request: Request) -> Response:
        name = _parameter(request, "view")
        principal.check("views", name, "read")
        return _json(self._courier.views[name].snapshot())

    async def _live(self, principal: Principal, request: Request) -> Response:
        name = _parameter(request, "view")
        principal.check("views", name, "read")
        epoch, _, offset = request.headers.get("last-event-id", "").rpartition(":")
        place = (request.query_params.get("epoch", epoch), request.query_params.get("offset", offset))
        reader = LiveReader(self._courier.views[name], place=place)
        events = self._events(reader, request)
        return StreamingResponse(events, media_type="text/event-stream", headers={"cache-control": "no-store"})

    async def _events(self, reader: LiveReader, request: Request) -> AsyncIterator[bytes]:
        self._readers[reader] = request
        try:
            async for event in _events(reader):
                yield event
        finally:
            del self._readers[reader]

    async def close_refused(self) -> None:
        """End what was opened with a token that counts no more."""
        await self.sockets.close_refused()
        for reader, request in list(self._readers.items()):
            if not self._access.admits(request):
                reader.end()

    def end_readers(self) -> None:
        for reader in self._readers:
            reader.end()

    async def _health(self, _request: Request) -> Response:
        return _json({"status": "ok", "epoch": self._courier.epoch, "subscribers": len(self.sockets)})

    async def _readiness(self, _request: Request) -> Response:
        """503 while the streams cannot be reached."""
        try:
            await self._queue.stats("readiness")
        except UnknownStream:
            pass
        except CourierError as error:
            return _json({"status": "failing", "ready": False, "problem": error.message}, 503)
        return _json({"status": "ok", "ready": True})

    async def _asyncapi(self, _request: Request) -> Response:
        return _json(document())

    # --- operators ---------------------------------------------------------------------------------------------------

    async def _dead(self, principal: Principal, request: Request) -> Response:
        stream = _parameter(request, "stream")
        principal.check("streams", stream, "subscribe")
        now = self._courier.clock.monotonic()
        dead = await self._queue.dead(stream)
        if (id := request.query_params.get("id")) is not None:
            dead = [pair for pair in dead if pair[1].id == id]
        return _json({"stream": f"{stream}{DEAD_SUFFIX}", "messages": [_shown(group, one, now) for group, one in dead]})

    async def _replay(self, principal: Principal, request: Request) -> Response:
        stream, ids = await self._chosen(principal, request)
        return _json({"replayed": await self._queue.replay(stream, ids)})

    async def _discard(self, principal: Principal, request: Request) -> Response:
        stream, ids = await self._chosen(principal, request)
        return _json({"discarded": await self._queue.discard(stream, ids)})

    async def _remove_group(self, principal: Principal, request: Request) -> Response:
        body = await self._body(request)
        stream, group = body.get("stream"), body.get("group")
        if not isinstance(stream, str) or not isinstance(group, str):
            raise InvalidEnvelope("stream and group are required and must be text", field="group")
        principal.check("streams", stream, "manage")
        return _json({"removed": await self._queue.remove_group(stream, group)})

    def _steer(self, verb: str) -> Handler:
        async def steer(principal: Principal, request: Request) -> Response:
            stream, _ = await self._chosen(principal, request)
            await getattr(self._queue, verb)(stream)
            return _json(await self._queue.stats(stream))

        return steer

    async def _explain(self, principal: Principal, request: Request) -> Response:
        body = await self._body(request)
        principal.check("streams", "*", "subscribe")
        return _json({"rules": self._courier.explain(body.get("envelope"))})

    async def _chosen(self, principal: Principal, request: Request) -> tuple[str, list[str] | None]:
        body = await self._body(request)
        stream, ids = body.get("stream"), body.get("ids")
        if not isinstance(stream, str):
            raise InvalidEnvelope("is required and must be text", field="stream")
        if ids is not None and not (isinstance(ids, list) and all(isinstance(id, str) for id in ids)):
            raise InvalidEnvelope("must be a list of ids; without it, all", field="ids")
        principal.check("streams", stream, "manage")
        return stream, ids

    async def _body(self, request: Request) -> dict[str, Any]:
        limit, body = self._courier.config.gateway.max_message_bytes, bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > limit:
                raise MessageTooLarge(f"is larger than {limit} bytes")
        document = read_json(bytes(body))
        if not isinstance(document, dict):
            raise InvalidEnvelope("must be a JSON object")
        return document


async def _events(reader: LiveReader) -> AsyncIterator[bytes]:
    with reader:
        while True:
            try:
                async with asyncio.timeout(HEARTBEAT_S):
                    name, place, data = await reader.next()
            except TimeoutError:
                yield b": still here\n\n"
                continue
            except ReaderEnded:
                return
            yield b"".join((f"id: {place}\nevent: {name}\ndata: ".encode(), to_json(data), b"\n\n"))


def _shown(group: str, dead: StoredMessage, now: float) -> dict[str, Any]:
    return {
        "id": dead.id,
        "group": group,
        "reason": dead.reason,
        "attempts": dead.attempts,
        "failures": dead.failures,
        "deadForMs": round((now - dead.died_at) * 1000),
        "envelope": dead.envelope,
    }


def _parameter(request: Request, name: str) -> str:
    if not (value := request.query_params.get(name)):
        raise InvalidEnvelope("is required", field=name)
    return value


def _json(content: Any, status: int = 200) -> Response:
    return Response(to_json(content), status_code=status, media_type="application/json")


def _refusal(error: CourierError) -> Response:
    response = _json({"error": error.describe()}, error.http_status)
    if error.retry_after is not None:
        response.headers["retry-after"] = str(max(1, round(error.retry_after)))
    if error.http_status == 401:
        response.headers["www-authenticate"] = "Bearer"
    return response


async def _not_found(request: Request, _error: Exception) -> Response:
    return _json({"error": {"code": "NotFound", "message": f"there is no {request.method} {request.url.path}"}}, 404)
