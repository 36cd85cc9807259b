"""Switchboard's doors, as callers use them, and its stored rows, as an operator reads them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID, uuid4

import httpx2
from mcp.client import Client

from butlers.ids import Uuid7Factory
from butlers.storage.database import Record
from tests.system import DEADLINE_S, RunningSystem

STORED = ("ingress_dedupe", "message_inbox")


async def post(running: RunningSystem, document: Any, **headers: str) -> httpx2.Response:
    return await running.http.post(running.url(path="/api/ingest"), json=document, headers=headers)


async def call(client: Client, tool: str, arguments: dict[str, Any] | None = None) -> dict[str, Any]:
    """A tool's structured answer, good or bad."""
    content = (await client.call_tool(tool, arguments or {})).structured_content
    assert isinstance(content, dict)
    return content


@asynccontextmanager
async def as_switchboard(running: RunningSystem, butler: str) -> AsyncIterator[Client]:
    async with running.mcp(butler, caller="switchboard") as client:
        yield client


def route(running: RunningSystem, butler: str, prompt: str, **context: Any) -> dict[str, Any]:
    """A valid route.v1 to a butler, of a request of its own."""
    return {
        "schema_version": "route.v1",
        "request_context": {
            "request_id": str(Uuid7Factory(running.clock)()),
            "received_at": running.clock.now().isoformat(),
            "source_channel": "api",
            "source_endpoint_identity": "tests",
            "source_sender_identity": "tester",
        }
        | context,
        "input": {"prompt": prompt},
        "subrequest": {"subrequest_id": str(uuid4()), "segment_id": "s1", "fanout_mode": "parallel"},
        "target": {"butler": butler, "tool": "route.execute"},
        "trace_context": {},
    }


async def counts(running: RunningSystem, tables: Sequence[str] = STORED) -> dict[str, int]:
    return {t: await running.database.fetchval(f"SELECT count(*) FROM switchboard.{t}") for t in tables}


async def rows(running: RunningSystem, table: str, request_id: str) -> list[Record]:
    return await running.database.fetch(f"SELECT * FROM {table} WHERE request_id = $1", UUID(request_id))


async def row(running: RunningSystem, table: str, request_id: str) -> Record:
    found = await rows(running, table, request_id)
    assert len(found) == 1, f"{len(found)} rows in {table}"
    return found[0]


async def all_finished(running: RunningSystem, *, deadline_s: float = DEADLINE_S) -> None:
    """Wait until no request is open any more, as long as there are fewer of them within each deadline."""

    async def open_requests() -> int:
        states = "('accepted', 'progress')"
        query = f"SELECT count(*) FROM switchboard.message_inbox WHERE lifecycle_state IN {states}"
        return int(await running.database.fetchval(query))

    left = await open_requests()
    while left:
        before = left

        async def fewer(before: int = before) -> bool:
            return await open_requests() < before

        await running.until(fewer, deadline_s=deadline_s)
        left = await open_requests()
