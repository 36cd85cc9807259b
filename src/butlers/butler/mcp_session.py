"""One open MCP session with another butler. Loaded when the first call leaves this process."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import httpx2
import mcp_types
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

from butlers.errors import InternalError, TargetUnavailable
from butlers.http_client import OWN_LIMIT, BoundedAsyncClient, authorities, reason

CONNECT_S = 5.0


class McpSession:
    """A client that lives in a task of its own: the SDK's scopes must be left by the task that entered them."""

    def __init__(self, url: str, token: str | None) -> None:
        self._url = url
        self.token = token
        self._client: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._closing = asyncio.Event()
        self._task = asyncio.create_task(self._live(), name=f"mcp session {url}")
        self.broken = False

    async def call(self, tool: str, arguments: dict[str, Any], *, as_declared: bool = True) -> Any:
        """The tool's answer; with `as_declared` only one that fits what the tool declares."""
        try:
            client = await asyncio.shield(self._client)
            return await (client.call_tool(tool, arguments) if as_declared else _unjudged(client, tool, arguments))
        except (httpx2.HTTPError, OSError, MCPError, TimeoutError) as error:
            self.broken = True
            self._closing.set()
            raise TargetUnavailable(f"{self._url} did not answer ({reason(error)})") from error
        except RuntimeError as error:  # the SDK compares answers with what the tool declares
            raise InternalError(f"{self._url} answered something else than {tool} declares") from error

    async def close(self) -> None:
        self.broken = True
        self._closing.set()
        await asyncio.wait([self._task], timeout=CONNECT_S)

    async def _live(self) -> None:
        try:
            async with AsyncExitStack() as stack:
                headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
                timeout = httpx2.Timeout(None, connect=CONNECT_S)
                http = await stack.enter_async_context(_http_client(headers, timeout))
                transport = streamable_http_client(self._url, http_client=http)
                client = await stack.enter_async_context(Client(transport))
                self._client.set_result(client)
                await self._closing.wait()
        except Exception as error:
            if not self._client.done():
                self._client.set_exception(_root(error))
        finally:
            self.broken = True


async def _unjudged(client: Client, tool: str, arguments: dict[str, Any]) -> mcp_types.CallToolResult:
    """An answer as it came: `call_tool` throws away one that does not fit, and the caller wants to read and keep it."""
    params = mcp_types.CallToolRequestParams(name=tool, arguments=arguments)
    return await client.session.send_request(mcp_types.CallToolRequest(params=params), mcp_types.CallToolResult)


def _http_client(headers: dict[str, str], timeout: httpx2.Timeout) -> httpx2.AsyncClient:
    # A proxy from the environment must never see the butlers' tokens.
    return BoundedAsyncClient(
        limit=OWN_LIMIT, headers=headers, timeout=timeout, verify=authorities(trust_env=False), trust_env=False
    )


def _root(error: BaseException) -> BaseException:
    """The SDK's task groups wrap what happened; callers want the first cause."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error if isinstance(error, httpx2.HTTPError | OSError | MCPError) else ConnectionError(type(error).__name__)
