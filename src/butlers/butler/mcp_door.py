"""The two MCP doors to a butler's tools.

`/mcp` serves the dotted names of the source documents (`route.execute`); `/mcp/llm` serves the same tools with
underscores, because LLM hosts refuse dots. Both are stateless. Apart from the tools, because the SDK takes longer to
load than everything else together, and recovery does not wait for it.
"""

from __future__ import annotations

from typing import Any

import mcp_types
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPASGIApp, StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from pydantic_core import to_json

from butlers.butler.identity import TokenFile
from butlers.butler.surface import AnyTool, ToolBox, authenticate
from butlers.errors import ClassifiedError


class McpDoor:
    """One MCP endpoint over a tool box. `run()` must be entered for as long as requests are served."""

    def __init__(self, *, butler: str, tools: ToolBox, tokens: TokenFile, dotted: bool, loopback_only: bool) -> None:
        self._tools = tools
        self._tokens = tokens
        self._wire_names = {(name if dotted else name.replace(".", "_")): name for name in tools.names()}
        self._schemas: dict[str, dict[str, Any]] = {}
        server: Server[Any] = Server(
            f"butlers.{butler}",
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            get_tool_input_schema=self._input_schema,  # else the SDK lists all tools at every call of one
        )
        self._sessions = StreamableHTTPSessionManager(
            app=server, json_response=True, stateless=True, security_settings=_transport_security(loopback_only)
        )
        self.app = StreamableHTTPASGIApp(self._sessions)
        self.run = self._sessions.run

    async def _list_tools(self, _context: Any, _params: Any) -> mcp_types.ListToolsResult:
        return mcp_types.ListToolsResult(
            tools=[
                mcp_types.Tool(
                    name=wire, description=self._tool(wire).description, input_schema=self._input_schema(wire) or {}
                )
                for wire in sorted(self._wire_names)
            ]
        )

    def _input_schema(self, wire: str) -> dict[str, Any] | None:
        """What a tool takes; kept, because making it takes longer than most calls."""
        if wire not in self._wire_names:
            return None
        if wire not in self._schemas:
            self._schemas[wire] = self._tool(wire).input_schema()
        return self._schemas[wire]

    def _tool(self, wire: str) -> AnyTool:
        found: AnyTool = next(tool for tool in self._tools if tool.name == self._wire_names[wire])
        return found

    async def _call_tool(self, context: Any, params: mcp_types.CallToolRequestParams) -> mcp_types.CallToolResult:
        name = self._wire_names.get(params.name, params.name)
        try:
            caller = authenticate(context.request, self._tokens)
            return _result(await self._tools.call(name, caller, params.arguments or {}))
        except ClassifiedError as error:
            # What is known in spite of the failure stands beside it, such as the delivery that failed.
            return _result((error.partial or {}) | {"status": "error", "error": error.describe()}, is_error=True)


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
