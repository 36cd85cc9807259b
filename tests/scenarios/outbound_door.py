"""Messages to people through the doors of a whole system, on a clock that a test can put forward."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio

from butlers.clock import SystemClock
from butlers.storage.embedded import EmbeddedPostgres
from tests.scenarios.messenger_door import changed_roster
from tests.scenarios.test_messenger_cli import cli
from tests.system import RunningSystem, running_system

__all__ = ["cli", "running", "system"]


@dataclass(slots=True)
class AheadClock(SystemClock):
    """The machine's clock, put forward by a test."""

    ahead: timedelta = field(default_factory=timedelta)

    def now(self) -> datetime:
        return SystemClock.now(self) + self.ahead


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def system(
    tmp_path_factory: pytest.TempPathFactory, postgres_server: EmbeddedPostgres
) -> AsyncIterator[RunningSystem]:
    """As shipped, but for the breaker, which would wait out the failures that tests make."""
    tmp_path = tmp_path_factory.mktemp("system")
    roster = changed_roster(tmp_path, "messenger", (r"failure_threshold = \d+", "failure_threshold = 1000"))
    options: dict[str, Any] = {
        "roster_dir": roster,
        "clock": AheadClock(),
        "shipped_retries": True,
        "public_url": "http://127.0.0.1:1",
    }
    async with running_system(tmp_path, postgres_server, **options) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def running(system: RunningSystem) -> RunningSystem:
    """Without people, messages and faults of earlier tests."""
    await system.control("DELETE", "/faults")
    for table in ("scheduled_messages", "messages", "blocked_recipients", "queue", "preferences", "memberships"):
        await system.database.execute(f"DELETE FROM outbound.{table}")
    await system.database.execute("DELETE FROM outbound.queue_entered")
    await system.database.execute("UPDATE outbound.queue_counts SET entered = acknowledged + dead_lettered")
    await system.database.execute("DELETE FROM outbound.defaults")
    await system.database.execute("DELETE FROM outbound.entitlements WHERE subject_id <> 'role:everyone'")
    for permission in ("messages:send:*", "messages:receive:*"):
        await post(system, "/entitlements", {"subject": "role:everyone", "permission": permission}, may_fail=True)
    return system


def put_forward(running: RunningSystem, **length: float) -> None:
    assert isinstance(running.clock, AheadClock)
    running.clock.ahead += timedelta(**length)


async def person(running: RunningSystem, name: str, **addresses: str) -> str:
    """A contact with these addresses; its id."""
    id = uuid4()
    await running.database.execute(
        "INSERT INTO shared.contacts (id, name, created_at, updated_at) VALUES ($1, $2, now(), now())", id, name
    )
    for channel, address in addresses.items():
        await running.database.execute(
            "INSERT INTO shared.contact_info (id, contact_id, type, value, is_primary, created_at)"
            " VALUES ($1, $2, $3, $4, true, now())",
            uuid4(),
            id,
            channel,
            address,
        )
    return str(id)


async def post(
    running: RunningSystem, path: str, body: dict[str, Any], *, caller: str = "operator", may_fail: bool = False
) -> dict[str, Any]:
    response = await running.http.post(running.url(path=f"/api{path}"), json=body, headers=running.bearer(caller))
    assert may_fail or response.status_code in (200, 202), response.text
    answer: dict[str, Any] = response.json()
    return answer


async def get(running: RunningSystem, path: str) -> dict[str, Any]:
    response = await running.http.get(running.url(path=f"/api{path}"), headers=running.bearer())
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


async def send(running: RunningSystem, *recipients: str, **fields: Any) -> dict[str, Any]:
    return await post(running, "/messages", {"message": "Hello", "recipient_ids": list(recipients)} | fields)


async def prefer(running: RunningSystem, person_id: str, document: dict[str, Any]) -> None:
    """What a person wants, as a whole."""
    await running.database.execute(
        "INSERT INTO outbound.preferences (subject_id, document, updated_at) VALUES ($1, $2, now())"
        " ON CONFLICT (subject_id) DO UPDATE SET document = excluded.document",
        person_id,
        document,
    )


async def work(running: RunningSystem, answer: dict[str, Any], person_id: str) -> dict[str, Any]:
    row = await running.database.fetchrow(
        "SELECT * FROM outbound.scheduled_messages WHERE message_id = $1::text::uuid AND recipient_id = $2",
        answer["message_id"],
        person_id,
    )
    return dict(row) if row else {}


async def until_state(running: RunningSystem, answer: dict[str, Any], person_id: str, *states: str) -> dict[str, Any]:
    async def reached() -> dict[str, Any]:
        row = await work(running, answer, person_id)
        return row if row and row["state"] in states else {}

    return await running.until(reached)


async def attempts(running: RunningSystem, answer: dict[str, Any]) -> list[dict[str, Any]]:
    rows = await running.database.fetch(
        "SELECT attempts.* FROM outbound.attempts JOIN outbound.scheduled_messages USING (dedupe_key)"
        " WHERE message_id = $1::text::uuid ORDER BY started_at, number",
        answer["message_id"],
    )
    return [dict(row) for row in rows]


async def cli_json(running: RunningSystem, *arguments: str) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((await cli(running, *arguments, "--json")).stdout)
    return read
