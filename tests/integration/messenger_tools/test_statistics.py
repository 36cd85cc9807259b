"""Counts, rates and percentiles against an oracle computed by hand."""

from __future__ import annotations

import random
from collections import defaultdict
from datetime import timedelta
from typing import Any

import pytest

from butlers.errors import ValidationError
from tests.integration.messenger_tools.stored_state import START, StoredState


def percentile(values: list[float], share: float) -> float | None:
    """Linear interpolation between the two values around the rank, written out."""
    if not values:
        return None
    ranked, rank = sorted(values), share * (len(values) - 1)
    below, above = ranked[int(rank)], ranked[min(int(rank) + 1, len(ranked) - 1)]
    return below + (above - below) * (rank - int(rank))


async def delivered_in(state: StoredState, milliseconds: int, **columns: Any) -> None:
    moment = columns.pop("created_at", START - timedelta(hours=1))
    ended = moment + timedelta(milliseconds=milliseconds)
    delivery = await state.delivery(created_at=moment, terminal_at=ended, **columns)
    await state.attempt(delivery, latency_ms=milliseconds // 2)


async def test_a_window_without_deliveries_knows_no_rates(state: StoredState):
    stats = await state.call("delivery_stats")
    assert (stats["total"], stats["failed"], stats["dead_lettered"], stats["uncertain"]) == (0, 0, 0, 0)
    for name in ("success_rate", "retry_rate", "dead_letter_rate", "p50_ms", "p95_ms", "provider_p50_ms", "requests"):
        assert stats[name] is None, name
    assert stats["groups"] == []
    assert stats["window"] == {"since": "2026-02-28T12:00:00Z", "until": "2026-03-01T12:00:00Z"}
    assert (await state.call("delivery_stats", group_by="channel"))["groups"] == []


async def test_nothing_ended_is_no_success_rate_and_nothing_succeeded_is_zero(state: StoredState):
    await state.delivery(status="pending", attempts=0, created_at=START - timedelta(hours=1))
    stats = await state.call("delivery_stats")
    assert (stats["total"], stats["open"], stats["success_rate"], stats["retry_rate"]) == (1, 1, None, None)
    await state.delivery(status="failed", created_at=START - timedelta(hours=1))
    stats = await state.call("delivery_stats")
    assert (stats["success_rate"], stats["retry_rate"], stats["dead_letter_rate"]) == (0.0, 0.0, 0.0)
    assert stats["p50_ms"] is None


async def test_rates_are_shares_of_what_ended_and_of_what_was_tried(state: StoredState):
    moment = START - timedelta(hours=1)
    for status, attempts in (
        ("delivered", 1),
        ("delivered", 3),
        ("failed", 1),
        ("dead_lettered", 3),
        ("uncertain", 1),
        ("expired", 0),
        ("awaiting_retry", 1),
        ("pending", 0),
    ):
        await state.delivery(status=status, attempts=attempts, created_at=moment)
    stats = await state.call("delivery_stats")
    assert (stats["total"], stats["open"], stats["delivered"], stats["expired"]) == (8, 2, 2, 1)
    assert (stats["failed"], stats["dead_lettered"], stats["uncertain"]) == (1, 1, 1)
    assert stats["success_rate"] == pytest.approx(2 / 6, abs=1e-6)
    assert stats["dead_letter_rate"] == pytest.approx(1 / 6, abs=1e-6)
    assert stats["retry_rate"] == pytest.approx(2 / 6, abs=1e-6)


async def test_percentiles_come_from_the_raw_latencies_of_all_and_of_each_group(state: StoredState):
    chance = random.Random(20260301)
    latencies: dict[str, list[float]] = defaultdict(list)
    # Uneven groups: the mean of their percentiles is far from the percentile of all.
    for channel, count, scale in (("telegram", 40, 100), ("email", 7, 9000)):
        for _ in range(count):
            took = chance.randrange(1, scale)
            latencies[channel].append(took)
            await delivered_in(state, took, channel=channel)
    await state.delivery(status="failed", terminal_at=START, created_at=START - timedelta(hours=9))  # not counted
    stats = await state.call("delivery_stats", group_by="channel")
    everything = latencies["telegram"] + latencies["email"]
    groups = {group["key"]: group for group in stats["groups"]}
    assert groups.keys() == latencies.keys()
    for line, values in ((stats, everything), (groups["email"], latencies["email"])):
        assert line["p50_ms"] == pytest.approx(percentile(values, 0.5), abs=1e-3)
        assert line["p95_ms"] == pytest.approx(percentile(values, 0.95), abs=1e-3)
        halves = [value // 2 for value in values]
        assert line["provider_p50_ms"] == pytest.approx(percentile(halves, 0.5), abs=1e-3)
        assert line["provider_p95_ms"] == pytest.approx(percentile(halves, 0.95), abs=1e-3)
    averaged = (groups["email"]["p95_ms"] + groups["telegram"]["p95_ms"]) / 2
    assert abs(stats["p95_ms"] - averaged) > 100
    assert [group["total"] for group in stats["groups"]] == [41, 7]  # the largest first


@pytest.mark.parametrize(
    ("group_by", "keys"),
    [
        ("channel", {"telegram", "email"}),
        ("intent", {"send", "reply"}),
        ("origin_butler", {"health", "finance"}),
        ("outcome", {"delivered", "failed"}),
        ("error_class", {None, "timeout"}),
    ],
)
async def test_groups_are_made_by_every_property(state: StoredState, group_by: str, keys: set[str | None]):
    await delivered_in(state, 10)
    await state.delivery(
        channel="email",
        intent="reply",
        origin_butler="finance",
        status="failed",
        terminal_error_class="timeout",
        created_at=START - timedelta(hours=1),
    )
    stats = await state.call("delivery_stats", group_by=group_by)
    assert {group["key"] for group in stats["groups"]} == keys
    assert [group["total"] for group in stats["groups"]] == [1, 1]
    assert stats["total"] == 2


async def test_a_delivery_belongs_to_the_window_in_which_it_was_asked_for(state: StoredState):
    for hours in (1, 23, 25):
        await state.delivery(created_at=START - timedelta(hours=hours))
    assert (await state.call("delivery_stats"))["total"] == 2
    assert (await state.call("delivery_stats", since="2026-02-28T00:00:00Z"))["total"] == 3
    assert (await state.call("delivery_stats", until="2026-03-01T11:00:00Z"))["total"] == 2  # not the one at 11:00
    with pytest.raises(ValidationError, match="since: is later than until"):
        await state.call("delivery_stats", since="2026-03-01T00:00:00Z", until="2026-02-01T00:00:00Z")
    with pytest.raises(ValidationError, match="group_by must be one of"):
        await state.call("delivery_stats", group_by="weather")


async def test_requests_that_left_no_delivery_are_counted_at_the_door(state: StoredState):
    for outcome, requests in (("admitted", 5), ("rejected", 2)):
        row = {"minute": START - timedelta(minutes=5), "channel": "telegram", "intent": "send"}
        more = {"origin_butler": "health", "outcome": outcome, "requests": requests}
        await state.insert("admission_outcomes", row | more)
    stats = await state.call("delivery_stats")
    assert stats["requests"] == {"admitted": 5, "deduplicated": 0, "parked": 0, "rejected": 2}
