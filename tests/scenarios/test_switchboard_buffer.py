"""The DurableBuffer: what waits in memory, in which order it is taken, and how what fell out of memory comes back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio

from butlers.storage.embedded import EmbeddedPostgres
from tests.scenarios.downstream import Downstream, after, downstream, ok
from tests.scenarios.fanout_system import AT_HOME
from tests.scenarios.messenger_door import changed_roster
from tests.scenarios.switchboard_door import all_finished, call, post, row, rows
from tests.scenarios.switchboard_meter import Meter, gauge, left_behind
from tests.system import RunningSystem, running_system

pytestmark = pytest.mark.asyncio(loop_scope="module")

CAPACITY, GUARD, MAX_WAITING = 8, 3, 40
OPEN_TO_ONE_CHANNEL = MAX_WAITING // 8 + MAX_WAITING // 2  # its own share and the common pool
GRACE_S = 1.5

Served = tuple[RunningSystem, Downstream]


def still(tmp_path: Path) -> Path:
    """One worker, small queues, and a scanner that looks only when it is called."""
    return changed_roster(
        tmp_path,
        "switchboard",
        (r"^queue_capacity = .*$", f"queue_capacity = {CAPACITY}\nmax_consecutive_same_tier = {GUARD}"),
        (r"^worker_count = .*$", "worker_count = 1"),
        (r"^scanner_interval_s = .*$", "scanner_interval_s = 3600"),
        (r"^\[modules\.calendar\]", f"[admission]\nmax_waiting = {MAX_WAITING}\n\n[modules.calendar]"),
    )


def scanning(tmp_path: Path) -> Path:
    return changed_roster(
        tmp_path,
        "switchboard",
        (r"^scanner_interval_s = .*$", "scanner_interval_s = 0.1"),
        (r"^scanner_grace_s = .*$", f"scanner_grace_s = {GRACE_S}"),
    )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory, postgres_server: EmbeddedPostgres) -> AsyncIterator[Served]:
    tmp_path = tmp_path_factory.mktemp("still")
    async with (
        running_system(
            tmp_path, postgres_server, names=AT_HOME, roster_dir=still(tmp_path), lease_ttl_s=600
        ) as running,
        downstream(running, "finance") as finance,
    ):
        yield running, finance


@pytest_asyncio.fixture(loop_scope="module")
async def desk(served: Served) -> AsyncIterator[Desk]:
    running, finance = served
    desk = Desk(running, finance)
    yield desk
    desk.gate.set()
    await all_finished(running, deadline_s=60)


class Desk:
    """Switchboard with one worker, whose only butler answers when the gate is opened."""

    def __init__(self, running: RunningSystem, finance: Downstream) -> None:
        self.running, self.finance, self.gate = running, finance, asyncio.Event()
        finance.will(after(self.gate))

    def envelope(self, text: str, tier: str = "default") -> dict[str, Any]:
        control = {"policy_tier": tier, "pinned_target": "finance", "idempotency_key": uuid4().hex}
        return self.running.envelope(text) | {"control": control}

    async def hand_in(self, *texts: str, tier: str = "default") -> list[str]:
        replies = [await post(self.running, self.envelope(text, tier)) for text in texts]
        assert {reply.status_code for reply in replies} == {202}
        return [reply.json()["request_id"] for reply in replies]

    async def busy(self) -> str:
        """The worker has something in hand that does not end."""
        (request_id,) = await self.hand_in("first of all")
        await self.finance.called()
        return request_id

    def served(self) -> list[str]:
        """What the butler was given after the first, in order."""
        return [envelope["input"]["prompt"] for envelope in self.finance.got[1:]]

    async def states(self, request_ids: list[str]) -> set[str]:
        return {(await row(self.running, "switchboard.message_inbox", one))["lifecycle_state"] for one in request_ids}


# --- the hot path ----------------------------------------------------------------------------------------------------


@pytest.mark.scenario("S3-023")
async def test_non_blocking_ingress_acceptance(desk: Desk) -> None:
    running = desk.running
    await desk.busy()
    by_http = await desk.hand_in("by http", "by http again")
    async with running.mcp("switchboard", caller="operator") as client:
        by_mcp = [(await call(client, "ingest", desk.envelope("by mcp")))["request_id"]]
    await running.says("I paid the electricity bill")

    async def polled() -> bool:
        query = "SELECT count(*) FROM switchboard.message_inbox WHERE source_channel = 'telegram'"
        return bool(await running.database.fetchval(query))

    await running.until(polled)  # the loop that reads Telegram goes on
    assert await desk.states([*by_http, *by_mcp]) == {"accepted"}, "stored, and not begun"

    # Bounded: when the waiting room is full, whoever wants an answer at once is told so at once, and nothing is stored.
    waiting = await running.database.fetchval(
        "SELECT count(*) FROM switchboard.message_inbox"
        " WHERE source_channel = 'api' AND lifecycle_state IN ('accepted', 'progress')"
    )
    room = OPEN_TO_ONE_CHANNEL - waiting
    answers = [await post(running, desk.envelope(f"one more {n}", "interactive")) for n in range(room + 3)]
    assert [answer.status_code for answer in answers] == [202] * room + [429] * 3
    assert (answers[-1].json()["error"]["class"], answers[-1].json()["error"]["retryable"]) == (
        "overload_rejected",
        True,
    )
    assert int(answers[-1].headers["Retry-After"]) >= 1

    desk.gate.set()
    await all_finished(running, deadline_s=90)
    stored = [*by_http, *by_mcp, *(answer.json()["request_id"] for answer in answers[:room])]
    assert await desk.states(stored) == {"parsed"}


@pytest.mark.scenario("S3-024")
async def test_durable_buffer_hot_path(desk: Desk) -> None:
    running, meter = desk.running, await Meter.of(desk.running)
    await desk.busy()
    ordinary = await desk.hand_in(*(f"ordinary {n}" for n in range(CAPACITY + 1)))
    urgent = await desk.hand_in("urgent", tier="high_priority")

    assert await desk.states([*ordinary, *urgent]) == {"accepted"}, "on disk before they are queued"
    assert await gauge(running, "buffer_queue_depth", policy_tier="default") == CAPACITY
    assert await gauge(running, "buffer_queue_depth", policy_tier="high_priority") == 1, "a queue of its own"
    assert await meter.grown("buffer_enqueue_total", path="hot") == 1 + CAPACITY + 1
    assert await meter.grown("buffer_enqueue_total", path="cold") == 0
    assert running.roster["general"].buffer.queue_capacity == 100, "unless [buffer] says otherwise"


@pytest.mark.scenario("S3-026")
async def test_backpressure_on_queue_full(desk: Desk) -> None:
    running, meter = desk.running, await Meter.of(desk.running)
    await desk.busy()
    queued = await desk.hand_in(*(f"queued {n}" for n in range(CAPACITY)))
    assert await meter.grown("buffer_backpressure_total") == 0
    left_out = await desk.hand_in("left out 1", "left out 2", "left out 3")
    assert await meter.grown("buffer_backpressure_total") == 3
    assert await desk.states(left_out) == {"accepted"}

    desk.gate.set()
    await all_finished(running, deadline_s=60)
    assert await desk.states([*queued, *left_out]) == {"parsed"}
    assert sorted(desk.served()) == sorted(
        [f"queued {n}" for n in range(CAPACITY)] + [f"left out {n}" for n in (1, 2, 3)]
    ), "each once"
    await meter.shows("buffer_scanner_recovered_total", 3)


# --- tiers -----------------------------------------------------------------------------------------------------------


@pytest.mark.scenario("S3-028")
async def test_tier_ordering(desk: Desk) -> None:
    await desk.busy()
    await desk.hand_in("default 1", "default 2")
    await desk.hand_in("interactive 1", "interactive 2", tier="interactive")
    await desk.hand_in("high 1", "high 2", tier="high_priority")
    desk.gate.set()
    await all_finished(desk.running, deadline_s=60)
    assert desk.served() == ["high 1", "high 2", "interactive 1", "interactive 2", "default 1", "default 2"]


@pytest.mark.scenario("S3-028")
async def test_every_tier_has_a_queue_of_its_own_size(desk: Desk) -> None:
    meter = await Meter.of(desk.running)
    await desk.busy()
    for tier in ("default", "interactive"):
        await desk.hand_in(*(f"{tier} {n}" for n in range(CAPACITY)), tier=tier)
        assert await gauge(desk.running, "buffer_queue_depth", policy_tier=tier) == CAPACITY
    assert await meter.grown("buffer_backpressure_total") == 0
    await desk.hand_in("high", tier="high_priority")
    assert await gauge(desk.running, "buffer_queue_depth", policy_tier="high_priority") == 1


@pytest.mark.scenario("S3-029")
async def test_starvation_guard(desk: Desk) -> None:
    meter = await Meter.of(desk.running)
    await desk.busy()
    await desk.hand_in("default 1")
    await desk.hand_in("interactive 1", "interactive 2", tier="interactive")
    await desk.hand_in(*(f"high {n}" for n in range(1, 8)), tier="high_priority")
    desk.gate.set()
    await all_finished(desk.running, deadline_s=60)
    assert desk.served() == [
        *("high 1", "high 2", "high 3", "interactive 1"),  # forced from the highest lower tier
        *("high 4", "high 5", "high 6", "interactive 2"),  # counted anew, from the highest again
        *("high 7", "default 1"),
    ]
    forced = {"policy_tier": "interactive", "starvation_override": "true"}
    assert await meter.grown("switchboard_queue_dequeue_by_tier_total", **forced) == 2
    assert await meter.grown("switchboard_queue_dequeue_by_tier_total", starvation_override="true") == 2


# --- the cold path ---------------------------------------------------------------------------------------------------


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scanned(tmp_path_factory: pytest.TempPathFactory, postgres_server: EmbeddedPostgres) -> AsyncIterator[Served]:
    tmp_path = tmp_path_factory.mktemp("scanning")
    async with (
        running_system(tmp_path, postgres_server, names=AT_HOME, roster_dir=scanning(tmp_path)) as running,
        downstream(running, "finance") as finance,
    ):
        yield running, finance


@pytest.mark.scenario("S3-025")
async def test_durable_buffer_cold_path(scanned: Served) -> None:
    running, finance = scanned
    finance.will(ok())
    meter = await Meter.of(running)
    young = await left_behind(running, "too young", age_s=-3600)  # nobody was slow: its time has not come
    old = await left_behind(running, "left in accepted", age_s=GRACE_S + 1, tier="high_priority", target="finance")
    empty = await left_behind(running, "  ", age_s=GRACE_S + 1, target="finance")
    fresh = await left_behind(running, "waits for the grace", age_s=0, target="finance")

    assert (await running.finished(old))["lifecycle_state"] == "parsed"
    skipped = await running.finished(empty)
    assert (skipped["lifecycle_state"], skipped["lifecycle_error"]["class"]) == ("errored", "validation_error")
    assert await rows(running, "switchboard.routing_log", empty) == [], "nobody was asked"
    await running.finished(fresh)
    began = (await row(running, "switchboard.message_inbox", fresh))["progress_at"]
    waited = began - (await row(running, "switchboard.message_inbox", fresh))["received_at"]
    assert waited.total_seconds() >= GRACE_S
    assert [one["input"]["prompt"] for one in finance.got] == ["left in accepted", "waits for the grace"]
    assert (await row(running, "switchboard.message_inbox", young))["lifecycle_state"] == "accepted"

    await meter.shows("buffer_scanner_recovered_total", 3)
    await meter.shows("buffer_enqueue_total", 3, path="cold")
    assert await meter.grown("buffer_enqueue_total", path="hot") == 0
    assert await meter.grown("switchboard_queue_dequeue_by_tier_total", policy_tier="high_priority") == 1
    await running.database.execute("DELETE FROM switchboard.message_inbox WHERE lifecycle_state = 'accepted'")


@pytest.mark.scenario("S3-030")
async def test_unknown_policy_tier_fallback(scanned: Served, caplog: pytest.LogCaptureFixture) -> None:
    running, finance = scanned
    finance.will(ok())
    meter = await Meter.of(running)
    strange = await left_behind(running, "of a tier to come", age_s=GRACE_S + 1, tier="very_urgent", target="finance")

    trace = await running.finished(strange)
    assert trace["lifecycle_state"] == "parsed"
    assert trace["routing"]["decision"]["policy"]["tier"] == "default"
    assert await meter.grown("switchboard_queue_dequeue_by_tier_total", policy_tier="default") == 1
    warned = [record for record in caplog.records if record.message == "unknown policy tier, using default"]
    assert {record.levelname for record in warned} == {"WARNING"}
    assert str(warned[0].__dict__["butlers_fields"]["request_id"]) == strange
    refused = running.envelope("at the door") | {"control": {"policy_tier": "very_urgent"}}
    assert (await post(running, refused)).status_code == 422, "the contract knows three"
