"""Switchboard as it is configured and its schedules, seen from the running system; cron enters by `tick`."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from butlers.daemon.settings import shipped_roster
from butlers.errors import ConfigurationError
from butlers.storage.database import Record
from butlers.storage.embedded import EmbeddedPostgres
from tests.scenarios.switchboard_door import call
from tests.system import RunningSystem, running_system

pytestmark = pytest.mark.asyncio(loop_scope="module")

INVENTORY = {
    "connector-stats-hourly-rollup": "5 * * * *",
    "connector-stats-daily-rollup": "15 0 * * *",
    "connector-stats-pruning": "30 1 * * *",
    "memory-consolidation": "0 */6 * * *",
    "memory-episode-cleanup": "0 4 * * *",
    "eligibility-sweep": "*/5 * * * *",
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(
    tmp_path_factory: pytest.TempPathFactory, postgres_server: EmbeddedPostgres
) -> AsyncIterator[RunningSystem]:
    async with running_system(tmp_path_factory.mktemp("schedules"), postgres_server) as system:
        yield system


async def ask(running: RunningSystem, tool: str, butler: str = "switchboard", **arguments: Any) -> dict[str, Any]:
    async with running.mcp(butler) as client:
        return await call(client, tool, arguments)


async def run_now(running: RunningSystem, name: str, butler: str = "switchboard") -> dict[str, Any]:
    """Make a schedule due and tick; what its run said (the butler's own tick may have been first)."""
    await running.database.execute(
        f"UPDATE {butler}.scheduled_tasks SET next_run_at = $2, last_result = NULL WHERE name = $1",
        name,
        running.clock.now(),
    )
    await ask(running, "tick", butler)

    async def result() -> Any:
        return (await schedule(running, name, butler))["last_result"]

    outcome: dict[str, Any] = await running.until(result)
    return outcome


async def schedule(running: RunningSystem, name: str, butler: str = "switchboard") -> Record:
    row = await running.database.fetchrow(f"SELECT * FROM {butler}.scheduled_tasks WHERE name = $1", name)
    assert row is not None
    return row


async def sessions(running: RunningSystem, butler: str = "switchboard") -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = (await ask(running, "sessions_list", butler))["sessions"]
    return listed


# --- as configured ---------------------------------------------------------------------------------------------------


async def test_the_running_switchboard_is_the_configured_one(running: RunningSystem) -> None:
    status = await ask(running, "status")
    assert (status["status"], status["butler"]) == ("ok", "switchboard")
    assert status["modules"] == ["calendar", "email", "memory", "telegram"]
    tables = await running.database.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'switchboard'")
    assert {"ingress_dedupe", "butler_registry", "routing_log"} <= {table["tablename"] for table in tables}


@pytest.mark.scenario("S3-089")
async def test_scheduled_task_inventory(running: RunningSystem) -> None:
    before = await sessions(running)
    listed = (await ask(running, "schedule_list"))["schedules"]
    assert {entry["name"]: entry["cron"] for entry in listed} == INVENTORY
    assert {entry["dispatch_mode"] for entry in listed} == {"job"}
    assert all(entry["enabled"] and entry["next_run_at"] for entry in listed)
    for name in INVENTORY:
        outcome = await run_now(running, name)
        assert (outcome["status"], outcome["mode"]) == ("ok", "native"), name
        # What is on Spark is run in tests/pipeline/test_scenarios.py; here its master is none, and it says so.
        assert ("skipped" in outcome["result"]) == name.startswith("connector-stats"), outcome
    assert await sessions(running) == before  # no runtime was asked


# --- running ---------------------------------------------------------------------------------------------------------


@pytest.mark.scenario("S3-090")
async def test_native_mode_execution(running: RunningSystem) -> None:
    await running.database.execute(
        "UPDATE switchboard.butler_registry SET last_seen_at = $1 WHERE name = 'travel'",
        running.clock.now() - timedelta(seconds=301),
    )
    before = await sessions(running)
    outcome = await run_now(running, "eligibility-sweep")

    changed = [{"butler": "travel", "from": "active", "to": "stale"}]
    assert outcome == {"status": "ok", "mode": "native", "result": {"changed": changed}}
    assert await sessions(running) == before  # no runtime was asked
    row = await schedule(running, "eligibility-sweep")
    assert row["next_run_at"] > row["last_run_at"]
    assert row["next_run_at"].minute % 5 == 0


@pytest.mark.scenario("S3-091")
async def test_runtime_mode_fallback_for_schedules(running: RunningSystem) -> None:
    await ask(running, "schedule_create", name="weekly-summary", cron="0 9 * * 1", prompt="Sum up the week.")
    outcome = await run_now(running, "weekly-summary")

    assert outcome["mode"] == "runtime"
    [session] = [s for s in await sessions(running) if s["trigger_source"] == "schedule:weekly-summary"]
    assert session["status"] == "completed"
    whole = (await ask(running, "sessions_get", session_id=session["id"]))["session"]
    assert whole["result"] == outcome["result"]["text"]


@pytest.mark.scenario("S3-091")
async def test_a_job_without_native_code_falls_back_and_does_not_pretend(running: RunningSystem) -> None:
    await running.database.execute(
        "INSERT INTO switchboard.scheduled_tasks (name, cron, dispatch_mode, job_name, source, created_at, updated_at)"
        " VALUES ('from-the-future', '0 0 1 1 *', 'job', 'unheard_of', 'tool', now(), now())"
    )
    outcome = await run_now(running, "from-the-future")
    assert (outcome["status"], outcome["mode"]) == ("skipped", "runtime")
    [session] = [s for s in await sessions(running) if s["trigger_source"] == "schedule:from-the-future"]
    assert session["status"] == "completed"


async def test_what_is_due_runs_once_however_many_tick(running: RunningSystem) -> None:
    await ask(running, "schedule_create", name="once-only", cron="0 0 1 1 *", prompt="Happy new year.")
    await running.database.execute(
        "UPDATE switchboard.scheduled_tasks SET next_run_at = $1 WHERE name = 'once-only'",
        running.clock.now() - timedelta(days=400),  # two of them were missed
    )
    async with running.mcp("switchboard") as client:
        for _ in range(3):
            await call(client, "tick")

    async def ran() -> bool:
        return (await schedule(running, "once-only"))["last_result"] is not None

    await running.until(ran)
    runs = [s for s in await sessions(running) if s["trigger_source"] == "schedule:once-only"]
    assert len(runs) == 1


async def test_a_disabled_schedule_does_not_run(running: RunningSystem) -> None:
    await ask(running, "schedule_create", name="resting", cron="0 0 1 1 *", prompt="Do not run.")
    answer = await ask(running, "schedule_update", name="resting", enabled=False)
    assert answer["enabled"] is False
    await running.database.execute(
        "UPDATE switchboard.scheduled_tasks SET next_run_at = $1 WHERE name = 'resting'", running.clock.now()
    )
    ran = (await ask(running, "tick"))["ran"]
    assert "resting" not in {run["name"] for run in ran}
    assert (await schedule(running, "resting"))["last_run_at"] is None
    assert (await ask(running, "schedule_delete", name="resting")) == {"name": "resting", "deleted": True}


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"cron": "every day", "prompt": "x"}, "cron"),
        ({"cron": "* * * * * *", "prompt": "x"}, "cron"),  # seconds
        ({"cron": "0 0 31 2 *", "prompt": "x"}, "cron"),  # never
        ({"cron": "0 0 * * *", "job_name": "no_such_job"}, "job_name"),
        ({"cron": "0 0 * * *"}, "prompt"),
        ({"cron": "0 0 * * *", "job_name": "remind"}, "job_args.message"),
        ({"cron": "0 0 * * *", "job_name": "remind", "job_args": {"message": "x", "to": "y"}}, "job_args.to"),
    ],
)
async def test_a_schedule_that_cannot_run_is_refused(
    running: RunningSystem, arguments: dict[str, Any], field: str
) -> None:
    answer = await ask(running, "schedule_create", name="impossible", **arguments)
    assert answer["error"]["class"] == "validation_error"
    assert [wrong["field"] for wrong in answer["error"]["fields"]] == [field]


