"""How one butler calls a tool of another, in the process or by MCP over HTTP, and how it speaks to people."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

from butlers.butler.identity import Caller
from butlers.butler.toolbox import ToolBox
from butlers.channels.registry import channel_of, outbound_names
from butlers.contracts.envelope import Channel, RequestContext
from butlers.contracts.notify import Delivery, NotifyContext, NotifyEnvelope, NotifyResponse
from butlers.errors import ClassifiedError, InternalError, TargetUnavailable, TimeoutExceeded, from_wire_document

if TYPE_CHECKING:
    from butlers.butler.mcp_session import McpSession

_CALL_S = 120.0  # longer than any butler may take; only a hung one reaches it
# Their answer is an envelope that tells of a failure itself, as it is in one process. Its reader judges its version.
_RESPONDING = frozenset({"route.execute", "notify.dispatch"})


class Transport(Protocol):
    async def call(self, butler: str, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The tool's answer. Raises `ClassifiedError`: the callee's own refusal, or `TargetUnavailable`."""

    async def close(self) -> None:
        """Give connections back."""


Call = Callable[[str, str, Mapping[str, Any]], Awaitable[dict[str, Any]]]  # butler, tool, arguments


class InProcessTransport:
    """Directly where the butler is in this process; by the courier where it is attached to that; else over MCP."""

    def __init__(self, *, caller: Caller, tool_boxes: Mapping[str, ToolBox], elsewhere: Transport) -> None:
        self._caller = caller
        self._tool_boxes = tool_boxes  # shared and live: butlers appear in it as they start
        self._elsewhere = elsewhere
        self._by_courier: tuple[Callable[[str], Awaitable[bool]], Call] | None = None

    def add_courier(self, is_for: Callable[[str], Awaitable[bool]], call: Call) -> None:
        """Butlers that `is_for` names are called by `call`."""
        self._by_courier = (is_for, call)

    async def call(self, butler: str, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        tools = self._tool_boxes.get(butler)
        if tools is not None:
            return await tools.call(tool, self._caller, dict(arguments))
        if self._by_courier is not None and await self._by_courier[0](butler):
            return await self._by_courier[1](butler, tool, arguments)
        return await self._elsewhere.call(butler, tool, arguments)

    async def close(self) -> None:
        await self._elsewhere.close()


class McpTransport:
    """Calls tools at `http://.../mcp` with the caller's bearer token."""

    def __init__(self, *, token: Callable[[], str | None], url_of: Callable[[str], str | None]) -> None:
        self._token = token
        self._url_of = url_of
        self._sessions: dict[str, McpSession] = {}

    async def call(self, butler: str, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        url = self._url_of(butler)
        if url is None:
            raise TargetUnavailable(f"no address is known for {butler}")
        session = await self._session(butler, url)
        try:
            async with asyncio.timeout(_CALL_S):
                result = await session.call(tool, dict(arguments), as_declared=tool not in _RESPONDING)
                return _answer(butler, tool, result)
        except TimeoutError:
            raise TimeoutExceeded(f"{butler} gave no answer within {_CALL_S:g} s") from None

    async def _session(self, butler: str, url: str) -> McpSession:
        """The open session, or a new one when it broke or our token was replaced meanwhile."""
        session, token = self._sessions.get(butler), self._token()
        if session is not None and not session.broken and session.token == token:
            return session
        if session is not None:
            await session.close()
        self._sessions[butler] = (await _loaded()).McpSession(url, token)
        return self._sessions[butler]

    async def close(self) -> None:
        await asyncio.gather(*(session.close() for session in self._sessions.values()))


async def _loaded() -> Any:
    """The SDK is slow to load: off the event loop, and only when somebody lives elsewhere. It checks answers with
    jsonschema, which it would load at the first one.
    """
    await asyncio.to_thread(import_module, "jsonschema")
    return await asyncio.to_thread(import_module, "butlers.butler.mcp_session")


def _answer(butler: str, tool: str, result: Any) -> dict[str, Any]:
    content = result.structured_content
    if not isinstance(content, dict):
        raise InternalError(f"{butler} answered without structured content")
    if result.is_error and not (tool in _RESPONDING and "schema_version" in content):
        raise _refusal(content)
    return content


def _refusal(content: Mapping[str, Any]) -> ClassifiedError:
    error = content.get("error")
    if not isinstance(error, dict):
        return InternalError("the tool failed without saying why")
    return from_wire_document(error)


# Where an answer goes when its source cannot be answered on its own channel (an API or MCP call): to the owner.
OWNER_CHANNEL: Channel = outbound_names()[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Notifier:
    """The only way a butler speaks: a `notify.v1` handed to Switchboard."""

    butler: str
    transport: Transport

    async def answer(self, context: RequestContext, message: str, *, key: str) -> NotifyResponse:
        """Answer a request where it came from; the key makes a repeated answer the same one."""
        replies = channel_of(context.source_channel).can_answer(context.source_thread_identity)
        channel = context.source_channel if replies else OWNER_CHANNEL
        envelope = NotifyEnvelope(
            origin_butler=self.butler,
            delivery=Delivery(intent="reply" if replies else "send", channel=channel, message=message),
            request_context=NotifyContext.answering(context),
            idempotency_key=key,
        )
        return NotifyResponse.parse(await self.transport.call("switchboard", "notify.dispatch", envelope.to_wire()))

    async def send(
        self,
        message: str,
        *,
        channel: Channel,
        recipient: str | None = None,
        contact_id: UUID | None = None,
        subject: str | None = None,
        key: str | None = None,
    ) -> NotifyResponse:
        """Say something unasked: to a recipient, a contact, or else the owner."""
        envelope = NotifyEnvelope(
            origin_butler=self.butler,
            delivery=Delivery(intent="send", channel=channel, message=message, recipient=recipient, subject=subject),
            contact_id=contact_id,
            idempotency_key=key,
        )
        return NotifyResponse.parse(await self.transport.call("switchboard", "notify.dispatch", envelope.to_wire()))
