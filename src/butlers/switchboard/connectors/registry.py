"""Who is there: all connectors that ever reported, with what they did today. Only an operator removes one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any
from uuid import UUID

from butlers.butler.core_tools import wire
from butlers.butler.health import Finding
from butlers.butler.identity import Caller
from butlers.butler.toolbox import AnyTool, EnvelopeTool, Tool
from butlers.clock import Clock
from butlers.contracts.heartbeat import HeartbeatEnvelope
from butlers.errors import Conflict, NotFound
from butlers.operations import connectors as operations
from butlers.operations.connectors import ConnectorArguments
from butlers.operations.operation import NoArguments
from butlers.storage.database import Database
from butlers.storage.queries import Queries
from butlers.switchboard.connectors.heartbeats import Heartbeats
from butlers.switchboard.connectors.rollups import midnight, rest_of_today

FIGURES = (
    *("messages_ingested", "messages_failed", "source_api_calls", "dedupe_accepted"),
    *("heartbeat_count", "healthy_count", "degraded_count", "error_count"),
)
Figures = defaultdict[tuple[str, str], dict[str, int]]  # by type and endpoint

ONLINE_WITHIN = timedelta(minutes=2)
STALE_WITHIN = timedelta(minutes=4)


class Liveness(StrEnum):
    ONLINE = "online"
    STALE = "stale"
    OFFLINE = "offline"


@dataclass(frozen=True, slots=True, kw_only=True)
class Connectors:
    database: Database
    queries: Queries
    clock: Clock
    own: Collection[UUID] = ()  # instances of this process, which report their health themselves

    def tools(self, heartbeats: Heartbeats) -> list[AnyTool]:
        async def heartbeat(caller: Caller | None, raw: dict[str, Any]) -> dict[str, Any]:
            return (await heartbeats.accept(HeartbeatEnvelope.parse(raw), caller)).to_wire()

        async def list_connectors(_caller: Caller, _arguments: NoArguments) -> dict[str, Any]:
            return wire(await self.list())

        return [
            EnvelopeTool.of(operations.HEARTBEAT, heartbeat),
            Tool.of(operations.LIST, list_connectors),
            Tool.of(operations.DEREGISTER, self._deregister),
        ]

    async def list(self) -> dict[str, Any]:
        """Each connector that ever reported, with what it did today."""
        now = self.clock.now()
        today = await self._today(now)
        rows = await self.database.fetch(self.queries.list_connectors)
        return {
            "connectors": [
                {
                    **row,
                    "liveness": liveness(row["last_heartbeat_at"], now).value,
                    "today": today[row["connector_type"], row["endpoint_identity"]],
                }
                for row in rows
            ]
        }

    async def findings(self) -> dict[str, Finding]:
        """How each one of another process is, by its last heartbeat."""
        now = self.clock.now()
        found = await self.database.fetch(self.queries.list_connectors)
        rows = [row for row in found if row["instance_id"] not in self.own]
        return {f"{row['connector_type']}:{row['endpoint_identity']}": finding(dict(row), now) for row in rows}

    async def _deregister(self, _caller: Caller, given: ConnectorArguments) -> dict[str, Any]:
        """Forget one; its next heartbeat registers it anew."""
        named = {"connector_type": given.connector_type, "endpoint_identity": given.endpoint_identity}
        if await self.database.fetchrow(self.queries.deregister_connector, *named.values()) is None:
            raise NotFound.of("endpoint_identity", "no such connector")
        return wire({**named, "deregistered": True})

    async def must_be_online(self, connector_type: str, endpoint_identity: str) -> None:
        """For work that only a connector which is there, and which can do it, will take."""
        row = await self.database.fetchrow(self.queries.get_connector, connector_type, endpoint_identity)
        if row is None:
            raise NotFound.of("endpoint_identity", "no such connector")
        found = liveness(row["last_heartbeat_at"], self.clock.now())
        if found is not Liveness.ONLINE:
            raise Conflict.of(
                "endpoint_identity", f"this connector is {found.value}, and only one that is online may work"
            )
        if row["capabilities"] is not None and not row["capabilities"].get("backfill"):
            raise Conflict.of("connector_type", "this connector says that it cannot fetch the past")

    async def _today(self, now: datetime) -> Figures:
        """The hours that were rolled up, and what the heartbeats since then added."""
        last = await self.database.fetchval(self.queries.last_hour)
        rolled_up = await self.database.fetch(self.queries.rolled_up_since, midnight(now.date()))
        rest = rest_of_today(now, last=last)
        since = await self.database.fetch(self.queries.added_between, rest.start, rest.end)
        today: Figures = defaultdict(lambda: dict.fromkeys(FIGURES, 0))
        for row in (*rolled_up, *since):
            figures = today[row["connector_type"], row["endpoint_identity"]]
            figures.update({name: figures[name] + row[name] for name in FIGURES})
        return today


def liveness(last_heartbeat_at: datetime, now: datetime) -> Liveness:
    """Whether a connector is there, by its last heartbeat. Silence never removes one."""
    silence = now - last_heartbeat_at
    if silence < ONLINE_WITHIN:
        return Liveness.ONLINE
    return Liveness.STALE if silence <= STALE_WITHIN else Liveness.OFFLINE


def finding(row: Mapping[str, Any], now: datetime) -> Finding:
    """What a connector's last heartbeat means for people who wait for its messages."""
    there = liveness(row["last_heartbeat_at"], now)
    if there is not Liveness.ONLINE:
        silent = (now - row["last_heartbeat_at"]).total_seconds()
        return Finding.degraded(
            f"It has said nothing for {silent:.0f} s.",
            remedy="Start it again, or forget it with `butlers connectors deregister`.",
            liveness=there.value,
        )
    if row["state"] != "healthy":
        return Finding.degraded(f"It reports: {row['error_message'] or row['state']}.", liveness=there.value)
    return Finding(figures={"liveness": there.value})
