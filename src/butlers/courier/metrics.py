"""The courier's metrics as Prometheus reads them: the names of the design with a prefix."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from butlers.courier.queue import Queue
from butlers.courier.service import Courier

MOST_STREAMS = 1_000  # by depth; the others are summed up
_OTHERS = "(others)"

_COUNTERS = {
    "courier_q_in_total": ("accepted", "messages accepted"),
    "courier_q_out_total": ("delivered", "deliveries"),
    "courier_q_ack_total": ("acked", "messages acked"),
    "courier_q_nack_total": ("nacked", "messages given back by subscribers"),
    "courier_q_re_total": ("redelivered", "deliveries after the first one"),
    "courier_q_expired_total": ("expired", "leases that ran out"),
    "courier_q_dead_total": ("died", "messages that were given up"),
    "courier_q_dropped_total": ("dropped", "messages dropped by the overflow policy"),
    "courier_q_rejected_total": ("rejected", "messages refused because the stream was full"),
    "courier_q_duplicate_total": ("duplicates", "messages whose id was among the recent ones"),
}
_GAUGES: dict[str, tuple[str, str]] = {
    "courier_q_depth": ("depth", "messages queued or delayed"),
    "courier_q_if": ("inflight", "messages in the hands of subscribers"),
    "courier_q_dead": ("dead", "messages in the dead stream"),
    "courier_subscribers": ("subscribers", "subscribers"),
    "courier_subscribers_busy": ("busy", "subscribers without credit"),
    "courier_q_lat_p50_ms": ("latP50", "from the enqueue to the first delivery, median"),
    "courier_q_lat_p95_ms": ("latP95", "from the enqueue to the first delivery, 95th percentile"),
}
_NOT_SUMMED = {"courier_q_lat_p50_ms", "courier_q_lat_p95_ms"}


async def all_stats(queue: Queue) -> list[dict[str, Any]]:
    return [await queue.stats(name) for name in await queue.streams()]


async def exposition(courier: Courier) -> str:
    stats = sorted(await all_stats(courier.queue), key=lambda one: -one["depth"])
    lines: list[str] = []
    for name, (key, meaning) in _COUNTERS.items():
        lines += _metric(name, "counter", meaning, stats, [one["counts"][key] for one in stats])
    for name, (key, meaning) in _GAUGES.items():
        lines += _metric(name, "gauge", meaning, stats, [one[key] for one in stats])
    for name, runs, meaning in (
        ("courier_trigger_runs_total", courier.triggers.runs, "times that a trigger ran"),
        ("courier_trigger_suppressed_total", courier.triggers.suppressed, "times that a cooldown kept a trigger back"),
    ):
        lines += [f"# HELP {name} {meaning}", f"# TYPE {name} counter"]
        lines += [f'{name}{{rule="{_escaped(rule)}"}} {count}' for rule, count in sorted(runs.items())]
    return "\n".join([*lines, ""])


def _metric(name: str, kind: str, meaning: str, stats: list[dict[str, Any]], values: list[float]) -> Iterator[str]:
    yield f"# HELP {name} {meaning}"
    yield f"# TYPE {name} {kind}"
    for one, value in zip(stats[:MOST_STREAMS], values, strict=False):
        yield f'{name}{{stream="{one["stream"]}"}} {value}'
    if len(stats) > MOST_STREAMS and name not in _NOT_SUMMED:
        yield f'{name}{{stream="{_OTHERS}"}} {sum(values[MOST_STREAMS:])}'


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
