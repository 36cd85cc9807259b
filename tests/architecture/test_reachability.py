"""Wired or it does not exist: what the running system offers, asked at its doors."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
import pytest_asyncio

from butlers.storage.embedded import EmbeddedPostgres
from butlers.telemetry.catalogue import BUFFER, BUTLER, CATALOGUE, MESSENGER, OUTBOUND, SWITCHBOARD, WEBHOOKS
from tests.system import RunningSystem, running_system

ROSTER = ("finance", "general", "health", "messenger", "relationship", "switchboard", "travel")

# facts.md, section 4.
CORE_TOOLS = {
    *("status", "trigger", "route.execute", "tick"),
    *(f"state_{action}" for action in ("get", "set", "delete", "list")),
    *(f"schedule_{action}" for action in ("list", "create", "update", "delete")),
    *("sessions_list", "sessions_get"),
}
SPEAKING_TOOLS = {"notify", "send_message", "remind"}
SWITCHBOARD_TOOLS = {
    "ingest",
    "ingest.batch",
    "notify.dispatch",
    "register_butler",
    "butler.heartbeat",
    *(f"butler.{action}" for action in ("hold", "release", "history")),
    *(f"senders.{action}" for action in ("refused", "pairings", "approve", "allow", "remove", "owner_code")),
    *(f"templates.{action}" for action in ("list", "show", "put", "preview")),
    *(f"messages.{action}" for action in ("send", "explain", "list", "show", "cancel", "acknowledge", "replay")),
    "messages.service_levels",
    *(f"preferences.{action}" for action in ("show", "set", "mute", "unmute", "quiet_hours", "replace")),
    *(f"preferences.{action}" for action in ("organization", "replace_organization", "defaults", "replace_defaults")),
    *(f"entitlements.{action}" for action in ("list", "grant", "revoke", "join", "leave")),
    "list_butlers",
    *("request.lineage", "request.list", "request.counts"),
    *(f"request.{action}" for action in ("reroute", "cancel", "abort", "retry", "replay", "force_complete")),
    *("request.dead_letters", "request.audit", "audit.list", "audit.record"),
    *(f"routing.{action}" for action in ("status", "rollback", "resume")),
    *(f"extraction.{action}" for action in ("list", "confirm", "dismiss")),
    "service_levels",
    "events.publish",
    *(f"webhooks.{action}" for action in ("create", "list", "show", "delete", "enable", "disable", "rotate_secret")),
    *(f"webhooks.{action}" for action in ("deliveries", "replay", "ping", "publish")),
    *(f"senders.{action}" for action in ("refused", "pairings", "approve", "allow", "remove", "owner_code")),
    *("connector.heartbeat", "connectors.list", "connectors.deregister", "create_backfill_job"),
    *(f"connectors.{action}" for action in ("show", "stats", "summary", "fanout")),
    *(f"backfill.{action}" for action in ("pause", "cancel", "resume", "list", "poll", "progress")),
}

MODULE_TOOLS = {
    *(f"memory_store_{kind}" for kind in ("episode", "fact", "rule")),
    *(f"memory_{action}" for action in ("recall", "get", "forget", "confirm", "stats")),
    *(f"calendar_{action}_event" for action in ("get", "create", "update", "delete")),
    *("calendar_list_events", "calendar_find_free_slots"),
}

# Every scheduled job runs as code; none is a prompt for the runtime.
ON_SPARK = {"connector_stats_hourly_rollup", "connector_stats_daily_rollup", "connector_stats_pruning"}
NATIVE_JOBS = {"eligibility_sweep", "memory_consolidation", "memory_episode_cleanup"} | ON_SPARK
NOT_SCHEDULED_YET = {"remind", "service_levels"}  # until somebody asks for it


Listed = Mapping[tuple[str, str], set[str]]  # by butler and path

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(
    tmp_path_factory: pytest.TempPathFactory, postgres_server: EmbeddedPostgres
) -> AsyncIterator[RunningSystem]:
    """One system for all tests of this file: they ask, and none spoils what another asks for."""
    async with running_system(tmp_path_factory.mktemp("system"), postgres_server) as system:
        yield system


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def listed(running: RunningSystem) -> Listed:
    """The tools at both doors of every butler."""
    doors = [(butler, path) for butler in ROSTER for path in ("/mcp", "/mcp/llm")]
    return {(butler, path): await running.listed_tools(butler, path=path) for butler, path in doors}


# --- tools -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_every_tool_is_served_at_both_doors(running: RunningSystem, listed: Listed) -> None:
    assert set(running.urls) == set(ROSTER)
    for butler in running.system.butlers:
        names = set(butler.tools.names())
        assert listed[butler.name, "/mcp"] == names
        assert listed[butler.name, "/mcp/llm"] == {name.replace(".", "_") for name in names}


@pytest.mark.slow
async def test_every_butler_has_the_core_tools_and_only_messenger_cannot_speak(listed: Listed) -> None:
    for name in ROSTER:
        tools = listed[name, "/mcp"]
        assert tools >= CORE_TOOLS, name
        # Messenger must not call notify recursively.
        assert tools & SPEAKING_TOOLS == (set() if name == "messenger" else SPEAKING_TOOLS), name


async def test_switchboard_has_its_own_tools(listed: Listed) -> None:
    own = listed["switchboard", "/mcp"] - CORE_TOOLS - SPEAKING_TOOLS
    assert own == {"trace", *SWITCHBOARD_TOOLS, *MODULE_TOOLS}


async def test_tools_answer_under_both_names(running: RunningSystem) -> None:
    """The name on the list is the name that works: the refusal of an empty envelope comes from the tool itself."""
    for path, name in (("/mcp", "route.execute"), ("/mcp/llm", "route_execute")):
        async with running.mcp("finance", path=path) as client:
            answer: Any = (await client.call_tool(name, {})).structured_content
        assert answer["schema_version"] == "route_response.v1"
        assert answer["error"]["class"] == "validation_error"


# --- jobs ------------------------------------------------------------------------------------------------------------


async def test_every_scheduled_job_is_native(running: RunningSystem) -> None:
    scheduled = {
        entry.job_name
        for config in running.roster.values()
        for entry in config.butler.schedule
        if entry.dispatch_mode == "job"
    }
    native = {name for butler in running.system.butlers if butler.scheduler for name in butler.scheduler.job_names}
    assert scheduled == NATIVE_JOBS
    assert native - scheduled == NOT_SCHEDULED_YET


async def test_every_scheduled_job_runs_when_it_is_due(running: RunningSystem) -> None:
    """Those of the pipeline are in tests/pipeline/test_scenarios.py, with Spark."""
    await running.database.execute(
        "update switchboard.scheduled_tasks set next_run_at = now() - interval '1 minute' where job_name <> all($1)",
        list(ON_SPARK),
    )

    async def outcomes() -> dict[str, tuple[str, str]]:
        rows = await running.database.fetch(
            "select job_name, last_result from switchboard.scheduled_tasks where job_name <> all($1)", list(ON_SPARK)
        )
        done = {row["job_name"]: row["last_result"] for row in rows if row["last_result"]}
        complete = len(done) == len(rows)
        return {name: (result.get("mode", ""), result["status"]) for name, result in done.items()} if complete else {}

    assert await running.until(outcomes) == dict.fromkeys(NATIVE_JOBS - ON_SPARK, ("native", "ok"))


# --- metrics and health ----------------------------------------------------------------------------------------------


async def test_metrics_of_a_message_are_shown_where_it_went(running: RunningSystem) -> None:
    reply = await running.ingest("I paid the electricity bill")
    await running.finished(reply["request_id"])
    shown = {name: await _families(running, name) for name in ("switchboard", "finance", "messenger")}
    assert {"butlers_switchboard_message_received", "butlers_switchboard_end_to_end_latency_ms"} <= shown["switchboard"]
    assert {"butlers_buffer_enqueue", "butlers_buffer_process_latency_ms"} <= shown["switchboard"]
    assert {"butlers_butler_route_executed", "butlers_butler_route_latency_ms"} <= shown["finance"]
    assert {"butlers_messenger_delivery_requested", "butlers_messenger_delivery_sent"} <= shown["messenger"]
    known = {metric.prometheus_name.removesuffix("_total") for metric in CATALOGUE}
    assert set().union(*shown.values()) <= known
    assert len(CATALOGUE) == sum(map(len, (SWITCHBOARD, BUFFER, MESSENGER, OUTBOUND, WEBHOOKS, BUTLER)))


async def test_every_butler_says_that_it_is_well(running: RunningSystem) -> None:
    for name, url in running.urls.items():
        response = await running.http.get(f"{url}/readyz")
        assert (response.status_code, response.json()["butler"]) == (200, name)


async def _families(running: RunningSystem, butler: str) -> set[str]:
    text = (await running.http.get(running.url(butler, "/metrics"))).text
    names = (line.split()[2] for line in text.splitlines() if line.startswith("# TYPE butlers_"))
    return {name.removesuffix("_total") for name in names}
