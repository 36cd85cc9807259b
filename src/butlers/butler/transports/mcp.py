"""MCP over streamable HTTP: one session per target, opened on first use and again after a failure."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from typing import Any

import httpx2
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

from butlers.errors import ClassifiedError, InternalError, TargetUnavailable, TimeoutExceeded, from_wire

_CONNECT_S = 5.0
_CALL_S = 120.0  # longer than any butler may take; only a hung one reaches it


class McpTransport:
    """Calls tools at `http://.../mcp` with the caller's bearer token."""

    def __init__(self, *, token: Callable[[], str | None], url_of: Callable[[str], str | None]) -> None:
        self._token = token
        self._url_of = url_of
        self._sessions: dict[str, _Session] = {}

    async def call(self, butler: str, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        url = self._url_of(butler)
        if url is None:
            raise TargetUnavailable(f"no address is known for {butler}")
        session = await self._session(butler, url)
        try:
            async with asyncio.timeout(_CALL_S):
                return _answer(butler, await session.call(tool, dict(arguments)))
        except TimeoutError:
            raise TimeoutExceeded(f"{butler} gave no answer within {_CALL_S:g} s") from None

    async def _session(self, butler: str, url: str) -> _Session:
        """The open session, or a new one when it broke or our token was replaced meanwhile."""
        session, token = self._sessions.get(butler), self._token()
        if session is not None and not session.broken and session.token == token:
            return session
        if session is not None:
            await session.close()
        self._sessions[butler] = _Session(url, token)
        return self._sessions[butler]

    async def close(self) -> None:
        await asyncio.gather(*(session.close() for session in self._sessions.values()))


class _Session:
    """A client that lives in a task of its own: the SDK's scopes must be left by the task that entered them."""

    def __init__(self, url: str, token: str | None) -> None:
        self._url = url
        self.token = token
        self._client: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._closing = asyncio.Event()
        self._task = asyncio.create_task(self._live(), name=f"mcp session {url}")
        self.broken = False

    async def call(self, tool: str, arguments: dict[str, Any]) -> Any:
        try:
            client = await asyncio.shield(self._client)
            return await client.call_tool(tool, arguments)
        except (httpx2.HTTPError, OSError, MCPError, TimeoutError) as error:
            self.broken = True
            self._closing.set()
            raise TargetUnavailable(f"{self._url} did not answer ({type(error).__name__})") from error

    async def close(self) -> None:
        self.broken = True
        self._closing.set()
        await asyncio.wait([self._task], timeout=_CONNECT_S)

    async def _live(self) -> None:
        try:
            async with AsyncExitStack() as stack:
                headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
                timeout = httpx2.Timeout(None, connect=_CONNECT_S)
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


def _http_client(headers: dict[str, str], timeout: httpx2.Timeout) -> httpx2.AsyncClient:
    # A proxy from the environment must never see the butlers' tokens.
    return httpx2.AsyncClient(headers=headers, timeout=timeout, trust_env=False)


def _root(error: BaseException) -> BaseException:
    """The SDK's task groups wrap what happened; callers want the first cause."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error if isinstance(error, httpx2.HTTPError | OSError | MCPError) else ConnectionError(type(error).__name__)


def _answer(butler: str, result: Any) -> dict[str, Any]:
    content = result.structured_content
    if not isinstance(content, dict):
        raise InternalError(f"{butler} answered without structured content")
    if result.is_error:
        raise _refusal(content)
    return content


def _refusal(content: Mapping[str, Any]) -> ClassifiedError:
    error = content.get("error")
    if not isinstance(error, dict):
        return InternalError("the tool failed without saying why")
    return from_wire(
        str(error.get("class")),
        str(error.get("message")),
        retryable=error.get("retryable"),
        retry_after=error.get("retry_after_seconds"),
    )
