"""Switchboard as the roster ships it, and each of its settings at work."""

from __future__ import annotations

import asyncio
import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from butlers.daemon.settings import Settings, shipped_roster
from butlers.daemon.simulation import Simulated
from butlers.errors import ConfigurationError
from butlers.roster import load_roster
from butlers.storage.embedded import EmbeddedPostgres
from butlers.switchboard.ingress.buffer import DurableBuffer
from tests.integration.runtimes.stand_ins import CODEX, StandIn
from tests.scenarios.messenger_door import changed_roster
from tests.scenarios.switchboard_door import call
from tests.system import RunningSystem, running_system

SHIPPED_BUFFER = {
    "queue_capacity": 100,
    "worker_count": 3,
    "scanner_interval_s": 30,
    "scanner_grace_s": 10,
    "scanner_batch_size": 50,
}


async def ask(running: RunningSystem, tool: str, **arguments: Any) -> dict[str, Any]:
    async with running.mcp("switchboard") as client:
        return await call(client, tool, arguments)


async def running_sessions(running: RunningSystem) -> int:
    count: int = await running.database.fetchval("SELECT count(*) FROM switchboard.sessions WHERE status = 'running'")
    return count


@pytest.mark.scenario("S3-086")
async def test_butler_identity_and_runtime(tmp_path: Path, postgres_server: EmbeddedPostgres) -> None:
    shipped = load_roster(shipped_roster())["switchboard"]
    assert Settings(data_dir=tmp_path).port("switchboard", shipped.butler.port) == 40100
    assert (shipped.butler.db.name, shipped.schema_name) == ("butlers", "switchboard")
    assert (shipped.butler.runtime.type, shipped.butler.runtime.model) == ("codex", "gpt-5.3-codex-spark")

    stand_in, gate = StandIn(tmp_path), tmp_path / "gate"
    waiting = f"import pathlib\nwhile not pathlib.Path({str(gate)!r}).exists(): time.sleep(0.01)"
    stand_in.prints(CODEX.plain_answer("Done."), before=waiting)
    command = (r'^type = "codex"', f'type = "codex"\ncommand = "{stand_in.path}"')
    roster = changed_roster(tmp_path, "switchboard", command)
    async with running_system(tmp_path, postgres_server, roster_dir=roster, llm="on", names=["switchboard"]) as running:
        assert (await ask(running, "status"))["runtime"] == "codex"
        asked = [asyncio.create_task(ask(running, "trigger", prompt=f"task {number}")) for number in range(5)]

        async def three() -> bool:
            return await running_sessions(running) == 3

        await running.until(three)
        await ask(running, "status")  # a round trip more, in which a fourth could have begun
        assert await running_sessions(running) == 3
        gate.touch()
        assert {answer["text"] for answer in await asyncio.gather(*asked)} == {"Done."}
        sessions = await running.database.fetch("SELECT status, runtime FROM switchboard.sessions")
        assert [(row["status"], row["runtime"]) for row in sessions] == [("completed", "codex")] * 5
    argv = stand_in.given()["argv"]
    assert argv[argv.index("--model") + 1] == "gpt-5.3-codex-spark"


@pytest.mark.scenario("S3-087")
async def test_enabled_modules(tmp_path: Path, postgres_server: EmbeddedPostgres) -> None:
    modules = load_roster(shipped_roster())["switchboard"].modules
    assert modules.telegram is not None
    assert modules.email is not None
    assert (modules.telegram.bot.enabled, modules.telegram.user.enabled) == (True, False)
    assert (modules.email.bot.enabled, modules.email.user.enabled) == (True, False)

    async with running_system(tmp_path, postgres_server) as running:
        assert set((await ask(running, "status"))["modules"]) == {"calendar", "telegram", "email", "memory"}
        # calendar: Google's, and it suggests other times.
        day = (running.clock.now() + timedelta(days=1)).replace(hour=10, minute=0, second=0, microsecond=0)
        when = {"start": day.isoformat(), "end": (day + timedelta(hours=1)).isoformat()}
        assert (await ask(running, "calendar_create_event", summary="Dentist", **when))["status"] == "created"
        taken = await ask(running, "calendar_create_event", summary="Haircut", **when)
        assert (taken["status"], len(taken["suggestions"])) == ("conflict", 3)
        # telegram: the bot hears what people write.
        await running.says("I paid the electricity bill")

        async def heard() -> Any:
            query = "SELECT request_context FROM switchboard.message_inbox LIMIT 1"
            return await running.database.fetchval(query)

        assert (await running.until(heard))["source_channel"] == "telegram"
        # memory: it remembers.
        await ask(running, "memory_store_fact", subject="Ann", predicate="car", content="a red Volvo")
        [fact] = (await ask(running, "memory_recall", query="car"))["memories"]
        assert fact["content"] == "a red Volvo"


@pytest.mark.scenario("S3-087")
@pytest.mark.parametrize(
    ("variable", "simulated", "given"),
    [
        ("BUTLER_TELEGRAM_TOKEN", Simulated({"mail"}), {}),
        ("BUTLER_EMAIL_ADDRESS", Simulated({"telegram"}), {}),
        (
            "BUTLER_EMAIL_PASSWORD",
            Simulated({"telegram"}),
            {"BUTLER_EMAIL_ADDRESS": "b@x"},
        ),
    ],
)
async def test_the_bots_credentials_are_needed_and_the_owners_are_not(
    tmp_path: Path, postgres_server: EmbeddedPostgres, variable: str, simulated: Simulated, given: dict[str, str]
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        async with running_system(
            tmp_path, postgres_server, simulated=simulated, environment=given, names=["switchboard"]
        ):
            raise AssertionError("it must not start")
    assert variable in str(caught.value)
    assert "USER_" not in str(caught.value)


def buffer_of(running: RunningSystem) -> dict[str, Any]:
    """The policy of the buffer that runs."""
    loop: Any = running.butler("switchboard").service("buffer").run
    buffer: DurableBuffer = loop.__self__
    return {name: getattr(buffer._policy, name) for name in SHIPPED_BUFFER}


@pytest.mark.scenario("S3-088")
async def test_buffer_configuration(tmp_path: Path, postgres_server: EmbeddedPostgres) -> None:
    async with running_system(tmp_path, postgres_server, names=["switchboard"]) as running:
        assert buffer_of(running) == SHIPPED_BUFFER
    shutil.rmtree(tmp_path / "data")
    roster = changed_roster(
        tmp_path,
        "switchboard",
        *((rf"^{name} = {value}$", f"{name} = {value + 1}") for name, value in SHIPPED_BUFFER.items()),
    )
    async with running_system(tmp_path, postgres_server, roster_dir=roster, names=["switchboard"]) as running:
        assert buffer_of(running) == {name: value + 1 for name, value in SHIPPED_BUFFER.items()}
