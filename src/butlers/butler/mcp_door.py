"""The two MCP doors to a butler's tools.

`/mcp` serves the dotted names of the source documents (`route.execute`); `/mcp/llm` serves the same tools with
underscores, because LLM hosts refuse dots. Both are stateless, show each caller the tools that it may call, and answer
401 to a token that is not known. Of what comes without one, they read 64 KiB at most. Apart from the tools, because the
SDK takes longer to load than everything else together, and recovery does not wait for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mcp_types
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPASGIApp, StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from butlers import __version__
from butlers.butler.identity import TokenFile
from butlers.butler.surface import AnyTool, ToolBox, authenticate
from butlers.contracts.envelope import invalid
from butlers.contracts.notify import NotifyResponse
from butlers.contracts.route import RouteResponse
from butlers.errors import ClassifiedError

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
