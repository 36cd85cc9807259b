"""An at-least-once caller at Messenger's MCP door, in Switchboard's name.

It submits until it is told that the delivery is on record or refused for good; a broken connection, a timeout or a
retryable refusal makes it ask again with the same key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import httpx2

from benchmarks.chaos.messages import DeliveryRequest, route
from benchmarks.chaos.rig import Rig

CALL_TIMEOUT_S = 15.0
PAUSE_S = 0.1
LONGEST_PAUSE_S = 2.0
AT_ONE_TIME = 32
HEADERS = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}


class Unanswered(Exception):
    """Nothing was heard, or nothing that says what became of it."""


@dataclass(slots=True, kw_only=True)
class Caller:
    rig: Rig
    new_id: Callable[[], UUID]
    accepted: dict[int, set[str]] = field(default_factory=dict)  # number -> the deliveries that answered for it
    refused: dict[int, str] = field(default_factory=dict)  # number -> the error, not to be tried again
    submissions: int = 0
    unanswered: int = 0
    put_off: int = 0  # retryable refusals
    _knocking: asyncio.Task[None] | None = None
    _room: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONE_TIME))

    async def hand_in(self, request: DeliveryRequest) -> None:
        """Until it is on record; some are handed in once more."""
        for _ in range(2 if request.repeated else 1):
            await self._insist(request)

    async def _insist(self, request: DeliveryRequest) -> None:
        while True:
            try:
                async with self._room:
                    pause = self._judge(request, await self._submit(request))
            except Unanswered:
                self.unanswered += 1
                await self._until_back()
                continue
            if pause is None:
                return
            await self.rig.clock.sleep(pause)

    async def _until_back(self) -> None:
        """One knocks for all: a crowd at a closed door would take the processor from whoever is to open it."""
        if self._knocking is None or self._knocking.done():
            self._knocking = asyncio.create_task(self._knock())
        await asyncio.shield(self._knocking)

    async def _knock(self) -> None:
        await self.rig.clock.sleep(PAUSE_S)
        while not await self.rig.answers("messenger"):
            await self.rig.clock.sleep(PAUSE_S)

    async def _submit(self, request: DeliveryRequest) -> dict[str, Any]:
        self.submissions += 1
        envelope = route(request, subrequest_id=self.new_id(), now=self.rig.clock.now())
        return await call_tool(self.rig, "route.execute", envelope)

    def _judge(self, request: DeliveryRequest, response: dict[str, Any]) -> float | None:
        """Seconds until the next try; None when there need be none."""
        answer = (response.get("result") or {}).get("notify_response") or {}
        if delivery := answer.get("delivery"):
            self.accepted.setdefault(request.number, set()).add(delivery["delivery_id"])
            return None
        error = response.get("error") or {}
        if error.get("retryable"):
            self.put_off += 1
            return min(error.get("retry_after_seconds") or PAUSE_S, LONGEST_PAUSE_S)
        self.refused[request.number] = f"{error.get('class')}: {error.get('message')}"
        return None


async def call_tool(rig: Rig, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """One tools/call; what the tool answered."""
    request = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "arguments": arguments}}
    headers = HEADERS | {"Authorization": f"Bearer {rig.token}"}
    try:
        response = await rig.http.post(rig.url("messenger", "/mcp"), json=request, headers=headers, timeout=_TIMEOUT)
        content = response.json()["result"]["structuredContent"]
    except (httpx2.HTTPError, ValueError, KeyError, TypeError) as error:
        raise Unanswered(str(error)) from error
    if not isinstance(content, dict):
        raise Unanswered("no structured content")
    return content


_TIMEOUT = httpx2.Timeout(CALL_TIMEOUT_S, connect=2.0)
