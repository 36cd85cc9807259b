"""The HTTP side every butler has: `/mcp`, `/mcp/llm`, `/metrics`, `/healthz`, `/readyz`, and whatever its system
adds."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import mcp_types
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPASGIApp, StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from pydantic_core import to_json
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from butlers import __version__
from butlers.butler.identity import TokenFile
from butlers.butler.toolbox import AnyTool, ToolBox, authenticate
from butlers.contracts.envelope import invalid
from butlers.contracts.notify import NotifyResponse
from butlers.contracts.route import RouteResponse
from butlers.errors import ClassifiedError, ValidationError
from butlers.serving.guard import Guard
from butlers.telemetry.telemetry import Telemetry

LONGEST_WITHOUT_TOKEN = 65_536  # bytes: such a caller may ask what there is, and no more
_RESPONSES = (RouteResponse.VERSION, NotifyResponse.VERSION)
_INSTRUCTIONS = """\
{about}

Every call needs a bearer token; the list shows the tools that yours may call.
A failed call has isError set and answers {{"status": "error", "error": {{"class", "message", "retryable", ...}}}}:
- validation_error: mend the named fields; the same call would fail again.
- retryable true: the same call may succeed later, not before retry_after_seconds.
A failed route.execute or notify also carries its whole response, with the delivery where there is one.
A tool that waits for a person's approval answers status "pending_approval" with the action_id.
Give idempotency_key where a tool takes it: a repeat then changes nothing. Lists come in pages: hand next_cursor back.
"""
# The SDK judges Host and Origin at the MCP doors; receipts and unsubscribe links are signed, and may come through a
# proxy with any Host.
GUARDED_ELSEWHERE = ("/mcp", "/webhooks/", "/unsubscribe/")
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class McpDoor:
    """One MCP endpoint over a tool box. `run()` must be entered for as long as requests are served."""

    def __init__(
        self, *, butler: str, about: str, tools: ToolBox, tokens: TokenFile, dotted: bool, loopback_only: bool
    ) -> None:
        self._tools = tools
        self._tokens = tokens
        self._wire_names = {(name if dotted else name.replace(".", "_")): name for name in tools.names()}
        self._described: dict[str, mcp_types.Tool] = {}
        server: Server[Any] = Server(
            f"butlers.{butler}",
            version=__version__,
            title=f"butlers: {butler}",
            description=about or None,
            instructions=_INSTRUCTIONS.format(about=about or f"The tools of the butler {butler}."),
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            get_tool_input_schema=self._input_schema,  # else the SDK lists all tools at every call of one
        )
        self._sessions = StreamableHTTPSessionManager(
            app=server, json_response=True, stateless=True, security_settings=_transport_security(loopback_only)
        )
        self._served = StreamableHTTPASGIApp(self._sessions)
        self.run = self._sessions.run

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One HTTP request. A token that is not known is refused here: the SDK would answer 200 to its caller."""
        try:
            caller = authenticate(Request(scope), self._tokens)
        except ClassifiedError as error:
            await _unauthorized(error)(scope, receive, send)
            return
        if caller is None and scope["type"] == "http":
            messages = await _short_body(receive)
            if messages is None:
                await _too_long(scope, receive, send)
                return
            receive = _replayed(messages, receive)
        await self._served(scope, receive, send)

    async def _list_tools(self, context: Any, _params: Any) -> mcp_types.ListToolsResult:
        """What the caller may call; without a token that is nothing."""
        allowed = {*self._tools.allowed_to(authenticate(context.request, self._tokens))}
        wires = sorted(wire for wire, name in self._wire_names.items() if name in allowed)
        return mcp_types.ListToolsResult(tools=[self._tool(wire) for wire in wires])

    def _input_schema(self, wire: str) -> dict[str, Any] | None:
        return self._tool(wire).input_schema if wire in self._wire_names else None

    def _tool(self, wire: str) -> mcp_types.Tool:
        """A tool as clients see it; kept, because making its schemas takes longer than most calls."""
        if wire not in self._described:
            self._described[wire] = _described(wire, self._tools[self._wire_names[wire]])
        return self._described[wire]

    async def _call_tool(self, context: Any, params: mcp_types.CallToolRequestParams) -> mcp_types.CallToolResult:
        name = self._wire_names.get(params.name, params.name)
        try:
            caller = authenticate(context.request, self._tokens)
            answer = await self._tools.call(name, caller, params.arguments or {})
            return _result(answer, is_error=is_failed_response(answer))
        except ClassifiedError as error:
            # What is known in spite of the failure stands beside it, such as the delivery that failed.
            return _result((error.partial or {}) | {"status": "error", "error": error.to_wire()}, is_error=True)


async def _short_body(receive: Receive) -> list[Any] | None:
    """What a caller without a token sends, before anybody takes it apart; None when that is too much."""
    messages, size = [await receive()], 0
    while messages[-1]["type"] == "http.request":
        size += len(messages[-1].get("body", b""))
        if size > LONGEST_WITHOUT_TOKEN:
            return None
        if not messages[-1].get("more_body", False):
            break
        messages.append(await receive())
    return messages


def _replayed(messages: list[Any], receive: Receive) -> Receive:
    """Those messages again, and then what comes behind them."""
    waiting = iter(messages)

    async def received() -> Any:
        message = next(waiting, None)
        return message if message is not None else await receive()

    return received


def is_failed_response(answer: Mapping[str, Any]) -> bool:
    """Whether an answer is an envelope that says that the work failed."""
    return answer.get("schema_version") in _RESPONSES and answer.get("status") == "error"


def _described(wire: str, tool: AnyTool) -> mcp_types.Tool:
    hints = tool.hints
    return mcp_types.Tool(
        name=wire,
        title=wire.replace(".", " ").replace("_", " ").capitalize(),
        description=tool.description,
        input_schema=tool.input_schema(),
        output_schema=tool.output_schema(),
        annotations=mcp_types.ToolAnnotations(
            read_only_hint=hints.read_only,
            destructive_hint=hints.destructive,
            idempotent_hint=hints.idempotent,
            open_world_hint=hints.open_world,
        ),
    )


def _unauthorized(error: ClassifiedError) -> JSONResponse:
    challenge = {"WWW-Authenticate": 'Bearer realm="butlers", error="invalid_token"'}
    return JSONResponse({"status": "error", "error": error.describe()}, status_code=401, headers=challenge)


async def _too_long(scope: Scope, receive: Receive, send: Send) -> None:
    problem = f"must not be longer than {LONGEST_WITHOUT_TOKEN} bytes without a token"
    error = {"status": "error", "error": invalid("body", problem).describe()}
    await JSONResponse(error, status_code=413)(scope, receive, send)


def _result(content: dict[str, Any], *, is_error: bool = False) -> mcp_types.CallToolResult:
    text = to_json(content).decode()
    return mcp_types.CallToolResult(
        content=[mcp_types.TextContent(type="text", text=text)], structured_content=content, is_error=is_error
    )


def _transport_security(loopback_only: bool) -> TransportSecuritySettings:
    """Refuse requests that a web page made a browser send to a local port."""
    names = ("127.0.0.1", "localhost", "[::1]")
    return TransportSecuritySettings(
        enable_dns_rebinding_protection=loopback_only,
        allowed_hosts=[f"{name}:*" for name in names],
        allowed_origins=[f"http://{name}:*" for name in names],
    )


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
