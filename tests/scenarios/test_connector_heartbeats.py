"""Connectors report: what is stored of it, who may speak for whom, and that nobody waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
import pytest_asyncio

from butlers.butler.identity import Caller, Grant
from butlers.clock import SystemClock
from butlers.contracts.heartbeat import HeartbeatEnvelope
from butlers.operations.operation import Role
from butlers.storage.embedded import EmbeddedPostgres
from butlers.storage.queries import Queries
from butlers.switchboard.connectors.deltas import ADDED
from butlers.switchboard.connectors.registry import Heartbeats, Speakers
from tests.scenarios.connector_door import COUNTERS, a_connector, listed, operator, post, refused_for
from tests.scenarios.test_messenger_cli import document, lines
from tests.system import RunningSystem, running_system

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(
    tmp_path_factory: pytest.TempPathFactory, postgres_server: EmbeddedPostgres
) -> AsyncIterator[RunningSystem]:
    folder = tmp_path_factory.mktemp("fleet")
    async with running_system(folder, postgres_server, telegram_poll_s=1, connector_heartbeat_s=0.2) as system:
        yield system


@pytest.mark.scenario("S3-074")
async def test_heartbeat_acceptance(running: RunningSystem) -> None:
    connector = a_connector(running, "ann@example.org")
    before = running.clock.now()
    answer = await connector.beat()
    assert answer["status"] == "accepted"
    assert before.isoformat() <= answer["server_time"].replace("Z", "+00:00") <= running.clock.now().isoformat()
    stored = await connector.beat_and_be_seen(
        status={"state": "degraded", "error_message": "slow", "uptime_s": 42.5},
        counters=dict(zip(COUNTERS, (6, 2, 9, 4, 5), strict=True)),
        checkpoint={"cursor": "uid 41", "updated_at": "2026-01-31T09:05:00Z"},
    )

    assert (stored["state"], stored["error_message"], stored["uptime_s"]) == ("degraded", "slow", 42.5)
    assert (stored["instance_id"], stored["version"]) == (connector.instance_id, "1.2")
    assert [stored[name] for name in COUNTERS] == [6, 2, 9, 4, 5]
    assert (stored["checkpoint_cursor"], stored["checkpoint_updated_at"].minute) == ("uid 41", 5)
    assert stored["capabilities"] == {"backfill": True}
    log = await connector.log()
    assert [row["state"] for row in log] == ["healthy", "degraded"]
    assert [[row[name] for name in COUNTERS] for row in log] == [[5, 1, 7, 3, 4], [6, 2, 9, 4, 5]]


async def test_each_heartbeat_is_stored_with_what_it_added(running: RunningSystem) -> None:
    """Growth, a repeat, a late one, a counter that fell, another process; and what no connector may say."""
    connector = a_connector(running, "adds@example.org")
    told = [(12.5, (5, 1, 7, 3, 4)), (42.5, (9, 1, 8, 3, 6)), (42.5, (9, 1, 8, 3, 6)), (30.0, (7, 1, 7, 3, 4))]
    told += [(60.0, (11, 0, 9, 3, 7))]
    born = running.clock.now()
    for uptime_s, counters in told:
        await connector.beat_and_be_seen(
            status={"state": "healthy", "uptime_s": uptime_s},
            counters=dict(zip(COUNTERS, counters, strict=True)),
            sent_at=(born + timedelta(seconds=uptime_s)).isoformat(),
        )
    await replace(connector, instance_id=uuid4()).beat_and_be_seen()
    for uptime_s in (-1, 1e10):
        answer = await connector.beat(status={"state": "healthy", "uptime_s": uptime_s})
        assert refused_for(answer) == ["status.uptime_s"]

    assert [[row[name] for name in ADDED] for row in await connector.log()] == [
        [5, 1, 7, 4],
        [4, 0, 1, 2],
        [0, 0, 0, 0],
        [0, 0, 0, 0],
        [2, 0, 1, 1],
        [5, 1, 7, 4],
    ]


async def test_two_systems_that_take_one_connectors_heartbeats_count_each_message_once(running: RunningSystem) -> None:
    """Half of the heartbeats come to another process of Switchboard, at the same moments."""
    connector = a_connector(running, "shared@example.org")
    caller = Caller(
        name=connector.principal, role=Role.CONNECTOR, grants=(Grant(channel="email", endpoint=connector.endpoint),)
    )
    queries = Queries.load("butlers.switchboard.connectors", schema="switchboard")
    ids = iter(UUID(int=number) for number in range(1 << 60, 1 << 61))
    doors = [
        Heartbeats(
            database=running.database,
            queries=queries,
            speakers=Speakers(database=running.database, queries=queries),
            clock=running.clock,
            new_id=lambda: next(ids),
        )
        for _ in range(2)
    ]
    born = running.clock.now()
    for number in range(1, 61):
        envelope = connector.envelope(
            status={"state": "healthy", "uptime_s": float(number)},
            counters={"messages_ingested": 10 * number},
            sent_at=(born + timedelta(seconds=number)).isoformat(),
        )
        await doors[number % 2].accept(HeartbeatEnvelope.parse(envelope), caller)
    for door in doors:
        await door.close()
    rows = await connector.log()
    assert (len(rows), sum(row["added_messages_ingested"] for row in rows)) == (60, 600)


@pytest.mark.scenario("S3-075")
async def test_connector_self_registration_on_first_heartbeat(running: RunningSystem) -> None:
    connector = a_connector(running, "new@example.org")
    assert await connector.row() is None
    before = running.clock.now()
    first = await connector.beat_and_be_seen()
    assert (first["registered_via"], first["principal"]) == ("self", connector.principal)
    assert before <= first["first_seen_at"] <= running.clock.now()
    again = await connector.beat_and_be_seen()
    assert again["first_seen_at"] == first["first_seen_at"] < again["last_heartbeat_at"]


@pytest.mark.parametrize(
    ("silence_s", "expected"), [(0, "online"), (110, "online"), (125, "stale"), (235, "stale"), (245, "offline")]
)
@pytest.mark.scenario("S3-076")
async def test_liveness_derivation_from_heartbeat_recency(
    running: RunningSystem, silence_s: float, expected: str
) -> None:
    connector = a_connector(running, f"silent-{silence_s}")
    await connector.beat_and_be_seen()
    await _silent_for(running, connector.endpoint, timedelta(seconds=silence_s))
    assert (await listed(running, connector.endpoint))["liveness"] == expected
    shown = (await operator(running, "connectors.list"))["connectors"]
    assert {row["endpoint_identity"]: row["liveness"] for row in shown}[connector.endpoint] == expected
    await connector.beat_and_be_seen()
    assert (await listed(running, connector.endpoint))["liveness"] == "online"


@pytest.mark.scenario("S3-076")
async def test_no_silence_removes_a_connector_but_an_operator_does(running: RunningSystem) -> None:
    connector = a_connector(running, "long-gone")
    await connector.beat_and_be_seen()
    await _silent_for(running, connector.endpoint, timedelta(days=900))
    await running.database.execute(
        "UPDATE switchboard.scheduled_tasks SET next_run_at = $1 WHERE source = 'toml'", running.clock.now()
    )
    await operator(running, "tick")
    assert (await listed(running, "long-gone"))["liveness"] == "offline"

    assert (await post(running, "/connectors/deregister", connector.named, caller=None)).status_code == 403
    assert (await post(running, "/connectors/deregister", connector.named, caller="finance")).status_code == 403
    assert await lines(running, "connectors", "deregister", "imap", "long-gone") == ["imap:long-gone is forgotten"]
    assert await connector.row() is None
    assert (await post(running, "/connectors/deregister", connector.named)).status_code == 404
    anew = await a_connector(running, "long-gone", principal="its-successor").beat_and_be_seen()
    assert anew["principal"] == "its-successor"


@pytest.mark.scenario("S3-077")
async def test_non_blocking_heartbeat_processing(running: RunningSystem) -> None:
    """While nothing can be written about connectors, heartbeats are answered and messages taken in."""
    connector = a_connector(running, "patient@example.org")
    async with running.database.transaction() as blocking:
        await blocking.execute("LOCK TABLE switchboard.connector_registry IN SHARE ROW EXCLUSIVE MODE")
        async with asyncio.timeout(5):
            assert (await connector.beat())["status"] == "accepted"
            reply = await running.ingest("I paid the gas bill")
            assert (await running.finished(reply["request_id"]))["lifecycle_state"] == "parsed"
        assert await connector.row() is None

    async def written() -> Any:
        return await connector.log()

    assert len(await running.until(written)) == 1


@pytest.mark.scenario("S3-113")
async def test_all_connectors_are_listed_with_what_they_did_today(running: RunningSystem) -> None:
    connector = a_connector(running, "busy@example.org")
    await connector.beat_and_be_seen(counters={"messages_ingested": 3, "source_api_calls": 10})
    await connector.beat_and_be_seen(
        counters={"messages_ingested": 9, "messages_failed": 2, "source_api_calls": 30},
        status={"state": "error", "error_message": "no route to host", "uptime_s": 31.0},
    )
    # Begun yesterday: only what came since midnight is today's.
    await running.database.execute(
        "UPDATE switchboard.connector_heartbeat_log SET received_at = $1"
        " WHERE endpoint_identity = $2 AND messages_ingested = 3",
        running.clock.now() - timedelta(days=1),
        connector.endpoint,
    )
    shown = await listed(running, "busy@example.org")
    assert (shown["liveness"], shown["state"], shown["version"], shown["uptime_s"]) == ("online", "error", "1.2", 31.0)
    assert shown["today"] == {
        "messages_ingested": 6,
        "messages_failed": 2,
        "source_api_calls": 20,
        "dedupe_accepted": 0,
        "heartbeat_count": 1,
        "healthy_count": 0,
        "degraded_count": 0,
        "error_count": 1,
    }
    everybody = await running.database.fetchval("SELECT count(*) FROM switchboard.connector_registry")
    assert len((await document(running, "connectors"))["connectors"]) == everybody > 1
    said = await lines(running, "connectors")
    [line] = [line for line in said if line.startswith("imap:busy@example.org")]
    assert "online" in line
    assert "6 taken in, 2 failed" in line
    assert "    no route to host" in said


async def test_the_telegram_connector_reports(running: RunningSystem) -> None:
    await running.says("I paid the water bill")

    async def reported() -> Any:
        rows = await running.database.fetch(
            "SELECT * FROM switchboard.connector_registry WHERE connector_type = 'telegram' AND messages_ingested > 0"
        )
        return rows[0] if rows else None

    stored = await running.until(reported)
    assert (stored["state"], stored["principal"]) == ("healthy", "connector.telegram")
    assert (stored["messages_ingested"], stored["dedupe_accepted"], stored["checkpoint_saves"]) == (1, 1, 1)
    assert stored["source_api_calls"] >= 2
    source = await running.database.fetchval(
        "SELECT request_context ->> 'source_endpoint_identity' FROM switchboard.message_inbox"
        " WHERE source_channel = 'telegram'"
    )
    assert stored["endpoint_identity"] == source
    assert stored["checkpoint_cursor"].isdigit()
    assert (await listed(running, source))["liveness"] == "online"


async def test_a_connector_whose_source_fails_says_so(tmp_path: Path, postgres_server: EmbeddedPostgres) -> None:
    async with running_system(tmp_path, postgres_server, telegram_poll_s=1, connector_heartbeat_s=0.1) as running:

        async def state() -> Any:
            row = await running.database.fetchrow("SELECT state, error_message FROM switchboard.connector_registry")
            return tuple(row) if row else None

        assert await running.until(state) == ("healthy", None)
        await running.control("POST", "/faults", {"method": "getUpdates", "kind": "error_5xx", "times": 2})

        async def degraded() -> Any:
            seen = await state()
            return seen if seen != ("healthy", None) else None

        found, problem = await running.until(degraded)
        assert (found, problem.partition(":")[0]) == ("degraded", "target_unavailable")

        async def healthy() -> bool:
            return bool(await state() == ("healthy", None))

        await running.until(healthy)


# --- who may speak ---------------------------------------------------------------------------------------------------


async def test_a_connector_speaks_only_for_itself(running: RunningSystem) -> None:
    mine = a_connector(running, "mine@example.org")
    await mine.beat_and_be_seen()
    other = a_connector(running, "mine@example.org", principal="somebody-else")
    assert refused_for(await other.beat()) == ["authorization"]
    over_http = await post(running, "/connectors/heartbeat", other.envelope(), caller="somebody-else")
    assert over_http.status_code == 403
    [telegram] = [
        r for r in (await operator(running, "connectors.list"))["connectors"] if r["connector_type"] != "imap"
    ]
    forged = other.envelope()
    forged["connector"] |= {"connector_type": "telegram", "endpoint_identity": telegram["endpoint_identity"]}
    assert (await post(running, "/connectors/heartbeat", forged, caller="somebody-else")).status_code == 403
    assert len(await mine.log()) == 1


async def test_two_who_claim_one_connector_at_once_leave_one(running: RunningSystem) -> None:
    first = a_connector(running, "contested", principal="first-claim")
    second = a_connector(running, "contested", principal="second-claim")
    async with running.database.transaction() as blocking:
        await blocking.execute("LOCK TABLE switchboard.connector_registry IN SHARE ROW EXCLUSIVE MODE")
        assert (await first.beat())["status"] == (await second.beat())["status"] == "accepted"

    async def settled() -> Any:
        return await first.row()

    stored = await running.until(settled)
    assert stored["principal"] in ("first-claim", "second-claim")
    refused = second if stored["principal"] == "first-claim" else first
    assert refused_for(await refused.beat()) == ["authorization"]
    assert {row["instance_id"] for row in await first.log()} == {stored["instance_id"]}


@pytest.mark.parametrize("caller", [None, "operator", "finance"])
async def test_only_connectors_report(running: RunningSystem, caller: str | None) -> None:
    connector = a_connector(running, "nobody@example.org")
    response = await post(running, "/connectors/heartbeat", connector.envelope(), caller=caller)
    assert (response.status_code, refused_for(response.json())) == (403, ["authorization"])
    assert await connector.row() is None


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"schema_version": "connector.heartbeat.v2"}, "schema_version"),
        ({"counters": {"messages_ingested": -1}}, "counters.messages_ingested"),
        ({"status": {"state": "tired", "uptime_s": 1}}, "status.state"),
        ({"sent_at": "yesterday"}, "sent_at"),
        ({"mood": "good"}, "mood"),
    ],
)
async def test_a_heartbeat_that_is_none_is_refused(running: RunningSystem, changes: Any, field: str) -> None:
    connector = a_connector(running, "wrong@example.org")
    assert refused_for(await connector.beat(**changes)) == [field]
    response = await post(running, "/connectors/heartbeat", connector.envelope(**changes), caller=connector.principal)
    assert (response.status_code, refused_for(response.json())) == (422, [field])
    assert await connector.row() is None


async def test_heartbeats_over_http_are_the_same(running: RunningSystem) -> None:
    connector = a_connector(running, "http@example.org")
    response = await post(running, "/connectors/heartbeat", connector.envelope(), caller=connector.principal)
    assert (response.status_code, response.json()["status"]) == (202, "accepted")
    assert len(await running.until(connector.log)) == 1


async def test_what_was_taken_is_written_before_the_system_stops(
    tmp_path: Path, postgres_server: EmbeddedPostgres
) -> None:
    async with running_system(tmp_path, postgres_server) as running:
        connector = a_connector(running, "last-words")
        for _ in range(3):
            await connector.beat(connector={**connector.named, "instance_id": str(uuid4())})
        await running.stop()
        assert len(await connector.log()) == 3


async def _silent_for(running: RunningSystem, endpoint: str, silence: timedelta) -> None:
    await running.database.execute(
        "UPDATE switchboard.connector_registry SET last_heartbeat_at = $1 WHERE endpoint_identity = $2",
        SystemClock().now() - silence,
        endpoint,
    )
