"""One system whose Messenger asks a person first, emptied before each test, and the hands to work with it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from butlers.storage.embedded import EmbeddedPostgres
from tests.scenarios.messenger_door import call, deliver, forget, mails, quick, rows, sends, wish
from tests.system import RunningSystem, running_system

GATED = (r"^\[modules\.calendar\]", "[modules.approvals]\n\n[modules.calendar]")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def system(
    tmp_path_factory: pytest.TempPathFactory, postgres_server: EmbeddedPostgres
) -> AsyncIterator[RunningSystem]:
    tmp_path = tmp_path_factory.mktemp("gated")
    async with running_system(tmp_path, postgres_server, roster_dir=quick(tmp_path, GATED)) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def running(system: RunningSystem) -> RunningSystem:
    await forget(system)
    return system


async def tool(running: RunningSystem, name: str, caller: str = "operator", **arguments: Any) -> dict[str, Any]:
    return await call(running, "messenger", name, arguments, caller=caller)


async def asked(running: RunningSystem, message: str = "may I?", **fields: Any) -> dict[str, str]:
    """A delivery that waits: its id and the id of the action, with nothing sent."""
    before = (await sends(running), len(await mails(running)))
    answer = await deliver(running, wish(message, **fields))
    assert (answer["status"], answer["delivery"]["status"]) == ("ok", "pending_approval"), answer
    assert (await sends(running), len(await mails(running))) == before
    return {"delivery": answer["delivery"]["delivery_id"], "action": answer["delivery"]["action_id"]}


async def action_row(running: RunningSystem, action_id: str) -> dict[str, Any]:
    row = await running.database.fetchrow("select * from messenger.pending_actions where id = $1", action_id)
    assert row is not None
    return dict(row)


async def row_of(running: RunningSystem, delivery_id: str) -> dict[str, Any]:
    return next(row for row in await rows(running) if str(row["id"]) == delivery_id)


async def ended(running: RunningSystem, delivery_id: str, status: str) -> dict[str, Any]:
    async def look() -> dict[str, Any]:
        row = await row_of(running, delivery_id)
        return row if row["status"] == status else {}

    return await running.until(look)


def decisions(row: dict[str, Any]) -> list[tuple[str, str]]:
    return [(line["rule"], line["verdict"]) for line in row["decisions"]]
