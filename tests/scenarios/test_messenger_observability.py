"""What Messenger tells about itself in numbers: counters, histograms and service levels."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from butlers.storage.embedded import EmbeddedPostgres
from tests.scenarios.messenger_door import (
    attempts,
    call,
    deliver,
    execute,
    fault,
    forget,
    lineage,
    quick,
    refusal,
    route,
    rows,
    wish,
)
from tests.system import RunningSystem, running_system

pytestmark = pytest.mark.asyncio(loop_scope="module")

FRIEND = "friend@elsewhere.example"
CORE_COUNTERS = (
    "delivery_requested",
    "delivery_deduplicated",
    "delivery_sent",
    "delivery_failed",
    "retry_attempt",
    "rate_limited",
    "admission_rejected",
)
CORE_HISTOGRAMS = ("delivery_latency_ms", "provider_latency_ms", "queue_wait_ms")
ALWAYS = {"channel", "intent", "identity_scope", "origin_butler"}
_SAMPLE = re.compile(r"butlers_messenger_(?P<name>\w+)\{(?P<labels>.*)\} (?P<value>\S+)")

Sample = tuple[dict[str, str], float]


# --- one system with a small budget per recipient, so that a refusal takes two messages ------------------------------


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def system(
    tmp_path_factory: pytest.TempPathFactory, postgres_server: EmbeddedPostgres
) -> AsyncIterator[RunningSystem]:
    tmp_path = tmp_path_factory.mktemp("observed")
    changes = (
        (r"^recipient_per_minute = .*$", "recipient_per_minute = 1.0"),
        (r"^tell_owner = true", "tell_owner = false"),
    )
    roster = quick(tmp_path, *changes)
    async with running_system(tmp_path, postgres_server, roster_dir=roster, shipped_limits=True) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def running(system: RunningSystem) -> RunningSystem:
    await forget(system)
    return system


async def tool(running: RunningSystem, name: str, **arguments: Any) -> dict[str, Any]:
    return await call(running, "messenger", f"messenger_{name}", arguments)


class Meter:
    """What the counters have grown by since it was made."""

    def __init__(self, before: dict[str, list[Sample]]) -> None:
        self._before = before

    async def grown(self, running: RunningSystem, name: str) -> list[Sample]:
        """Samples of one metric that moved, with their labels."""
        found = (await scraped(running)).get(name, [])
        before = {json.dumps(labels, sort_keys=True): value for labels, value in self._before.get(name, [])}
        moved = [(labels, value - before.get(json.dumps(labels, sort_keys=True), 0.0)) for labels, value in found]
        return [(labels, value) for labels, value in moved if value]


async def scraped(running: RunningSystem) -> dict[str, list[Sample]]:
    text = (await running.http.get(running.url("messenger", "/metrics"))).text
    samples: dict[str, list[Sample]] = {}
    for found in map(_SAMPLE.fullmatch, text.splitlines()):
        if found is not None:
            labels = dict(re.findall(r'(\w+)="([^"]*)"', found["labels"]))
            own = {name: value for name, value in labels.items() if not name.startswith("service_")}
            samples.setdefault(found["name"], []).append((own, float(found["value"])))
    return samples


def total(samples: list[Sample], **labels: str) -> float:
    return sum(value for found, value in samples if found | labels == found)


async def every_case(running: RunningSystem) -> None:
    """One of everything that can happen to a delivery."""
    await deliver(running, wish("sent", recipient="401", idempotency_key="sent"))
    await deliver(running, wish("sent", recipient="401", idempotency_key="sent"))  # a repeat
    refused = await execute(running, route(running, wish("too soon", recipient="401")))
    assert refused["error"]["class"] == "overload_rejected"
    await deliver(running, wish("a reply", intent="reply", request_context=lineage(running), origin_butler="travel"))
    await deliver(running, wish("a mail", channel="email", recipient=FRIEND, subject="s"))
    await fault(running, "error_5xx", status=502)
    await deliver(running, wish("second time", recipient="402"))
    await fault(running, "too_many_requests", retry_after=1)
    await deliver(running, wish("when you like", recipient="403"))
    await running.control("POST", "/users/404/block")
    await deliver(running, wish("unwanted", recipient="404"))
    await refusal(running, wish("still unwanted", recipient="404"))
    await fault(running, "error_5xx", times=3, status=502)
    assert (await deliver(running, wish("never", recipient="405")))["delivery"]["status"] == "dead_lettered"
    await fault(running, "drop_after")
    assert (await deliver(running, wish("who knows", recipient="406")))["delivery"]["status"] == "uncertain"


@pytest.mark.scenario("M1-052")
async def test_core_counters_and_histograms_with_their_attributes(running: RunningSystem) -> None:
    meter = Meter(await scraped(running))
    await every_case(running)
    samples = {name: await meter.grown(running, f"{name}_total") for name in CORE_COUNTERS}
    samples |= {name: await meter.grown(running, f"{name}_count") for name in CORE_HISTOGRAMS}
    for name, found in samples.items():
        assert found, name
        for labels, _ in found:
            assert labels.keys() >= ALWAYS, (name, labels)

    requested = samples["delivery_requested"]
    assert total(requested) == len(await rows(running)) == 8
    common = {"channel": "telegram", "identity_scope": "bot", "origin_butler": "health", "intent": "send"}
    assert total(requested, **common) == 6
    assert total(requested, channel="telegram", intent="reply", origin_butler="travel") == 1
    assert total(requested, channel="email", intent="send", origin_butler="health") == 1
    assert [(labels, n) for labels, n in samples["delivery_deduplicated"]] == [(common, 1.0)]
    assert total(samples["delivery_sent"]) == total(samples["delivery_sent"], outcome="delivered") == 5

    failed = samples["delivery_failed"]
    assert all(labels.keys() == ALWAYS | {"outcome", "error_class"} for labels, _ in failed)
    assert total(failed, outcome="failed", error_class="target_unavailable") == 1
    assert total(failed, outcome="dead_lettered", error_class="target_unavailable") == 1
    assert total(failed, outcome="uncertain", error_class="timeout") == 1
    retries = samples["retry_attempt"]
    assert total(retries, error_class="target_unavailable", **common) == total(retries)
    assert total(retries) == sum(attempt["attempt_number"] > 1 for attempt in await attempts(running)) == 4

    rejected = samples["admission_rejected"]
    assert total(rejected, outcome="rejected", error_class="overload_rejected", rule="recipient", **common) == 1
    assert total(rejected, outcome="rejected", error_class="validation_error", rule="suppressed", **common) == 1
    assert total(rejected) == 2
    limited = samples["rate_limited"]
    assert total(limited, outcome="rejected", error_class="overload_rejected", rule="recipient") == 1
    assert total(limited, outcome="delayed", error_class="target_unavailable", rule="throttle") == 1
    assert total(limited) == 2

    assert total(samples["delivery_latency_ms"]) == 8  # whatever has ended, once
    assert total(samples["delivery_latency_ms"], outcome="delivered", channel="telegram", intent="reply") == 1
    assert total(samples["provider_latency_ms"]) == len(await attempts(running)) == 12
    assert total(samples["provider_latency_ms"], outcome="awaiting_retry", error_class="target_unavailable") == 4
    assert total(samples["queue_wait_ms"]) == 8  # first attempts only


@pytest.mark.scenario("M1-052")
async def test_attributes_stay_few_whoever_is_written_to(running: RunningSystem) -> None:
    await every_case(running)
    before = await scraped(running)
    for number in range(5):
        await deliver(running, wish(f"message {number}", recipient=f"42{number}", idempotency_key=f"key {number}"))
    after = await scraped(running)
    names = {f"{name}_total" for name in CORE_COUNTERS} | {f"{name}_count" for name in CORE_HISTOGRAMS}
    # No new series: neither recipients nor ids nor texts are attributes.
    assert {name: len(after[name]) for name in names} == {name: len(before[name]) for name in names}
    text = (await running.http.get(running.url("messenger", "/metrics"))).text
    assert "420" not in re.findall(r'"([^"]*)"', text)


@pytest.mark.scenario("M1-054")
async def test_the_minimum_set_of_service_levels(running: RunningSystem) -> None:
    began = running.clock.now()
    await every_case(running)
    letter = (await tool(running, "dead_letter_list"))["dead_letters"][0]["id"]
    await running.database.execute("delete from messenger.rate_buckets where name <> 'lock'")
    assert (await tool(running, "dead_letter_replay", dead_letter_id=letter))["status"] == "delivered"
    levels = await tool(running, "service_levels", since=began.isoformat())

    # Success by channel: whoever blocked us is excused, for no delivering could have helped.
    success = {level["channel"]: level for level in levels["success"]}
    telegram = success["telegram"]
    assert (telegram["delivered"], telegram["dead_lettered"], telegram["uncertain"]) == (5, 1, 1)
    assert (telegram["failed"], telegram["excused"]) == (0, 1)
    assert telegram["success_rate"] == pytest.approx(5 / 7)
    assert (success["email"]["delivered"], success["email"]["success_rate"]) == (1, 1.0)

    # p95 from the request to the provider's acceptance, by channel and intent.
    latency = {(level["channel"], level["intent"]): level for level in levels["latency"]}
    assert latency.keys() == {("telegram", "send"), ("telegram", "reply"), ("email", "send")}
    [reply] = [row for row in await rows(running) if row["intent"] == "reply"]
    took = (reply["terminal_at"] - reply["created_at"]).total_seconds() * 1000
    assert latency["telegram", "reply"]["p95_ms"] == pytest.approx(took, abs=0.01)
    assert latency["telegram", "send"]["p95_ms"] > 700  # the one that had to wait a second
    assert latency["telegram", "send"]["p50_ms"] <= latency["telegram", "send"]["p95_ms"]

    # Nothing was said twice, by the record and by the transcript.
    assert (levels["duplicates"]["duplicates"], levels["duplicates"]["duplicate_rate"]) == (0, 0.0)
    assert (await running.answers(401), await running.answers(402)) == (["[health] sent"], ["[health] second time"])

    # Rejections for want of room, and how full the queue is.
    admission = levels["admission"]
    assert (admission["rejected"], admission["by_channel"][-1]["by_rule"]["recipient"]) == (1, 1)
    assert admission["rejection_rate"] == pytest.approx(1 / (admission["admitted"] + 1))
    assert (levels["queue"]["in_flight"], levels["queue"]["saturation"]) == (0, 0.0)
    assert levels["queue"]["by_status"]["uncertain"] == 1

    # Dead letters and what their replays came to.
    letters = levels["dead_letters"]
    assert (letters["dead_letters"], letters["replays_ended"], letters["replay_success_rate"]) == (1, 1, 1.0)
    assert (levels["uncertain"]["uncertain"], levels["uncertain"]["settle_rate"]) == (1, 0.0)
    assert {budget["channel"] for budget in levels["error_budget"]} == {"telegram", "email"}
    # Another window knows nothing of it, and says so instead of zero.
    before = await tool(running, "service_levels", until=began.isoformat())
    assert {level["success_rate"] for level in before["success"]} == {None}
    assert before["dead_letters"]["replay_success_rate"] is None
