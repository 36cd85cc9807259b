"""The HTTP side every butler has: `/mcp`, `/mcp/llm`, `/metrics`, `/healthz`, `/readyz`, and whatever its system
adds."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from butlers.butler.identity import TokenFile
from butlers.butler.mcp_door import McpDoor
from butlers.butler.surface import ToolBox
from butlers.errors import ValidationError
from butlers.serving.guard import Guard
from butlers.telemetry import Telemetry

# The SDK judges Host and Origin at the MCP doors; receipts are signed, and may come through a proxy with any Host.
GUARDED_ELSEWHERE = ("/mcp", "/webhooks/")
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def build_app(
    *,
    butler: str,
    tools: ToolBox,
    tokens: TokenFile,
    telemetry: Telemetry,
    liveness: Callable[[], dict[str, Any]],
    readiness: Callable[[], Awaitable[dict[str, Any]]],
    loopback_only: bool,
    about: str = "",  # what the butler is for, as its MCP clients are told
    routes: Sequence[BaseRoute] = (),
) -> Starlette:
    doors = {
        path: McpDoor(
            butler=butler, about=about, tools=tools, tokens=tokens, dotted=dotted, loopback_only=loopback_only
        )
        for path, dotted in (("/mcp", True), ("/mcp/llm", False))
    }

    async def healthz(_request: Request) -> Response:
        return JSONResponse(liveness())

    async def readyz(_request: Request) -> Response:
        state = await readiness()
        return JSONResponse(state, status_code=200 if state["ready"] else 503)

    async def metrics(_request: Request) -> Response:
        return Response(telemetry.prometheus_text(), media_type=METRICS_TYPE)

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for door in doors.values():
                await stack.enter_async_context(door.run())
            yield

    return Starlette(
        lifespan=lifespan,
        exception_handlers={HTTPException: _refusal},
        middleware=[Middleware(Guard, loopback_only=loopback_only, exempt=GUARDED_ELSEWHERE, name_parts=("/api/",))],
        routes=[
            Route("/healthz", healthz),
            Route("/readyz", readyz),
            Route("/metrics", metrics),
            # Stateless: there is no stream that a GET could open, and a caller must not hang on it.
            *(Route(path, endpoint=door, methods=["POST", "DELETE"]) for path, door in doors.items()),
            *routes,
        ],
    )


async def _refusal(_request: Request, error: Exception) -> Response:
    """What no route answers, in the words of those that do."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    what = {404: "no such address", 405: "this method is not allowed here"}.get(status, "the request was refused")
    described = ValidationError(what).describe()
    return JSONResponse({"error": described}, status_code=status, headers=getattr(error, "headers", None))
