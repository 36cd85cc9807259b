"""A remote butler and an operator in the hands of a test, at the courier of a running system."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import websockets

from butlers.courier.client import CourierClient
from butlers.operations.operation import Role
from tests.integration.courier.gateway import Socket, envelope
from tests.system import RunningSystem


def operator(running: RunningSystem) -> CourierClient:
    return CourierClient(running.url("courier"), token=running.token())


async def registered(running: RunningSystem, name: str) -> Any:
    return await running.database.fetchrow("SELECT * FROM switchboard.butler_registry WHERE name = $1", name)


class RemoteButler:
    """A remote butler in the hands of a test."""

    def __init__(self, name: str, socket: Socket) -> None:
        self.name = name
        self.socket = socket

    async def send(self, type_: str, payload: Any, **more: Any) -> None:
        to = f"agents/{self.name}/outbox"
        await self.socket.say(enqueue=envelope(str(uuid4()), to=to, type=type_, payload=payload, **more))

    async def register(self, *triggers: str) -> None:
        card = {"name": self.name, "transport": "courier", "endpoint_url": "-", "description": "A test's own"}
        await self.send("register_butler", card | {"capabilities": ["route.execute"], "triggers": triggers})
        result = await self.next("tool_result")
        assert result["deliver"]["payload"]["result"]["status"] == "ok"
        await self.ack(result)

    async def next(self, type_: str) -> dict[str, Any]:
        """The next delivery of that type; everything else is read over."""
        while (frame := await self.socket.hear()).get("deliver", {}).get("type") != type_:
            assert "error" not in frame, frame
        return frame

    async def ack(self, frame: dict[str, Any]) -> None:
        await self.socket.say(ack=frame["deliver"]["id"], lease=frame["lease"], credit=1)

    async def answer(self, frame: dict[str, Any]) -> None:
        context = frame["deliver"]["payload"]["request_context"]
        response = {"schema_version": "route_response.v1", "status": "ok", "timing": {"duration_ms": 1}}
        response |= {"request_context": {"request_id": context["request_id"]}, "result": {"by": self.name}}
        await self.send("route_response.v1", response, corr=frame["deliver"]["id"])
        await self.ack(frame)


@asynccontextmanager
async def attached(running: RunningSystem, name: str) -> AsyncIterator[RemoteButler]:
    token = running.tokens.secret_of(name) or running.issue_token(name, Role.BUTLER)
    address = f"{running.url('courier').replace('http', 'ws')}/v1/subscribe?stream=agents/{name}/inbox"
    async with websockets.connect(address, additional_headers={"Authorization": f"Bearer {token}"}) as connection:
        remote = RemoteButler(name, Socket(connection))
        await remote.socket.say(credit=4)
        yield remote