async def test_schedules_of_the_roster_survive_a_restart_and_cannot_be_deleted(
    tmp_path_factory: pytest.TempPathFactory, postgres_server: EmbeddedPostgres
) -> None:
    async with running_system(tmp_path_factory.mktemp("kept"), postgres_server) as running:
        refusal = await ask(running, "schedule_delete", name="eligibility-sweep")
        assert refusal["error"]["class"] == "validation_error"
        await ask(running, "schedule_create", name="my-own", cron="0 9 * * 1", prompt="Mine.")
        due = (await schedule(running, "eligibility-sweep"))["next_run_at"]
        await running.database.execute(
            "INSERT INTO switchboard.scheduled_tasks (name, cron, dispatch_mode, source, created_at, updated_at)"
            " VALUES ('gone-from-the-roster', '0 0 * * *', 'job', 'toml', now(), now())"
        )
        await running.restart()

        listed = {entry["name"] for entry in (await ask(running, "schedule_list"))["schedules"]}
        assert listed == {*INVENTORY, "my-own"}
        assert (await schedule(running, "eligibility-sweep"))["next_run_at"] >= due


async def test_a_reminder_is_sent_once_when_it_is_due(running: RunningSystem) -> None:
    due = running.clock.now() + timedelta(hours=1)
    created = await ask(running, "remind", "health", message="take the pills", due_at=due.isoformat())
    assert not [text for text in await running.answers() if "pills" in text]
    outcome = await run_now(running, created["name"], "health")

    assert (outcome["status"], outcome["mode"]) == ("ok", "native")
    assert [text for text in await running.answers() if "pills" in text] == ["[health] take the pills"]
    spent = await schedule(running, created["name"], "health")
    assert (spent["enabled"], spent["next_run_at"]) == (False, None)
    past = (running.clock.now() - timedelta(hours=1)).isoformat()
    refusal = await ask(running, "remind", "health", message="too late", due_at=past)
    assert [wrong["field"] for wrong in refusal["error"]["fields"]] == ["due_at"]


