"""A connector of its own token at Switchboard's doors, and its rows as they are stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

import httpx2

from butlers.butler.identity import Grant
from butlers.operations.operation import Role
from butlers.storage.database import Record
from tests.scenarios.switchboard_door import call
from tests.system import RunningSystem

COUNTERS = ("messages_ingested", "messages_failed", "source_api_calls", "checkpoint_saves", "dedupe_accepted")


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteConnector:
    running: RunningSystem
    principal: str
    endpoint: str
    connector_type: str = "imap"
    instance_id: UUID = field(default_factory=uuid4)

    @property
    def named(self) -> dict[str, str]:
        return {"connector_type": self.connector_type, "endpoint_identity": self.endpoint}

    def envelope(self, **changes: Any) -> dict[str, Any]:
        return {
            "schema_version": "connector.heartbeat.v1",
            "connector": {**self.named, "instance_id": str(self.instance_id), "version": "1.2"},
            "status": {"state": "healthy", "uptime_s": 12.5},
            "counters": dict(zip(COUNTERS, (5, 1, 7, 3, 4), strict=True)),
            "checkpoint": {"cursor": "uid 40", "updated_at": "2026-01-31T09:00:00Z"},
            "capabilities": {"backfill": True},
            "sent_at": self.running.clock.now().isoformat(),
        } | changes

    async def beat(self, **changes: Any) -> dict[str, Any]:
        """One heartbeat over MCP; the answer."""
        return await self.ask("connector.heartbeat", **self.envelope(**changes))

    async def beat_and_be_seen(self, **changes: Any) -> Record:
        """One heartbeat, and the registry's row as soon as it shows it."""
        answer = await self.beat(**changes)
        assert answer.get("status") == "accepted", answer
        heard = datetime.fromisoformat(answer["server_time"])

        async def seen() -> Record | None:
            row = await self.row()
            return row if row is not None and row["last_heartbeat_at"] >= heard else None

        found = await self.running.until(seen)
        assert found is not None
        return found

    async def ask(self, tool: str, **arguments: Any) -> dict[str, Any]:
        async with self.running.mcp("switchboard", caller=self.principal) as client:
            return await call(client, tool, arguments)

    async def row(self) -> Record | None:
        query = "SELECT * FROM switchboard.connector_registry WHERE connector_type = $1 AND endpoint_identity = $2"
        return await self.running.database.fetchrow(query, self.connector_type, self.endpoint)

    async def log(self) -> list[Record]:
        query = "SELECT * FROM switchboard.connector_heartbeat_log WHERE endpoint_identity = $1 ORDER BY received_at"
        return await self.running.database.fetch(query, self.endpoint)


def a_connector(running: RunningSystem, endpoint: str, *, principal: str | None = None) -> RemoteConnector:
    name = principal or f"connector-{endpoint}"
    if running.tokens.secret_of(name) is None:
        running.issue_token(name, Role.CONNECTOR, Grant(channel="email", endpoint=endpoint))
    return RemoteConnector(running=running, principal=name, endpoint=endpoint)


async def operator(running: RunningSystem, tool: str, **arguments: Any) -> dict[str, Any]:
    async with running.mcp("switchboard") as client:
        return await call(client, tool, arguments)


async def post(running: RunningSystem, path: str, document: Any, *, caller: str | None = "operator") -> httpx2.Response:
    headers = running.bearer(caller) if caller else {}
    return await running.http.post(running.url(path=f"/api{path}"), json=document, headers=headers)


async def listed(running: RunningSystem, endpoint: str) -> Mapping[str, Any]:
    """What `GET /api/connectors` says of one."""
    response = await running.http.get(running.url(path="/api/connectors"))
    assert response.status_code == 200, response.text
    [found] = [row for row in response.json()["connectors"] if row["endpoint_identity"] == endpoint]
    one: dict[str, Any] = found
    return one


def refused_for(answer: Mapping[str, Any]) -> list[str]:
    """The fields a refusal names."""
    return [wrong["field"] for wrong in answer["error"]["fields"]]
