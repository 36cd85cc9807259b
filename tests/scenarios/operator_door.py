"""An operator's hands at all three doors, and butlers that fail or hang for real."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import httpx2

from butlers.storage.database import Record
from tests.scenarios.switchboard_door import call, post, row
from tests.system import RunningSystem

WHY = {"reason": "the owner asked for it"}


async def act(running: RunningSystem, path: str, *, caller: str = "operator", **said: Any) -> httpx2.Response:
    """One action over HTTP."""
    body = WHY | said
    return await running.http.post(running.url(path=f"/api/requests/{path}"), json=body, headers=running.bearer(caller))


async def read(running: RunningSystem, path: str, **parameters: Any) -> dict[str, Any]:
    response = await running.http.get(running.url(path=f"/api/{path}"), params=parameters, headers=running.bearer())
    assert response.status_code == 200, response.text
    document: dict[str, Any] = response.json()
    return document


async def tool(running: RunningSystem, name: str, *, caller: str = "operator", **arguments: Any) -> dict[str, Any]:
    """One tool at Switchboard's MCP door."""
    async with running.mcp("switchboard", caller=caller) as client:
        return await call(client, name, arguments)


async def handed_in(running: RunningSystem, text: str, target: str | None = None) -> str:
    document = running.envelope(text) | {"control": {"pinned_target": target} if target else {}}
    request_id: str = (await post(running, document)).json()["request_id"]
    return request_id


async def left_behind(running: RunningSystem, **parts: str) -> str:
    """A request that was decided by a worker that died: a part for each of these butlers."""
    text = " ".join(parts.values())
    request_id = await handed_in(running, text, "general")
    await in_state(running, request_id, "parsed")
    segments = [_segment(number, butler, text, part) for number, (butler, part) in enumerate(parts.items(), 1)]
    decision = {"router": "local", "why": "two domains", "segments": segments}
    await running.database.execute(
        "UPDATE switchboard.message_inbox SET lifecycle_state = 'progress', final_state_at = NULL, attempts = 1,"
        " claim_token = gen_random_uuid(), lease_expires_at = received_at, routing_output = $2,"
        " dispatch_outcomes = NULL, aggregated_reply = NULL WHERE request_id = $1",
        UUID(request_id),
        decision,
    )
    await running.restart()
    return request_id


def _segment(number: int, butler: str, text: str, part: str) -> dict[str, Any]:
    start = text.index(part)
    place = {"start": start, "end": start + len(part)}
    return {"segment_id": f"s{number}", "butler": butler, "confidence": 1.0, "rationale": "a test"} | place


async def inbox_row(running: RunningSystem, request_id: str) -> Record:
    return await row(running, "switchboard.message_inbox", request_id)


async def in_state(running: RunningSystem, request_id: str, state: str) -> Record:
    """The row, as soon as it says so."""

    async def stands() -> Record | None:
        found = await inbox_row(running, request_id)
        return found if found["lifecycle_state"] == state else None

    found = await running.until(stands)
    assert found is not None
    return found


async def letters(running: RunningSystem, request_id: str) -> list[dict[str, Any]]:
    listed = await read(running, "requests/dead-letters", request_id=request_id, include_resolved="true")
    found: list[dict[str, Any]] = listed["dead_letters"]
    return found


async def audited(running: RunningSystem, request_id: str) -> list[tuple[str, str]]:
    """What was done about a request, in order."""
    listed = await read(running, "audit/operators", request_id=request_id)
    return [(line["action"], line["outcome"]) for line in reversed(listed["actions"])]


@asynccontextmanager
async def broken(running: RunningSystem, butler: str) -> AsyncIterator[None]:
    """A butler whose own table is gone: every piece of work fails for good."""
    await running.database.execute(f"ALTER TABLE {butler}.entries RENAME TO entries_away")
    try:
        yield
    finally:
        await running.database.execute(f"ALTER TABLE {butler}.entries_away RENAME TO entries")


@asynccontextmanager
async def hanging(running: RunningSystem, butler: str) -> AsyncIterator[None]:
    """A butler that takes the call and then says nothing."""
    async with running.database.transaction() as connection:
        await connection.execute(f"LOCK TABLE {butler}.route_inbox IN ACCESS EXCLUSIVE MODE")
        yield


@asynccontextmanager
async def away(running: RunningSystem, butler: str) -> AsyncIterator[None]:
    """A butler that nobody reaches: it is not in this process, and its door is shut."""
    boxes = running.butler("switchboard").process.tool_boxes
    box, port = boxes.pop(butler), running.settings.ports[butler]
    running.settings.ports[butler] = 1  # nobody listens there
    try:
        yield
    finally:
        boxes[butler], running.settings.ports[butler] = box, port