async def test_a_reminder_stays_due_until_it_is_sent(running: RunningSystem) -> None:
    """A crash between taking it and sending it must not lose it."""
    due = running.clock.now() + timedelta(hours=1)
    created = await ask(running, "remind", "health", message="feed the cat", due_at=due.isoformat())
    await running.control("POST", "/faults", {"method": "sendMessage", "kind": "delay", "seconds": 0.5})
    sending = asyncio.create_task(run_now(running, created["name"], "health"))

    async def under_way() -> Any:
        return (await schedule(running, created["name"], "health"))["last_run_at"]

    taken_at = await running.until(under_way)
    taken = await schedule(running, created["name"], "health")
    assert (taken["enabled"], taken["last_result"]) == (True, None)
    assert taken["next_run_at"] > taken_at  # where a dead process would leave it
    await sending
    assert [text for text in await running.answers() if "cat" in text] == ["[health] feed the cat"]
    again = await run_again(running, created["name"])
    assert again["result"]["delivery"]["deduplicated"] is True
    assert len([text for text in await running.answers() if "cat" in text]) == 1


async def run_again(running: RunningSystem, name: str) -> dict[str, Any]:
    """As after a crash that kept the message from being recorded as sent."""
    await running.database.execute("UPDATE health.scheduled_tasks SET enabled = true WHERE name = $1", name)
    return await run_now(running, name, "health")


# --- reminders that recur --------------------------------------------------------------------------------------------

PAGE = Path(__file__).parents[2] / "docs" / "systems" / "butler.md"


def example(language: str, of: str) -> str:
    """The example of the page that mentions `of`, as it is written there."""
    fences = PAGE.read_text(encoding="utf-8").split("```")[1::2]
    [found] = [fence.removeprefix(language) for fence in fences if fence.startswith(language) and of in fence]
    return found


def roster_with(tmp_path: Path, schedule: str) -> Path:
    roster = tmp_path / "roster"
    shutil.copytree(shipped_roster(), roster)
    with (roster / "health" / "butler.toml").open("a", encoding="utf-8") as file:
        file.write(f"\n{schedule}")
    return roster


async def test_the_reminders_of_the_page_work_as_written_and_recur(
    tmp_path: Path, postgres_server: EmbeddedPostgres
) -> None:
    roster = roster_with(tmp_path, example("toml", "morning-pills"))
    async with running_system(tmp_path, postgres_server, roster_dir=roster) as running:
        created = await ask(running, "schedule_create", "health", **json.loads(example("json", "water-the-plants")))
        assert "error" not in created
        for name, text in (("morning-pills", "Take your pills"), ("water-the-plants", "Water the plants")):
            for said in (1, 2):
                outcome = await run_now(running, name, "health")
                assert (outcome["status"], outcome["mode"]) == ("ok", "native"), outcome
                assert (await running.answers()).count(f"[health] {text}") == said
            row = await schedule(running, name, "health")
            assert row["enabled"] and row["next_run_at"] > running.clock.now()


@pytest.mark.parametrize(
    ("changed", "key", "told"),
    [
        (('"remind"', '"remnid"'), "butler.schedule.0.job_name", "remind"),
        (("message", "massage"), "butler.schedule.0.job_args.massage", "morning-pills"),
    ],
)
async def test_a_schedule_of_butler_toml_that_cannot_run_stops_the_start(
    tmp_path: Path, postgres_server: EmbeddedPostgres, changed: tuple[str, str], key: str, told: str
) -> None:
    roster = roster_with(tmp_path, example("toml", "morning-pills").replace(*changed))
    with pytest.raises(ConfigurationError) as refused:
        async with running_system(tmp_path, postgres_server, roster_dir=roster):
            pass
    assert refused.value.key == key
    assert str(roster / "health" / "butler.toml") in str(refused.value)
    assert told in str(refused.value)
