"""The memory module at Switchboard's door: its tools, the episodes that sessions leave, and its two jobs by cron."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import pytest_asyncio

from butlers.clock import ManualClock
from butlers.storage.database import Record
from butlers.storage.embedded import EmbeddedPostgres
from tests.scenarios.switchboard_door import call
from tests.system import RunningSystem, running_system

pytestmark = pytest.mark.asyncio(loop_scope="module")

START = datetime(2026, 6, 1, 7, 0, tzinfo=UTC)
TOOLS = {
    *(f"memory_store_{kind}" for kind in ("episode", "fact", "rule")),
    *(f"memory_{deed}" for deed in ("recall", "get", "forget", "confirm", "stats")),
}
NOBODY = "00000000-0000-7000-8000-000000000000"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def system(
    tmp_path_factory: pytest.TempPathFactory, postgres_server: EmbeddedPostgres
) -> AsyncIterator[RunningSystem]:
    names = ["switchboard", "general"]
    directory = tmp_path_factory.mktemp("memory")
    async with running_system(directory, postgres_server, clock=ManualClock(START), names=names) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def running(system: RunningSystem) -> RunningSystem:
    await settled(system, "memory-episode-cleanup", "memory-consolidation")
    for table in ("episodes", "facts", "rules", "corrections"):
        await system.database.execute(f"DELETE FROM switchboard.memory_{table}")
    return system


async def ask(running: RunningSystem, tool: str, *, caller: str = "operator", **arguments: Any) -> dict[str, Any]:
    async with running.mcp("switchboard", caller=caller) as client:
        return await call(client, tool, arguments)


async def memory(running: RunningSystem, deed: str, **arguments: Any) -> dict[str, Any]:
    answer = await ask(running, f"memory_{deed}", **arguments)
    assert "error" not in answer, answer
    return answer


def pass_time(running: RunningSystem, **span: float) -> None:
    assert isinstance(running.clock, ManualClock)
    running.clock.advance(timedelta(**span).total_seconds())


async def settled(running: RunningSystem, *schedules: str) -> None:
    """Nothing of theirs is due or under way."""
    await ask(running, "tick")

    async def at_rest() -> bool:
        rows = [await schedule(running, name) for name in schedules]
        due = [row for row in rows if row["next_run_at"] <= running.clock.now()]
        return not due and all(row["last_run_at"] is None or row["last_result"] for row in rows)

    await running.until(at_rest)


async def at(running: RunningSystem, hour: int, *schedules: str) -> dict[str, Any]:
    """Let the clock strike, and wait until these schedules have run; what each said."""
    await running.database.execute(
        "UPDATE switchboard.scheduled_tasks SET last_result = NULL WHERE name = ANY($1)", [*schedules]
    )
    now = running.clock.now()
    struck = now.replace(hour=hour, minute=0, second=0, microsecond=0)
    struck += timedelta(days=1) if struck <= now else timedelta()
    pass_time(running, seconds=(struck - now).total_seconds())
    await ask(running, "tick")

    async def ran() -> dict[str, Any]:
        rows = [await schedule(running, name) for name in schedules]
        done = all(row["last_run_at"] == struck and row["last_result"] for row in rows)
        return {row["name"]: row["last_result"] for row in rows} if done else {}

    return await running.until(ran)


async def schedule(running: RunningSystem, name: str) -> Record:
    row = await running.database.fetchrow("SELECT * FROM switchboard.scheduled_tasks WHERE name = $1", name)
    assert row is not None
    return row


async def episodes(running: RunningSystem) -> list[Record]:
    return await running.database.fetch("SELECT * FROM switchboard.memory_episodes ORDER BY id")


async def sessions(running: RunningSystem) -> list[str]:
    return [session["trigger_source"] for session in (await ask(running, "sessions_list"))["sessions"]]


# --- tools -----------------------------------------------------------------------------------------------------------


async def test_the_tools_are_where_the_module_is(running: RunningSystem) -> None:
    for butler, offered in (("switchboard", TOOLS), ("general", set())):
        async with running.mcp(butler) as client:
            names = {tool.name for tool in (await client.list_tools()).tools}
        assert {name for name in names if name.startswith("memory_")} == offered


async def test_a_fact_is_stored_found_confirmed_superseded_and_forgotten(running: RunningSystem) -> None:
    stored = await memory(
        running, "store_fact", subject="Ann", predicate="car", content="a red Volvo", permanence="volatile"
    )
    assert (stored["kind"], stored["status"]) == ("fact", "stored")
    pass_time(running, days=20)
    [found] = (await memory(running, "recall", query="What car does Ann drive?"))["memories"]
    assert (found["id"], found["content"]) == (stored["id"], "a red Volvo")
    assert 0.4 < found["effective_confidence"] < 0.6
    confirmed = await memory(running, "confirm", kind="fact", id=stored["id"])
    assert confirmed["memory"]["effective_confidence"] == 0.9

    newer = await memory(running, "store_fact", subject="ann", predicate="Car", content="a bicycle")
    assert newer["status"] == "superseded"
    [found] = (await memory(running, "recall", query="car"))["memories"]
    assert found["content"] == "a bicycle"
    whole = (await memory(running, "get", kind="fact", id=newer["id"]))["memory"]
    assert [version["content"] for version in whole["versions"]] == ["a red Volvo"]
    assert (await memory(running, "forget", kind="fact", id=newer["id"]))["forgotten"] == 2
    assert (await memory(running, "recall", query="car"))["memories"] == []
    assert await running.database.fetchval("SELECT count(*) FROM switchboard.memory_facts") == 0


async def test_a_rule_ripens_by_what_is_said_of_it(running: RunningSystem) -> None:
    rule = await memory(running, "store_rule", content="Answer in German")
    assert rule["maturity"] == "candidate"
    for expected in ("candidate", "candidate", "established"):
        assert (await memory(running, "confirm", kind="rule", id=rule["id"]))["maturity"] == expected
    for expected in ("established", "established", "established", "anti_pattern"):
        used = await memory(running, "confirm", kind="rule", id=rule["id"], outcome="harmful")
        assert used["maturity"] == expected
    whole = (await memory(running, "get", kind="rule", id=rule["id"]))["memory"]
    assert (whole["helpful_count"], whole["harmful_count"]) == (3, 4)


async def test_recall_comes_in_pages_best_first(running: RunningSystem) -> None:
    for number in range(7):
        await memory(
            running,
            "store_fact",
            subject=f"plant {number}",
            predicate="water",
            content="weekly",
            confidence=(number + 1) / 10,
        )
    first = await memory(running, "recall", query="water", limit=3)
    second = await memory(running, "recall", query="water", limit=3, offset=first["next_offset"])
    last = await memory(running, "recall", query="water", limit=3, offset=second["next_offset"])
    pages = [*first["memories"], *second["memories"], *last["memories"]]
    assert [found["subject"] for found in pages] == [f"plant {number}" for number in reversed(range(7))]
    assert last["next_offset"] is None
    assert [found["score"] for found in pages] == sorted((found["score"] for found in pages), reverse=True)


async def test_statistics_tell_how_much_is_remembered(running: RunningSystem) -> None:
    await memory(running, "store_episode", content="It rained")
    await memory(running, "store_fact", subject="Ann", predicate="name", content="Ann", permanence="permanent")
    await memory(running, "store_rule", content="Answer briefly", maturity="proven")
    assert await memory(running, "stats") == {
        "episodes": {
            "by": {"pending": 1},
            "total": 1,
            "oldest_unread_at": running.clock.now().isoformat().replace("+00:00", "Z"),
        },
        "facts": {"by": {"permanent": 1}, "total": 1},
        "rules": {"by": {"proven": 1}, "total": 1},
    }


@pytest.mark.parametrize(
    ("tool", "arguments", "field"),
    [
        ("store_fact", {"subject": "Ann", "predicate": "car", "content": " "}, "content"),
        ("store_fact", {"subject": "Ann", "predicate": "car", "content": "x" * 2001}, "content"),
        ("store_fact", {"subject": "Ann", "predicate": "car", "content": "x", "permanence": "eternal"}, "permanence"),
        ("store_fact", {"subject": "Ann", "predicate": "car", "content": "x", "confidence": 1.1}, "confidence"),
        ("store_episode", {"content": "x", "importance": -0.1}, "importance"),
        ("store_episode", {"content": "x\x00y"}, "content"),
        ("store_rule", {"content": "x", "maturity": "perfect"}, "maturity"),
        ("recall", {"query": "the of and"}, "query"),
        ("recall", {"query": "x", "limit": 51}, "limit"),
        ("recall", {"query": "x", "offset": -1}, "offset"),
        ("recall", {"query": "x", "kinds": ["dream"]}, "kinds.0"),
        ("get", {"kind": "fact", "id": NOBODY}, "id"),
        ("get", {"kind": "episode", "id": "first"}, "id"),
        ("forget", {"kind": "rule", "id": NOBODY}, "id"),
        ("confirm", {"kind": "fact", "id": NOBODY}, "id"),
        ("confirm", {"kind": "rule", "id": NOBODY}, "id"),
        ("confirm", {"kind": "fact", "id": NOBODY, "outcome": "harmful"}, "outcome"),
        ("confirm", {"kind": "episode", "id": NOBODY}, "kind"),
    ],
)
async def test_a_wrong_call_is_refused_by_field(
    running: RunningSystem, tool: str, arguments: dict[str, Any], field: str
) -> None:
    answer = await ask(running, f"memory_{tool}", **arguments)
    assert answer["error"]["class"] == "validation_error"
    assert [wrong["field"] for wrong in answer["error"]["fields"]] == [field]
    assert (await memory(running, "stats"))["facts"]["total"] == 0


async def test_another_butler_cannot_read_or_write_this_memory(running: RunningSystem) -> None:
    for tool, arguments in (
        ("memory_recall", {"query": "Ann"}),
        ("memory_store_fact", {"subject": "Ann", "predicate": "car", "content": "x"}),
    ):
        answer = await ask(running, tool, caller="general", **arguments)
        assert [wrong["field"] for wrong in answer["error"]["fields"]] == ["authorization"]


# --- what happens is remembered --------------------------------------------------------------------------------------


async def test_a_session_leaves_an_episode_of_bounded_length(running: RunningSystem) -> None:
    said = "My dentist is Dr. Weiss. " + "And so on. " * 1000
    answer = await ask(running, "trigger", prompt=said)
    [episode] = await episodes(running)
    [session] = (await ask(running, "sessions_list", limit=1))["sessions"]
    assert (str(episode["session_id"]), episode["source"]) == (session["id"], "trigger:operator")
    assert (episode["content"][:24], len(episode["content"])) == ("My dentist is Dr. Weiss.", 2000)
    assert episode["answer"] == answer["text"]
    assert episode["importance"] == 0.85  # it says something
    assert episode["expires_at"] - episode["created_at"] == timedelta(days=7)


async def test_a_schedule_that_nobody_carried_out_is_no_episode(running: RunningSystem) -> None:
    await ask(running, "schedule_create", name="digest", cron="30 7 * * *", prompt="My name is Bob. Sum up.")
    pass_time(running, days=1)
    await ask(running, "tick")

    async def ran() -> Any:
        return (await schedule(running, "digest"))["last_result"]

    assert (await running.until(ran))["status"] == "skipped"
    assert await episodes(running) == []
    await ask(running, "schedule_delete", name="digest")


# --- the jobs, by cron -----------------------------------------------------------------------------------------------


@pytest.mark.scenario("S3-090")
async def test_episodes_are_consolidated_by_cron_without_the_runtime(running: RunningSystem) -> None:
    await ask(running, "trigger", prompt="Remember: my dentist is Dr. Weiss. I'm allergic to nuts")
    await memory(running, "store_episode", content="I moved to Graz", speaker="Ann")
    for _ in range(2):
        await memory(running, "store_episode", content="Please don't call before nine")
    before = await sessions(running)
    said = (await at(running, 12, "memory-consolidation"))["memory-consolidation"]

    result = {"claimed": 4, "consolidated": 4, "returned": 0, "dead": 0, "facts": 3, "rules": 1}
    assert said == {"status": "ok", "mode": "native", "result": result}
    new = (await sessions(running))[: -len(before)]
    # The connectors' jobs have no native code yet and do ask the runtime; nothing else did.
    assert not [source for source in new if not source.startswith("schedule:connector-")]
    row = await schedule(running, "memory-consolidation")
    assert row["next_run_at"] == row["last_run_at"] + timedelta(hours=6)
    [dentist] = (await memory(running, "recall", query="dentist", kinds=["fact"]))["memories"]
    assert (dentist["subject"], dentist["content"], dentist["origin"]) == ("owner", "Dr Weiss", "local")
    [ann] = (await memory(running, "recall", query="where does Ann live", kinds=["fact"]))["memories"]
    assert (ann["subject"], ann["content"]) == ("Ann", "Graz")
    [rule] = (await memory(running, "recall", query="call", kinds=["rule"]))["memories"]
    assert (rule["content"], rule["maturity"]) == ("Don't call before nine", "candidate")

    again = (await at(running, 18, "memory-consolidation"))["memory-consolidation"]
    assert again["result"]["claimed"] == 0


async def test_old_episodes_are_removed_by_cron(running: RunningSystem) -> None:
    await memory(running, "store_episode", content="I like olives", importance=0.2)
    await at(running, 0, "memory-consolidation")
    removed = []
    for day in range(8):
        [said] = (await at(running, 4, "memory-episode-cleanup")).values()
        removed.append(said["result"]["removed"])
        if day == 4:
            await memory(running, "store_episode", content="It rained", importance=0.2)

    assert removed == [0, 0, 0, 0, 0, 0, 0, 1]  # it happened more than seven days ago
    assert (said["status"], said["mode"], said["result"]["kept"]) == ("ok", "native", 0)
    assert [row["content"] for row in await episodes(running)] == ["It rained"]
    [kept] = (await memory(running, "recall", query="olives"))["memories"]  # what it taught outlives it
    assert (kept["kind"], kept["content"]) == ("fact", "likes")
    assert not [source for source in await sessions(running) if source.startswith("schedule:memory")]


async def test_missed_runs_are_run_once(running: RunningSystem) -> None:
    both = ("memory-episode-cleanup", "memory-consolidation")
    pass_time(running, days=3)
    await settled(running, *both)
    ticked = await ask(running, "tick")
    assert not [run for run in ticked["ran"] if run["name"] in both]
    for name in both:
        row = await schedule(running, name)
        assert row["last_run_at"] == running.clock.now()
        assert row["next_run_at"] - running.clock.now() <= timedelta(days=1)
