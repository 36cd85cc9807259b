"""A butler of somebody else: a real MCP door over HTTP that registers itself, answers as told and keeps what it got.

async with downstream(running, "finance") as finance:
    finance.will(error("overload_rejected", retryable=True), ok("paid"))  # one deed after the other, the last for ever
    await running.ingest("I paid the bill")
    finance.got[0]["request_context"]
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from butlers.butler.http import build_app
from butlers.butler.identity import Caller
from butlers.butler.toolbox import EnvelopeTool, ToolBox
from butlers.contracts.route import RouteEnvelope, RouteResponse
from butlers.operations.operation import ADDS
from butlers.serving.server import GuestServer, listen
from butlers.telemetry.telemetry import Telemetry
from tests.scenarios.switchboard_door import call
from tests.system import HOST, RunningSystem

Deed = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]


def ok(answer: str = "Noted.", *, duration_ms: int = 1, **result: Any) -> Deed:
    async def deed(envelope: dict[str, Any]) -> dict[str, Any]:
        return _response(
            envelope, status="ok", result={"answer": answer, **result}, timing={"duration_ms": duration_ms}
        )

    return deed


def error(error_class: str, message: str = "no", *, retryable: bool = False, **more: Any) -> Deed:
    told = {"class": error_class, "message": message, "retryable": retryable, **more}

    async def deed(envelope: dict[str, Any]) -> dict[str, Any]:
        return _response(envelope, status="error", error=told)

    return deed


def changed(**fields: Any) -> Deed:
    """A good answer in which these fields read differently; None leaves one out."""

    async def deed(envelope: dict[str, Any]) -> dict[str, Any]:
        document = _response(envelope, status="ok", result={"answer": "Noted."}) | fields
        return {name: value for name, value in document.items() if value is not None}

    return deed


def after(event: asyncio.Event, deed: Deed | None = None) -> Deed:
    """Answer when something has happened."""

    async def waiting(envelope: dict[str, Any]) -> dict[str, Any]:
        await event.wait()
        return await (deed or ok())(envelope)

    return waiting


def _response(envelope: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {
        "schema_version": "route_response.v1",
        "request_context": {"request_id": envelope["request_context"]["request_id"]},
        "timing": {"duration_ms": 1},
    } | fields


async def _ready() -> dict[str, Any]:
    return {"status": "ok", "ready": True}


class _AsTold(ToolBox):
    """Unlike the tools of our own butlers (tests/system.py), these may answer something else than they declare."""

    async def call(self, name: str, caller: Caller | None, arguments: dict[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = await self[name].call(caller, arguments)
        return answer


class Downstream:
    def __init__(self, running: RunningSystem, name: str) -> None:
        self.name = name
        self.got: list[dict[str, Any]] = []  # envelopes
        self.callers: list[str | None] = []
        self._running = running
        self._deeds: list[Deed] = [ok()]
        self._server: GuestServer | None = None
        self._telemetry = Telemetry.create(name, "downstream", clock=running.clock, otlp_endpoint=None)

    def will(self, *deeds: Deed) -> None:
        """Forget what was, and do this from now on."""
        self._deeds = list(deeds)
        self.got.clear()
        self.callers.clear()

    async def called(self, times: int = 1) -> None:
        async def enough() -> bool:
            return len(self.got) >= times

        await self._running.until(enough)

    async def open(self) -> None:
        tool = EnvelopeTool(
            name="route.execute",
            description="As told.",
            arguments=RouteEnvelope,
            returns=RouteResponse,
            hints=ADDS,
            call=self._execute,
        )
        app = build_app(
            butler=self.name,
            tools=_AsTold([tool]),
            tokens=self._running.tokens,
            telemetry=self._telemetry,
            liveness=lambda: {"status": "ok"},
            readiness=_ready,
            loopback_only=True,
        )
        self._server = GuestServer(app, grace_s=1)
        port = self._running.settings.ports[self.name]
        await self._server.open(listen(HOST, port, source=self.name, remedy="wait"))

    async def close(self) -> None:
        if self._server is not None:
            await self._server.close()
            self._server = None

    async def register(self, *capabilities: str) -> None:
        """By MCP, as any butler does."""
        config = self._running.roster[self.name].butler
        card = {
            "name": self.name,
            "endpoint_url": self._running.url(self.name),
            "transport": "mcp",
            "description": config.description,
            "triggers": config.registry.triggers,
            "capabilities": list(capabilities) or ["route.execute"],
        }
        async with self._running.mcp("switchboard", caller=self.name) as client:
            answer = await call(client, "register_butler", card)
        assert answer["status"] == "ok", answer

    async def _execute(self, caller: Caller | None, envelope: dict[str, Any]) -> dict[str, Any]:
        self.got.append(envelope)
        self.callers.append(caller.name if caller else None)
        deed = self._deeds.pop(0) if len(self._deeds) > 1 else self._deeds[0]
        return await deed(envelope)


@asynccontextmanager
async def downstream(running: RunningSystem, name: str) -> AsyncIterator[Downstream]:
    """Serving and registered."""
    butler = Downstream(running, name)
    await butler.open()
    try:
        await butler.register()
        yield butler
    finally:
        await butler.close()
