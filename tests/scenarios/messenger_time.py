"""Messenger alone, on a clock that stands still until a test moves it: whatever waits, waits for the test.

The fixtures are one system for all tests of a file, emptied before each; a file that needs another policy than the
shipped one names its `CHANGES`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import asyncpg
import pytest
import pytest_asyncio

from butlers.clock import ManualClock, SystemClock
from butlers.storage.embedded import EmbeddedPostgres
from tests.scenarios.messenger_door import attempts, call, changed_roster, deliver, execute, forget, route, rows, stored
from tests.system import RunningSystem, running_system

T = TypeVar("T")

STEP_S = 0.5  # as long as Messenger's shortest timer
_QUESTIONS = 12
NO_BREAKER = (r"failure_threshold = \d+", "failure_threshold = 1000")


@asynccontextmanager
async def standing_still(
    tmp_path: Path, postgres_server: EmbeddedPostgres, *changes: tuple[str, str], **options: Any
) -> AsyncIterator[RunningSystem]:
    """Messenger with the shipped policy and these changes to it; `options` are those of `running_system`."""
    roster = changed_roster(tmp_path, "messenger", *changes)
    clock = ManualClock(SystemClock().now())
    given: dict[str, Any] = {"clock": clock, "names": ["messenger"], "roster_dir": roster} | options
    async with running_system(tmp_path, postgres_server, **given) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def system(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, postgres_server: EmbeddedPostgres
) -> AsyncIterator[RunningSystem]:
    changes = getattr(request.module, "CHANGES", ())
    async with standing_still(tmp_path_factory.mktemp("system"), postgres_server, *changes) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def running(system: RunningSystem) -> RunningSystem:
    return await emptied(system)


async def emptied(running: RunningSystem) -> RunningSystem:
    """The same system without what earlier tests left in it."""
    while True:
        try:
            await forget(running)
        except asyncpg.DeadlockDetectedError:  # a table is emptied while Messenger reads it and another
            continue
        return running


def limits(**values: float) -> tuple[tuple[str, str], ...]:
    """Changes to [delivery.limits]; a channel is named with an underscore, telegram_bot."""
    written = {
        name: f'"{name.replace("_", ".")}"' if name in ("telegram_bot", "email_bot") else name for name in values
    }
    return tuple((rf"^{written[name]} = \S+", f"{written[name]} = {value}") for name, value in values.items())


def advance(running: RunningSystem, seconds: float) -> None:
    """Let time pass. Messenger's worker naps by the machine's clock, so it has to be told."""
    assert isinstance(running.clock, ManualClock)
    running.clock.advance(seconds)
    worker: Any = running.butler("messenger").service("delivery worker").run
    worker.__self__.wake()


async def as_time_passes(running: RunningSystem, look: Callable[[], Awaitable[T]]) -> T:
    """Let time pass until something is there."""

    async def step() -> T:
        if not (found := await look()):
            advance(running, STEP_S)
            await others_work(running)
        return found

    return await running.until(step)


async def others_work(running: RunningSystem) -> None:
    """As many questions to the database as a delivery asks: on a busy machine they take longer, as a delivery does, and
    time does not pass faster than the work is done.
    """
    for _ in range(_QUESTIONS):
        await running.database.fetchval("select 1")


async def ended_attempts(running: RunningSystem, count: int) -> list[dict[str, Any]]:
    """All attempts, as soon as so many have ended and none is under way."""

    async def enough() -> list[dict[str, Any]]:
        made = await attempts(running)
        over = len(made) >= count and all(attempt["completed_at"] for attempt in made)
        return made if over else []

    made = await running.until(enough)
    assert len(made) == count, made
    return made


async def all_have(running: RunningSystem, status: str) -> bool:
    return {row["status"] for row in await rows(running)} == {status}


async def with_status(running: RunningSystem, status: str, count: int = 1) -> list[dict[str, Any]]:
    found = [row for row in await rows(running) if row["status"] == status]
    return found if len(found) >= count else []


async def later(running: RunningSystem, notify: dict[str, Any]) -> asyncio.Task[dict[str, Any]]:
    """Hand it in and do not wait for its end; it is on record."""
    before = len(await rows(running))
    task = asyncio.create_task(deliver(running, notify))
    task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # whoever asks is told once more

    async def recorded() -> bool:
        return task.done() or len(await rows(running)) > before

    await running.until(recorded)
    return task


async def turned_away(running: RunningSystem, notify: dict[str, Any]) -> dict[str, Any]:
    """The error with which Messenger refuses it for now; no delivery, attempt or receipt may come of it."""
    before = await stored(running)
    response = await execute(running, route(running, notify))
    assert response["status"] == "error", response
    assert response.get("result") is None, response
    assert await stored(running) == before
    error: dict[str, Any] = response["error"]
    assert error["retryable"] is True, error
    return error


async def tool(running: RunningSystem, name: str, **arguments: Any) -> dict[str, Any]:
    """What one of Messenger's operational tools answers."""
    answer = await call(running, "messenger", f"messenger_{name}", arguments)
    assert "error" not in answer or answer.get("status") != "error", answer
    return answer


async def tool_refused(running: RunningSystem, name: str, **arguments: Any) -> str:
    """Why one of them refuses."""
    answer = await call(running, "messenger", f"messenger_{name}", arguments)
    assert (answer["status"], answer["error"]["class"]) == ("error", "validation_error"), answer
    message: str = answer["error"]["message"]
    return message
