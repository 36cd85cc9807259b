"""How full the queue is, in both vocabularies: the statuses of the tables and the phases of the source document.

    status           phase
    pending          admitted            awaiting_admission while it was released and has still to pass
    in_progress      in_provider_call
    awaiting_retry   awaiting_retry

In flight is what has passed the door and waits for no clock: pending and in progress. What waits for its next attempt
is counted beside it, and so is what waits for a person.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from butlers.contracts.delivery_state import IN_FLIGHT, NEEDS_PERSON, OPEN

PHASES = ("admitted", "awaiting_admission", "awaiting_retry", "in_provider_call")

Group = Mapping[str, Any]  # channel, status, admitted, deliveries, oldest


def summary(groups: Sequence[Group], now: datetime) -> dict[str, Any]:
    moving = [group for group in groups if group["status"] in OPEN]
    oldest = min((group["oldest"] for group in moving), default=None)
    channels = sorted({group["channel"] for group in moving})
    return {
        "total": _in_flight(groups),
        "by_status": _counts(moving, "status", OPEN),
        "by_phase": _phases(moving),
        "by_channel": {name: _of_channel([g for g in moving if g["channel"] == name]) for name in channels},
        "parked": _counts(groups, "status", NEEDS_PERSON),
        "oldest_age_s": round(max(0.0, (now - oldest).total_seconds()), 3) if oldest else None,
    }


def _of_channel(groups: Sequence[Group]) -> dict[str, int]:
    return {"total": _in_flight(groups)} | _counts(groups, "status", OPEN)


def _in_flight(groups: Iterable[Group]) -> int:
    return sum(group["deliveries"] for group in groups if group["status"] in IN_FLIGHT)


def _phases(groups: Iterable[Group]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for group in groups:
        counts[_phase(group)] += group["deliveries"]
    return {phase: counts[phase] for phase in PHASES}


def _phase(group: Group) -> str:
    if group["status"] == "pending":
        return "admitted" if group["admitted"] else "awaiting_admission"
    return "in_provider_call" if group["status"] == "in_progress" else "awaiting_retry"


def _counts(groups: Iterable[Group], field: str, names: Iterable[str]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for group in groups:
        counts[group[field]] += group["deliveries"]
    return {name: counts[name] for name in names}
