"""Who can take work: butlers register, give signs of life, and are left out while they are silent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
import pytest_asyncio

from butlers.storage.database import Record
from butlers.storage.embedded import EmbeddedPostgres
from tests.scenarios.messenger_door import changed_roster
from tests.scenarios.switchboard_door import call, post
from tests.system import RunningSystem, running_system

pytestmark = pytest.mark.asyncio(loop_scope="module")

SPECIALISTS = {"finance", "relationship", "health", "travel"}
TTL_S = 300  # liveness_ttl_seconds


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(
    tmp_path_factory: pytest.TempPathFactory, postgres_server: EmbeddedPostgres
) -> AsyncIterator[RunningSystem]:
    # The butlers' own heartbeats are too rare to interfere.
    async with running_system(tmp_path_factory.mktemp("registry"), postgres_server, heartbeat_s=3600) as system:
        yield system


@pytest_asyncio.fixture(autouse=True, loop_scope="module")
async def everybody_is_active(running: RunningSystem) -> None:
    await running.database.execute(
        "UPDATE switchboard.butler_registry SET last_seen_at = $1, eligibility_state = 'active',"
        " quarantined_at = NULL, quarantine_reason = NULL",
        running.clock.now(),
    )
    await running.database.execute("DELETE FROM switchboard.butler_eligibility_log")


async def beat(running: RunningSystem, butler: str) -> dict[str, Any]:
    async with running.mcp("switchboard", caller=butler) as client:
        return await call(client, "butler.heartbeat")


async def silent_for(running: RunningSystem, butler: str, seconds: float) -> None:
    await running.database.execute(
        "UPDATE switchboard.butler_registry SET last_seen_at = $2 WHERE name = $1",
        butler,
        running.clock.now() - timedelta(seconds=seconds),
    )


async def sweep(running: RunningSystem) -> dict[str, Any]:
    """Let the cron `eligibility-sweep` be due, and tick."""
    await running.database.execute(
        "UPDATE switchboard.scheduled_tasks SET next_run_at = $1, last_result = NULL WHERE name = 'eligibility-sweep'",
        running.clock.now(),
    )
    async with running.mcp("switchboard") as client:
        ran = await call(client, "tick")
    # The system's own tick may have been first; the record tells either way.
    result: dict[str, Any] = await running.until(lambda: last_result(running))
    assert ran["ran"] in ([], [{"name": "eligibility-sweep", **result}])
    return result


async def last_result(running: RunningSystem) -> Any:
    return await running.database.fetchval(
        "SELECT last_result FROM switchboard.scheduled_tasks WHERE name = 'eligibility-sweep'"
    )


async def registered(running: RunningSystem, butler: str) -> Record:
    row = await running.database.fetchrow("SELECT * FROM switchboard.butler_registry WHERE name = $1", butler)
    assert row is not None
    return row


async def audited(running: RunningSystem, butler: str) -> list[tuple[str | None, str, str]]:
    rows = await running.database.fetch(
        "SELECT previous, new, reason FROM switchboard.butler_eligibility_log WHERE butler = $1 ORDER BY id", butler
    )
    return [(row["previous"], row["new"], row["reason"]) for row in rows]


async def routed_to(running: RunningSystem, text: str) -> str:
    reply = await running.ingest(text)
    trace = await running.finished(reply["request_id"])
    assert trace["lifecycle_state"] == "parsed", trace["lifecycle_error"]
    butler: str = trace["routing"]["decision"]["segments"][0]["butler"]
    return butler


@pytest.mark.scenario("S3-036")
@pytest.mark.parametrize(
    ("butler", "text"),
    [
        ("finance", "the invoice and the receipt of my subscription"),
        ("relationship", "Anna's birthday is soon, I need a gift"),
        ("health", "I took my medication and my blood pressure was high"),
        ("travel", "my flight and the hotel reservation are booked"),
        ("general", "the sky is very blue over the barn"),
    ],
)
async def test_available_specialist_butlers(running: RunningSystem, butler: str, text: str) -> None:
    assert await routed_to(running, text) == butler
    cards = {card["name"]: card for card in (await butlers_over_http(running))}
    assert {*SPECIALISTS, "general"} <= cards.keys()
    assert cards[butler]["eligibility_state"] == "active"
    assert "route.execute" in cards[butler]["capabilities"]


async def butlers_over_http(running: RunningSystem) -> list[dict[str, Any]]:
    answer: list[dict[str, Any]] = (await running.http.get(running.url(path="/api/butlers"))).json()["butlers"]
    return answer


async def test_the_registry_says_where_everybody_is(running: RunningSystem) -> None:
    async with running.mcp("switchboard") as client:
        over_mcp = (await call(client, "list_butlers"))["butlers"]
    assert {card["name"]: card["endpoint_url"] for card in over_mcp} == running.urls
    assert [card["name"] for card in over_mcp] == [card["name"] for card in await butlers_over_http(running)]


@pytest.mark.scenario("S3-037", "S3-041")
async def test_heartbeat_based_liveness_by_the_eligibility_sweep(running: RunningSystem) -> None:
    for butler, silence in (("finance", TTL_S - 30), ("travel", TTL_S + 5), ("health", 2 * TTL_S + 5)):
        await silent_for(running, butler, silence)
    sessions = await running.database.fetchval("SELECT count(*) FROM switchboard.sessions")
    outcome = await sweep(running)

    assert (outcome["status"], outcome["mode"]) == ("ok", "native")
    states = {name: (await registered(running, name))["eligibility_state"] for name in ("finance", "travel", "health")}
    assert states == {"finance": "active", "travel": "stale", "health": "quarantined"}
    quarantined = await registered(running, "health")
    assert quarantined["quarantined_at"] is not None
    assert quarantined["quarantine_reason"] == "liveness_expired"
    assert await audited(running, "travel") == [("active", "stale", "liveness_expired")]
    assert await audited(running, "health") == [("active", "quarantined", "liveness_expired")]
    assert await running.database.fetchval("SELECT count(*) FROM switchboard.sessions") == sessions
    async with running.mcp("switchboard") as client:
        crons = {entry["name"]: entry["cron"] for entry in (await call(client, "schedule_list"))["schedules"]}
    assert crons["eligibility-sweep"] == "*/5 * * * *"


@pytest.mark.scenario("S3-038")
async def test_quarantine_auto_recovery_via_heartbeat(running: RunningSystem) -> None:
    await silent_for(running, "health", 2 * TTL_S + 5)
    await sweep(running)
    assert await beat(running, "health") == {"status": "ok", "registered": True}

    recovered = await registered(running, "health")
    assert recovered["eligibility_state"] == "active"
    assert (recovered["quarantined_at"], recovered["quarantine_reason"]) == (None, None)
    assert (await audited(running, "health"))[-1] == ("quarantined", "active", "heartbeat_recovery")
    await beat(running, "health")  # a second sign of life changes nothing and is not audited
    assert len(await audited(running, "health")) == 2
    assert (await sweep(running))["result"] == {"changed": []}


@pytest.mark.scenario("S3-038")
async def test_a_heartbeat_does_not_race_with_an_operator(running: RunningSystem) -> None:
    await silent_for(running, "health", 2 * TTL_S + 5)
    await sweep(running)
    async with running.database.transaction() as operator:
        await operator.execute(
            "UPDATE switchboard.butler_registry SET eligibility_state = 'stale', quarantined_at = NULL,"
            " quarantine_reason = NULL WHERE name = 'health'"
        )
        heartbeat = asyncio.create_task(beat(running, "health"))
        await running.until(lambda: somebody_waits_for_a_lock(running))
    await heartbeat
    # It recovered from the state that the operator had set meanwhile, not from the one that was there before.
    assert (await audited(running, "health"))[-1] == ("stale", "active", "heartbeat_recovery")


async def test_a_sweep_does_not_overtake_a_sign_of_life(running: RunningSystem) -> None:
    await silent_for(running, "health", TTL_S + 5)
    async with running.database.transaction() as heartbeat:
        await heartbeat.execute(
            "UPDATE switchboard.butler_registry SET last_seen_at = $1 WHERE name = 'health'", running.clock.now()
        )
        sweeping = asyncio.create_task(sweep(running))
        await running.until(lambda: somebody_waits_for_a_lock(running))
    assert (await sweeping)["result"] == {"changed": []}
    assert (await registered(running, "health"))["eligibility_state"] == "active"


async def somebody_waits_for_a_lock(running: RunningSystem) -> bool:
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    return bool(await running.database.fetchval(waiting))


@pytest.mark.scenario("S3-039")
async def test_quarantine_cleared_on_re_registration(running: RunningSystem) -> None:
    await silent_for(running, "travel", 2 * TTL_S + 5)
    await sweep(running)
    async with running.mcp("switchboard", caller="travel") as client:
        answer = await call(client, "register_butler", running.butler("travel").card())

    assert answer == {"status": "ok", "name": "travel"}
    cleared = await registered(running, "travel")
    assert cleared["eligibility_state"] == "active"
    assert (cleared["quarantined_at"], cleared["quarantine_reason"]) == (None, None)
    assert (await audited(running, "travel"))[-1] == ("quarantined", "active", "re_registered")


async def test_a_sweep_never_makes_a_quarantine_milder(running: RunningSystem) -> None:
    await silent_for(running, "travel", 2 * TTL_S + 5)
    await sweep(running)
    await silent_for(running, "travel", TTL_S + 5)  # only stale by its silence, and quarantined all the same
    assert (await sweep(running))["result"] == {"changed": []}
    assert (await registered(running, "travel"))["quarantine_reason"] == "liveness_expired"


@pytest.mark.scenario("S3-040")
@pytest.mark.parametrize(("silence", "state"), [(TTL_S + 5, "stale"), (2 * TTL_S + 5, "quarantined")])
async def test_stale_target_routing_exclusion(running: RunningSystem, silence: float, state: str) -> None:
    await silent_for(running, "finance", silence)
    await sweep(running)
    assert (await registered(running, "finance"))["eligibility_state"] == state
    assert await routed_to(running, f"I paid the {state} invoice") == "general"
    pinned = running.envelope(f"another {state} invoice") | {"control": {"pinned_target": "finance"}}
    trace = await running.finished((await post(running, pinned)).json()["request_id"])
    assert (trace["lifecycle_state"], trace["lifecycle_error"]["class"]) == ("errored", "routing_error")

    await beat(running, "finance")
    assert await routed_to(running, f"I paid the {state} invoice at last") == "finance"
    assert await audited(running, "finance") == [
        ("active", state, "liveness_expired"),
        (state, "active", "heartbeat_recovery"),
    ]


async def test_nobody_gives_a_sign_of_life_for_somebody_else(running: RunningSystem) -> None:
    card = running.butler("travel").card() | {"endpoint_url": "http://127.0.0.1:1"}
    async with running.mcp("switchboard", caller="finance") as client:
        refused = await call(client, "register_butler", card)
    async with running.mcp("switchboard", caller="operator") as client:
        not_a_butler = await call(client, "butler.heartbeat")

    assert refused["error"]["fields"][0]["field"] == "name"
    assert not_a_butler["error"]["fields"][0]["field"] == "authorization"
    assert (await registered(running, "travel"))["endpoint_url"] == running.url("travel")


async def test_a_forgotten_butler_registers_again_by_itself(
    tmp_path_factory: pytest.TempPathFactory, postgres_server: EmbeddedPostgres
) -> None:
    async with running_system(tmp_path_factory.mktemp("forgotten"), postgres_server, heartbeat_s=0.05) as running:
        await running.database.execute("DELETE FROM switchboard.butler_registry WHERE name = 'travel'")

        async def back() -> bool:
            name = "SELECT count(*) FROM switchboard.butler_registry WHERE name = 'travel'"
            return bool(await running.database.fetchval(name))

        await running.until(back)
        assert (await audited(running, "travel"))[-1] == (None, "active", "registered")


async def test_a_message_waits_while_nobody_is_eligible(
    tmp_path_factory: pytest.TempPathFactory, postgres_server: EmbeddedPostgres
) -> None:
    """A machine that wakes up sweeps before the butlers' first heartbeat; nothing may be lost in between."""
    directory = tmp_path_factory.mktemp("asleep")
    roster = changed_roster(
        directory,
        "switchboard",
        ("scanner_interval_s = 30", "scanner_interval_s = 0.2"),
        ("scanner_grace_s = 10", "scanner_grace_s = 0.1"),
    )
    async with running_system(
        directory, postgres_server, roster_dir=roster, lease_ttl_s=0.4, lease_renew_s=0.1, heartbeat_s=3600
    ) as running:
        for butler in running.roster:
            await silent_for(running, butler, TTL_S + 5)
        await sweep(running)
        reply = await running.ingest("good morning")

        async def put_off() -> bool:
            return bool(await running.database.fetchval("select not_before is not null from switchboard.message_inbox"))

        await running.until(put_off)
        await beat(running, "general")
        trace = await running.finished(reply["request_id"], deadline_s=30)
        assert trace["lifecycle_state"] == "parsed"
        assert await running.answers() == ["[general] Noted: good morning"]
