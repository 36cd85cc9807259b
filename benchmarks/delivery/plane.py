"""Messenger as the composition root builds it, with a provider that answers at once and budgets that never refuse."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

from benchmarks.chaos.roster import lifted_roster
from benchmarks.delivery.instant import ADAPTER, CHANNEL, install
from butlers.butler.identity import Caller
from butlers.butler.toolbox import ToolBox
from butlers.clock import Clock, SystemClock
from butlers.daemon.places import Places
from butlers.daemon.settings import Settings
from butlers.daemon.system import System
from butlers.errors import ButlersError
from butlers.ids import Uuid7Factory
from butlers.operations.operation import Role
from butlers.roster import load_roster

SWITCHBOARD = Caller(name="switchboard", role=Role.BUTLER)
UNLIMITED = 1e9
NEVER_S = 1e6


class Plane:
    """`route.execute` of a running Messenger."""

    def __init__(self, tools: ToolBox, clock: Clock) -> None:
        self._tools = tools
        self._clock = clock
        self._new_id = Uuid7Factory(clock)

    async def submit(self, number: int, *, origin: str = "general") -> None:
        """Returns when the receipt is there."""
        envelope = self._envelope(number, origin, self._new_id())
        while True:
            response = await self._tools.call("route.execute", SWITCHBOARD, envelope)
            error = response.get("error")
            if error is None:
                break
            if not error["retryable"]:
                raise ButlersError(f"message {number} was refused: {error}")
            await self._clock.sleep(error.get("retry_after_seconds") or 0.05)
        status = response["result"]["notify_response"]["delivery"]["status"]
        if status != "delivered":
            raise ButlersError(f"message {number} is {status}")

    def _envelope(self, number: int, origin: str, identity: UUID) -> dict[str, Any]:
        notify = {
            "schema_version": "notify.v1",
            "origin_butler": origin,
            "idempotency_key": f"bench-{identity}",
            "delivery": {
                "intent": "send",
                "channel": CHANNEL,
                "recipient": f"person-{number}",
                "message": f"message {number}",
            },
        }
        return {
            "schema_version": "route.v1",
            "request_context": {
                "request_id": str(identity),
                "received_at": self._clock.now().isoformat(),
                "source_channel": "mcp",
                "source_endpoint_identity": "switchboard",
                "source_sender_identity": origin,
            },
            "input": {"prompt": "Deliver.", "context": {"notify_request": notify, "authenticated_origin": origin}},
            "subrequest": {"subrequest_id": str(identity), "segment_id": f"notify-{identity}"},
            "target": {"butler": "messenger"},
        }


@asynccontextmanager
async def running_plane(folder: Path, dsn: str, *, workers: int, pool: int) -> AsyncIterator[Plane]:
    clock = SystemClock()
    install(folder)
    delivery, modules = _lifted(workers), _modules()
    roster = load_roster(lifted_roster(folder / "roster", delivery, modules=modules, route_timeout_s=60.0))
    settings = Settings(
        data_dir=folder / "data",
        database_url=dsn,
        database_pool=pool,
        ports={"messenger": _free_port(), "switchboard": _free_port()},
        heartbeat_s=NEVER_S,
        log_level="ERROR",
    )
    Places(settings.data_dir).create()
    system = System(
        settings=settings,
        roster=roster,
        names=["messenger"],
        environment={},
        clock=clock,
        new_id=Uuid7Factory(clock),
    )
    await system.start()
    try:
        yield Plane(system.butlers[0].tools, clock)
    finally:
        await asyncio.shield(system.stop())


def _lifted(workers: int) -> dict[str, Any]:
    limits = {
        "max_in_flight": 1_000_000,
        "global_per_minute": UNLIMITED,
        "recipient_per_minute": UNLIMITED,
        "channel_per_minute": {f"{CHANNEL}.bot": UNLIMITED},
    }
    return {"limits": limits, "max_concurrent_attempts": workers}


def _modules() -> dict[str, Any]:
    """The channel in memory instead of those that need a server."""
    off = {"bot": {"enabled": False}}
    return {"telegram": off, "email": off, CHANNEL: {"adapter": ADAPTER}}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
