"""Connectors in numbers, by every door: from the rollups, with their age, and no zero for "not known"."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from typing import Any

import pytest
import pytest_asyncio

from butlers.clock import SystemClock
from butlers.storage.embedded import EmbeddedPostgres
from tests.scenarios.connector_door import COUNTERS, a_connector
from tests.scenarios.test_messenger_cli import document, lines
from tests.system import RunningSystem, running_system

pytestmark = pytest.mark.asyncio(loop_scope="module")

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
FIGURES = (
    *("messages_ingested", "messages_failed", "source_api_calls", "dedupe_accepted"),
    *("heartbeat_count", "healthy_count", "degraded_count", "error_count"),
)


class AtHalfPastTwelve(SystemClock):
    """No hour and no day ends while a test counts them."""

    def __init__(self) -> None:
        now = super().now()
        self._ahead = now.replace(hour=12, minute=30) - now

    def now(self) -> datetime:
        return super().now() + self._ahead


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def whole(
    tmp_path_factory: pytest.TempPathFactory, postgres_server: EmbeddedPostgres
) -> AsyncIterator[RunningSystem]:
    """No connector of its own reports: what is in the tables is what a test put there."""
    folder = tmp_path_factory.mktemp("statistics")
    async with running_system(
        folder, postgres_server, clock=AtHalfPastTwelve(), names=["switchboard"], connector_heartbeat_s=3600
    ) as system:
        yield system


@pytest_asyncio.fixture(loop_scope="module")
async def running(whole: RunningSystem) -> RunningSystem:
    await empty(whole)
    return whole


async def empty(running: RunningSystem) -> None:
    await running.database.execute(
        "TRUNCATE switchboard.connector_registry, switchboard.connector_stats_hourly,"
        " switchboard.connector_stats_daily, switchboard.connector_fanout_daily"
    )


async def get(running: RunningSystem, path: str, *, expect: int = 200, **query: Any) -> Any:
    response = await running.http.get(running.url(path=f"/api/connectors{path}"), params=query)
    assert response.status_code == expect, response.text
    return response.json()


def without_ages(answer: Any) -> Any:
    if isinstance(answer, dict):
        return {name: without_ages(value) for name, value in answer.items() if name != "age_s"}
    return [without_ages(one) for one in answer] if isinstance(answer, list) else answer


async def asked_by_every_door(
    running: RunningSystem, path: str, tool: str, arguments: dict[str, str], *words: str, **query: Any
) -> Any:
    """The answer of HTTP, which is that of MCP and of the command line."""
    found = await get(running, path, **query)
    async with running.mcp("switchboard") as client:
        by_mcp = (await client.call_tool(tool, arguments)).structured_content
    assert without_ages(by_mcp) == without_ages(found)
    assert without_ages(await document(running, "connectors", *words)) == without_ages(found)
    return found


def this_hour(running: RunningSystem) -> datetime:
    return running.clock.now().replace(minute=0, second=0, microsecond=0)


def today(running: RunningSystem) -> datetime:
    return this_hour(running).replace(hour=0)


async def hour(running: RunningSystem, endpoint: str, start: datetime, *figures: int) -> None:
    columns = ", ".join(FIGURES)
    await running.database.execute(
        f"INSERT INTO switchboard.connector_stats_hourly (connector_type, endpoint_identity, hour, {columns})"
        " VALUES ('imap', $1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
        endpoint,
        start,
        *figures,
    )


async def day(running: RunningSystem, endpoint: str, start: datetime, uptime: float | None, *figures: int) -> None:
    columns = ", ".join(FIGURES)
    await running.database.execute(
        f"INSERT INTO switchboard.connector_stats_daily (connector_type, endpoint_identity, day, uptime_pct, {columns})"
        " VALUES ('imap', $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)",
        endpoint,
        start.date(),
        uptime,
        *figures,
    )


async def fanout(running: RunningSystem, endpoint: str, butler: str, start: datetime, count: int) -> None:
    await running.database.execute(
        "INSERT INTO switchboard.connector_fanout_daily VALUES ('email', $1, $2, $3, $4)",
        endpoint,
        butler,
        start.date(),
        count,
    )


@pytest.mark.scenario("S3-114")
async def test_connector_detail_endpoint(running: RunningSystem) -> None:
    connector = a_connector(running, "detail@example.org")
    await connector.beat_and_be_seen(
        counters=dict(zip(COUNTERS, (6, 2, 9, 4, 5), strict=True)),
        checkpoint={"cursor": "uid 41", "updated_at": "2026-01-31T09:05:00Z"},
    )
    named = {"connector_type": "imap", "endpoint_identity": connector.endpoint}
    found = await asked_by_every_door(
        running, f"/imap/{connector.endpoint}", "connectors.show", named, "show", "imap", connector.endpoint
    )
    assert found["instance_id"] == str(connector.instance_id)
    assert found["registered_via"] == "self"
    assert found["checkpoint"] == {"cursor": "uid 41", "updated_at": "2026-01-31T09:05:00Z"}
    assert found["counters"] == dict(zip(COUNTERS, (6, 2, 9, 4, 5), strict=True))
    assert (found["liveness"], found["state"], found["version"]) == ("online", "healthy", "1.2")
    assert 0 <= found["age_s"] < 120
    said = await lines(running, "connectors", "show", "imap", connector.endpoint)
    assert "checkpoint uid 41 of 2026-01-31T09:05:00Z" in said


async def test_a_connector_without_a_checkpoint_has_none_and_an_unknown_one_is_404(running: RunningSystem) -> None:
    connector = a_connector(running, "fresh@example.org")
    await connector.beat_and_be_seen(checkpoint=None)
    assert (await get(running, f"/imap/{connector.endpoint}"))["checkpoint"] is None
    refused = await get(running, "/imap/nobody@example.org", expect=404)
    assert refused["error"]["message"] == "endpoint_identity: no such connector"
    await get(running, "/imap/nobody@example.org/stats", expect=404)


@pytest.mark.scenario("S3-115")
async def test_connector_statistics_endpoint(running: RunningSystem) -> None:
    await by_the_hour(running, "24h", 24)
    await empty(running)
    await by_the_hour(running, "7d", 7 * 24)
    await empty(running)
    await by_the_day(running)


async def by_the_hour(running: RunningSystem, period: str, hours: int) -> None:
    endpoint, now = "hours@example.org", this_hour(running)
    await hour(running, endpoint, now - (hours + 1) * HOUR, 1000, 1000, 1000, 1000, 1000, 1000, 0, 0)  # too old
    await hour(running, endpoint, now - hours * HOUR, 6, 2, 9, 4, 120, 90, 20, 10)
    await hour(running, endpoint, now - HOUR, 10, 0, 11, 0, 120, 120, 0, 0)
    await hour(running, "other@example.org", now - HOUR, 99, 9, 9, 9, 9, 9, 0, 0)
    await day(running, endpoint, today(running) - DAY, 50.0, 77, 7, 7, 7, 7, 7, 0, 0)  # not from here
    named = {"connector_type": "imap", "endpoint_identity": endpoint, "period": period}
    words = ("stats", "imap", endpoint, "--period", period)
    found = await asked_by_every_door(
        running, f"/imap/{endpoint}/stats", "connectors.stats", named, *words, period=period
    )
    assert (found["period"], found["bucket"]) == (period, "hour")
    assert [bucket["messages_ingested"] for bucket in found["buckets"]] == [6, 10]
    assert [datetime.fromisoformat(bucket["start"]) for bucket in found["buckets"]] == [now - hours * HOUR, now - HOUR]
    assert found["buckets"][0]["healthy_pct"] == 75.0
    figures = [16, 2, 20, 4, 240, 210, 20, 10]
    shares = {"failed_pct": 11.11, "healthy_pct": 87.5}
    assert found["totals"] == dict(zip(FIGURES, figures, strict=True)) | shares
    assert datetime.fromisoformat(found["rolled_up_until"]) == now
    assert 0 <= found["age_s"] <= 3600 + 120


async def by_the_day(running: RunningSystem) -> None:
    endpoint, midnight = "days@example.org", today(running)
    await day(running, endpoint, midnight - 31 * DAY, 100.0, 1000, 0, 0, 0, 1, 1, 0, 0)  # too old
    await day(running, endpoint, midnight - 30 * DAY, 99.5, 6, 2, 9, 4, 100, 75, 15, 10)
    await day(running, endpoint, midnight - DAY, None, 1, 0, 1, 0, 0, 0, 0, 0)
    await hour(running, endpoint, this_hour(running) - HOUR, 77, 7, 7, 7, 7, 7, 0, 0)  # not from here
    named = {"connector_type": "imap", "endpoint_identity": endpoint, "period": "30d"}
    words = ("stats", "imap", endpoint, "--period", "30d")
    found = await asked_by_every_door(
        running, f"/imap/{endpoint}/stats", "connectors.stats", named, *words, period="30d"
    )
    assert found["bucket"] == "day"
    assert [bucket["messages_ingested"] for bucket in found["buckets"]] == [6, 1]
    assert [bucket["uptime_pct"] for bucket in found["buckets"]] == [99.5, None]
    assert [bucket["healthy_pct"] for bucket in found["buckets"]] == [75.0, None]
    assert datetime.fromisoformat(found["buckets"][0]["start"]) == midnight - 30 * DAY
    assert found["totals"]["messages_ingested"] == 7
    assert datetime.fromisoformat(found["rolled_up_until"]) == midnight


@pytest.mark.scenario("S3-116")
async def test_cross_connector_summary_endpoint(running: RunningSystem) -> None:
    for period in ("24h", "7d", "30d"):
        await summarized(running, period)
        await empty(running)


async def summarized(running: RunningSystem, period: str) -> None:
    for name, silent_s in (("on", 0), ("late", 180), ("off", 600), ("new", 0)):
        connector = a_connector(running, f"{name}@example.org")
        await connector.beat_and_be_seen()
        await running.database.execute(
            "UPDATE switchboard.connector_registry SET last_heartbeat_at = $1 WHERE endpoint_identity = $2",
            running.clock.now() - timedelta(seconds=silent_s),
            connector.endpoint,
        )
    for name, count in (("on", 10), ("late", 20), ("off", 30), ("gone", 40)):
        endpoint = f"{name}@example.org"
        if period == "30d":
            await day(running, endpoint, today(running) - 2 * DAY, 100.0, count, 0, 0, 0, 10, 5, 0, 5)
            await day(running, endpoint, today(running) - 31 * DAY, 100.0, 999, 0, 0, 0, 10, 5, 0, 5)
        else:
            await hour(running, endpoint, this_hour(running) - 2 * HOUR, count, 0, 0, 0, 10, 5, 0, 5)
            await hour(running, endpoint, this_hour(running) - 8 * DAY, 999, 0, 0, 0, 10, 5, 0, 5)
    arguments, words = {"period": period}, ("summary", "--period", period)
    found = await asked_by_every_door(running, "/summary", "connectors.summary", arguments, *words, period=period)
    assert found["connectors_by_liveness"] == {"online": 2, "stale": 1, "offline": 1}
    assert found["bucket"] == ("day" if period == "30d" else "hour")
    by_name = {row["endpoint_identity"].partition("@")[0]: row for row in found["connectors"]}
    assert {name: row["liveness"] for name, row in by_name.items()} == {
        "on": "online",
        "late": "stale",
        "off": "offline",
        "new": "online",
        "gone": None,
    }
    assert {name: row["totals"] and row["totals"]["messages_ingested"] for name, row in by_name.items()} == {
        "on": 10,
        "late": 20,
        "off": 30,
        "gone": 40,
        "new": None,
    }
    assert (found["totals"]["messages_ingested"], found["totals"]["healthy_pct"]) == (100, 50.0)
    assert by_name["off"]["age_s"] >= 600
    assert found["age_s"] is not None


@pytest.mark.scenario("S3-117")
async def test_fanout_distribution_endpoint(running: RunningSystem) -> None:
    for period, days in (("7d", 7), ("30d", 30)):
        await distributed(running, period, days)
        await empty(running)


async def distributed(running: RunningSystem, period: str, days: int) -> None:
    midnight = today(running)
    await fanout(running, "ann@example.org", "health", midnight - DAY, 3)
    await fanout(running, "ann@example.org", "health", midnight - days * DAY, 3)
    await fanout(running, "ann@example.org", "travel", midnight - DAY, 2)
    await fanout(running, "bob@example.org", "travel", midnight - 2 * DAY, 4)
    await fanout(running, "bob@example.org", "finance", midnight - (days + 1) * DAY, 1000)  # too old
    arguments, words = {"period": period}, ("fanout", "--period", period)
    found = await asked_by_every_door(running, "/fanout", "connectors.fanout", arguments, *words, period=period)
    assert (found["messages"], found["butlers"]) == (12, ["health", "travel"])
    assert found["connectors"] == [
        {
            "source_channel": "email",
            "source_endpoint_identity": "ann@example.org",
            "messages": 8,
            "targets": {"health": {"messages": 6, "share_pct": 75.0}, "travel": {"messages": 2, "share_pct": 25.0}},
        },
        {
            "source_channel": "email",
            "source_endpoint_identity": "bob@example.org",
            "messages": 4,
            "targets": {"travel": {"messages": 4, "share_pct": 100.0}},
        },
    ]
    assert datetime.fromisoformat(found["rolled_up_until"]) == midnight


async def test_where_nothing_was_rolled_up_there_is_no_number(running: RunningSystem) -> None:
    connector = a_connector(running, "quiet@example.org")
    await connector.beat_and_be_seen()
    for path in (f"/imap/{connector.endpoint}/stats", "/summary", "/fanout"):
        found = await get(running, path)
        assert (found["rolled_up_until"], found["age_s"]) == (None, None)
        assert found.get("totals") is None
        assert found.get("buckets", []) == []
    assert (await get(running, "/fanout"))["messages"] is None
    [one] = (await get(running, "/summary"))["connectors"]
    assert one["totals"] is None
    for words in (("stats", "imap", connector.endpoint), ("summary",), ("fanout",)):
        assert any("no data yet" in line for line in await lines(running, "connectors", *words))


@pytest.mark.parametrize(
    ("path", "period"), [("/imap/a@b/stats", "1h"), ("/summary", "90d"), ("/fanout", "24h"), ("/fanout", "")]
)
async def test_another_period_is_refused_with_those_that_there_are(
    running: RunningSystem, path: str, period: str
) -> None:
    refused = await get(running, path, expect=422, period=period)
    [field] = refused["error"]["fields"]
    assert field["field"] == "period"
    assert "'7d'" in field["error"]
