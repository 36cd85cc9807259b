"""What Switchboard tells about itself in numbers: metrics after real traffic, and service levels from its tables."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import quantiles
from typing import Any
from unittest.mock import AsyncMock
from uuid import UUID, uuid4

import pytest
import pytest_asyncio

from butlers.clock import SystemClock
from butlers.storage.embedded import EmbeddedPostgres
from butlers.switchboard.requests.reader import AcceptTimes
from tests.scenarios.downstream import Downstream, after, downstream, error, ok
from tests.scenarios.fanout_system import AT_HOME
from tests.scenarios.messenger_door import changed_roster
from tests.scenarios.operator_door import read, tool
from tests.scenarios.switchboard_door import all_finished, post
from tests.scenarios.switchboard_meter import Meter, gauge, left_behind, scraped, total
from tests.scenarios.test_messenger_cli import cli, document
from tests.system import RunningSystem, running_system

pytestmark = pytest.mark.asyncio(loop_scope="module")

Served = tuple[RunningSystem, Downstream]


def observed(tmp_path: Path) -> Path:
    """One worker and room for two, a scanner that looks often, a circuit that opens at once."""
    circuit = "[routing.circuit]\nfailure_threshold = 1\nrecovery_s = 3600\n"
    tier = "[routing.tier.high_priority]\nattempts = 1\nroute_timeout_s = 0.5\n"
    return changed_roster(
        tmp_path,
        "switchboard",
        (r"^queue_capacity = .*$", "queue_capacity = 2\nmax_consecutive_same_tier = 1"),
        (r"^worker_count = .*$", "worker_count = 1"),
        (r"^scanner_interval_s = .*$", "scanner_interval_s = 0.5"),
        (r"^scanner_grace_s = .*$", "scanner_grace_s = 0.5"),
        (r"^\[modules\.calendar\]", f"{circuit}\n{tier}\n[modules.calendar]"),
    )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory, postgres_server: EmbeddedPostgres) -> AsyncIterator[Served]:
    tmp_path = tmp_path_factory.mktemp("metrics")
    async with (
        running_system(
            tmp_path, postgres_server, names=AT_HOME, roster_dir=observed(tmp_path), request_patience_s=0
        ) as running,
        downstream(running, "finance") as finance,
        downstream(running, "travel"),
    ):
        yield running, finance


async def hand_in(running: RunningSystem, text: str, *, tier: str = "default", target: str = "finance") -> str:
    control = {"policy_tier": tier, "pinned_target": target, "idempotency_key": uuid4().hex}
    reply = await post(running, running.envelope(text) | {"control": control})
    assert reply.status_code == 202, reply.text
    request_id: str = reply.json()["request_id"]
    return request_id


@pytest.mark.scenario("S3-111")
async def test_core_metrics_emitted(served: Served) -> None:
    running, finance = served
    meter, gate = await Meter.of(running), asyncio.Event()
    assert await gauge(running, "switchboard_circuit_open_targets") == 0
    finance.will(after(gate))
    await hand_in(running, "first")
    await finance.called()
    await hand_in(running, "second")

    async def queued() -> bool:
        return await gauge(running, "switchboard_queue_depth", source_channel="api") == 2

    await running.until(queued)
    assert await gauge(running, "switchboard_inflight_requests") == 1
    gate.set()
    await all_finished(running)
    await running.until(lambda: _is(running, "switchboard_queue_depth", 0))
    await running.until(lambda: _is(running, "switchboard_inflight_requests", 0))

    repeated = running.envelope("a poem about nothing") | {"control": {"idempotency_key": "twice"}}
    assert [(await post(running, repeated)).json()["duplicate"] for _ in range(2)] == [False, True]
    assert (await post(running, {"schema_version": "ingest.v9"})).status_code == 422
    finance.will(error("validation_error", "not like this"))
    await hand_in(running, "third")
    await all_finished(running)

    counters = {
        "message_received": 5,
        "message_deduplicated": 1,
        "message_rejected": 1,
        "subroute_dispatched": 4,
        "subroute_result": 4,
        "request_finished": 4,
    }
    for name, grown in counters.items():
        await meter.shows(f"switchboard_{name}_total", grown)
    assert await meter.grown("switchboard_subroute_result_total", target_butler="finance", outcome="ok") == 2
    failed = {"target_butler": "finance", "outcome": "error", "error_class": "validation_error"}
    assert await meter.grown("switchboard_subroute_result_total", **failed) == 1
    assert await meter.grown("switchboard_request_finished_total", lifecycle_state="errored") == 1
    histograms = {
        "ingress_accept_latency_ms": 5,
        "routing_decision_latency_ms": 4,
        "subroute_latency_ms": 4,
        "end_to_end_latency_ms": 4,
    }
    for name, grown in histograms.items():
        await meter.shows(f"switchboard_{name}_count", grown)
        assert await meter.grown(f"switchboard_{name}_sum") > 0

    finance.will(after(asyncio.Event()))  # no answer in its time
    await hand_in(running, "fourth", tier="high_priority")
    await running.until(lambda: _is(running, "switchboard_circuit_open_targets", 1))
    opened = {"target_butler": "finance", "circuit_state": "open"}
    assert await meter.grown("switchboard_circuit_transition_total", **opened) == 1
    await all_finished(running)
    text = (await running.http.get(running.url(path="/metrics"))).text
    for name, kind in {"queue_depth": "gauge", "inflight_requests": "gauge", "circuit_open_targets": "gauge"}.items():
        assert f"# TYPE butlers_switchboard_{name} {kind}" in text


async def _is(running: RunningSystem, name: str, value: float) -> bool:
    return await gauge(running, name) == value


@pytest.mark.scenario("S3-112")
async def test_durable_buffer_metrics(tmp_path: Path, postgres_server: EmbeddedPostgres) -> None:
    async with (
        running_system(tmp_path, postgres_server, names=AT_HOME, roster_dir=observed(tmp_path)) as running,
        downstream(running, "finance") as finance,
    ):
        meter, gate = await Meter.of(running), asyncio.Event()
        finance.will(after(gate))
        await hand_in(running, "in hand")
        await finance.called()
        for number in range(2):
            await hand_in(running, f"queued {number}")
        for number in range(2):
            await hand_in(running, f"urgent {number}", tier="high_priority")
        assert await gauge(running, "buffer_queue_depth", policy_tier="default") == 2
        assert await gauge(running, "buffer_queue_depth", policy_tier="high_priority") == 2
        assert await meter.grown("buffer_backpressure_total") == 0
        assert await meter.grown("buffer_enqueue_total", path="hot") == 5
        await hand_in(running, "one too many")
        assert await meter.grown("buffer_backpressure_total") >= 1
        await left_behind(running, "left behind", age_s=5, tier="interactive", target="finance")
        gate.set()
        await all_finished(running)

        await meter.shows("buffer_enqueue_total", 2, path="cold")
        await meter.shows("buffer_scanner_recovered_total", 2)
        await meter.shows("buffer_process_latency_ms_count", 7, outcome="processed")
        assert await meter.grown("buffer_process_latency_ms_sum") > 0
        dequeued = "switchboard_queue_dequeue_by_tier_total"
        await meter.shows(dequeued, 7)
        for tier, taken in {"high_priority": 2, "interactive": 1, "default": 4}.items():
            assert await meter.grown(dequeued, policy_tier=tier) == taken
        assert await meter.grown(dequeued, starvation_override="true") >= 1
        samples = (await scraped(running))[dequeued]
        assert all(labels.keys() == {"policy_tier", "starvation_override"} for labels, _ in samples)
        assert total((await scraped(running))["buffer_queue_depth"]) == 0


# --- service levels --------------------------------------------------------------------------------------------------


async def latencies(running: RunningSystem, since: str, where: str) -> list[float]:
    rows = await running.database.fetch(
        "SELECT extract(epoch FROM final_state_at - received_at)::float8 * 1000 AS whole,"
        " extract(epoch FROM final_state_at - progress_at)::float8 * 1000 AS waited"
        f" FROM switchboard.message_inbox WHERE received_at >= $1 AND {where}",
        datetime.fromisoformat(since),
    )
    return [value for row in rows for value in (row["whole"], row["waited"])]


def median(values: list[float]) -> float:
    return quantiles(values, n=2, method="inclusive")[0] if len(values) > 1 else values[0]


@pytest.mark.scenario("S3-110")
async def test_minimum_sli_tracking(tmp_path: Path, postgres_server: EmbeddedPostgres) -> None:
    async with running_system(tmp_path, postgres_server, names=AT_HOME, request_patience_s=0) as running:
        started = (running.clock.now() - timedelta(seconds=1)).isoformat()
        nothing = await read(running, "service-levels", since=started)
        assert (nothing["accept"], nothing["completion"], nothing["interactive"]) == ([], [], [])
        assert nothing["routes"]["success_rate"] is None, "unknown, not perfect"
        meter = await Meter.of(running)
        async with downstream(running, "finance") as finance:
            finance.will(ok(), ok(), error("validation_error", "not like this"))
            for number in range(3):
                await hand_in(running, f"message {number}")
                await all_finished(running)
            finance.will(ok())
            await running.says("I paid the electricity bill of 80 euros")

            async def chatted() -> bool:
                query = "SELECT count(*) FROM switchboard.message_inbox WHERE source_channel = 'telegram'"
                return bool(await running.database.fetchval(query))

            await running.until(chatted)
            await all_finished(running)
        before_the_person = await read(running, "service-levels", since=started)
        decided = await hand_in(running, "for a person", target="general")
        await all_finished(running)
        await running.database.execute(
            "UPDATE switchboard.message_inbox SET override = '{}' WHERE request_id = $1", UUID(decided)
        )
        levels = await read(running, "service-levels", since=started)

        # From the arrival to the durable accept.
        accepts = {row["source_channel"]: row for row in levels["accept"]}
        assert (accepts["api"]["messages"], accepts["telegram"]["messages"]) == (4, 1)
        assert 0 < accepts["api"]["p50_ms"] <= accepts["api"]["p95_ms"] <= accepts["api"]["p99_ms"]
        await meter.shows("switchboard_ingress_accept_latency_ms_count", 4, source_channel="api")

        # From the accept to the end, exactly as the rows say.
        completed = {(row["source_channel"], row["policy_tier"]): row for row in levels["completion"]}
        api = completed["api", "default"]
        assert (api["parsed"], api["errored"], api["open"], api["decided_by_a_person"]) == (2, 1, 0, 1)
        whole = (await latencies(running, started, "source_channel = 'api' AND override IS NULL"))[::2]
        assert api["p50_ms"] == pytest.approx(median(whole), abs=0.01)
        assert completed["telegram", "interactive"]["parsed"] == 1
        await meter.shows("switchboard_end_to_end_latency_ms_count", 1, source_channel="telegram")

        # Dispatches that succeeded.
        routes = before_the_person["routes"]
        assert (routes["routes"], routes["succeeded"], routes["success_rate"]) == (4, 3, 0.75)
        (finance_routes,) = routes["by_butler"]
        assert finance_routes == {
            "target_butler": "finance",
            "routes": 4,
            "succeeded": 3,
            "success_rate": 0.75,
            "errors": {"validation_error": 1},
        }

        # From PROGRESS to PARSED or ERRORED, where somebody waits.
        (waited,) = levels["interactive"]
        assert (waited["source_channel"], waited["lifecycle_state"], waited["requests"]) == ("telegram", "parsed", 1)
        (_, own) = await latencies(running, started, "source_channel = 'telegram'")
        assert waited["p50_ms"] == waited["p99_ms"] == pytest.approx(own, abs=0.01)
        counted = "switchboard_interactive_terminal_latency_ms_count"
        await meter.shows(counted, 1, source_channel="telegram", lifecycle_state="parsed")
        assert await meter.grown(counted) == 1

        await at_every_door(running, started, levels)


async def at_every_door(running: RunningSystem, since: str, levels: dict[str, Any]) -> None:
    parts = ("accept", "completion", "routes", "interactive")
    by_tool = await tool(running, "service_levels", since=since)
    by_cli = await document(running, "service-levels", "--since", since)
    for part in parts:
        assert by_tool[part] == by_cli[part] == levels[part], part
    said = (await cli(running, "service-levels", "--since", since)).stdout
    assert "finance: 75.00% of 4, 1 validation_error" in said
    assert "telegram: 1 parsed, p50" in said
    earlier = await read(running, "service-levels", since="2026-01-01T00:00:00Z", until="2026-01-02T00:00:00Z")
    assert earlier["accept"] == [] and earlier["routes"]["routes"] == 0
    for wrong in ({"since": "2026-01-01T00:00:00Z"}, {"since": since, "until": since}, {"since": "yesterday"}):
        answer = await running.http.get(running.url(path="/api/service-levels"), params=wrong)
        assert (answer.status_code, answer.json()["error"]["class"]) == (422, "validation_error"), wrong


@pytest.mark.parametrize(
    ("measured", "kept"), [(0.0, 0), (0.2, 1), (7.0, 7), (99.1, 100), (101.0, 110), (1234.5, 1300), (9999.0, 10000)]
)
async def test_accept_times_are_kept_to_two_digits_and_never_flattered(measured: float, kept: int) -> None:
    written: Any = AsyncMock()
    times = AcceptTimes(database=written, schema="switchboard", clock=SystemClock())
    times.note(datetime(2026, 3, 1, 12, 0, 7, tzinfo=UTC), "api", measured)
    await times.flush()
    _query, minutes, channels, milliseconds, counts = written.execute.await_args.args
    assert (minutes, channels) == ([datetime(2026, 3, 1, 12, 0, tzinfo=UTC)], ["api"])
    assert (milliseconds, counts) == ([kept], [1])
