"""What Redis says of a stream, in the words of `QueueCore.stats` and `QueueCore.audit`. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from butlers.courier.credit import Meter
from butlers.courier.messages import Counts
from butlers.courier.rates import percentile_ms


@dataclass(frozen=True, slots=True)
class GroupReport:
    name: str
    counts: Mapping[str, int]
    items: int  # messages of the group, dead ones among them
    queued: int  # ready, or behind another one of the partition
    delayed: int
    leased: int
    dead: int
    subscribers: int

    @classmethod
    def of(cls, found: Sequence[Any]) -> GroupReport:
        name, flat, *sizes = found
        counts = asdict(Counts()) | {flat[n]: int(flat[n + 1]) for n in range(0, len(flat), 2)}
        return cls(name, counts, *sizes)


def stats_of(stream: str, found: Sequence[Any], meter: Meter, *, now: float, busy: int) -> dict[str, Any]:
    """Rates, latencies and busy subscribers are those of this gateway; everything else is of all."""
    last, paused, draining, reported = found
    groups = [GroupReport.of(one) for one in reported]
    rate_in, rate_out = meter.rates(now)
    latencies = sorted(meter.latencies)
    return {
        "stream": stream,
        "depth": max(group.queued + group.delayed for group in groups),
        "delayed": max(group.delayed for group in groups),
        "inflight": sum(group.leased for group in groups),
        "dead": sum(group.dead for group in groups),
        "rateIn": round(rate_in, 3),
        "rateOut": round(rate_out, 3),
        "latP50": percentile_ms(latencies, 0.50),
        "latP95": percentile_ms(latencies, 0.95),
        "lastTs": last,
        "paused": bool(paused),
        "draining": bool(draining),
        "subscribers": sum(group.subscribers for group in groups),
        "members": {group.name: group.subscribers for group in groups},
        "busy": busy,
        "groups": [group.name for group in groups],
        "counts": {name: sum(group.counts[name] for group in groups) for name in groups[0].counts},
    }


def audit_of(stream: str, found: Sequence[Any]) -> dict[str, Any]:
    groups = {report.name: _audit(report) for report in map(GroupReport.of, found[3])}
    return {"stream": stream, "balanced": all(group["balanced"] for group in groups.values()), "groups": groups}


def _audit(group: GroupReport) -> dict[str, int | bool]:
    """Where the messages are, by the lists they stand in, against what was counted and against their number."""
    places = {"queued": group.queued, "delayed": group.delayed, "leased": group.leased}
    ends = {name: group.counts[name] for name in ("acked", "discarded", "dropped")}
    shown = {**places, "acked": ends["acked"], "dead": group.dead, **ends}
    accepted = group.counts["accepted"]
    balanced = sum(shown.values()) == accepted and sum(places.values()) + group.dead == group.items
    return {"accepted": accepted, **shown, "balanced": balanced}
