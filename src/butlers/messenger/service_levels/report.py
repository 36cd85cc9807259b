"""The SLIs as one document. A rate over nothing is None: unknown is never shown as zero, nor as perfect."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from butlers.contracts.delivery_state import FINISHED, NEEDS_PERSON, OPEN
from butlers.messenger.service_levels.budget import Standing
from butlers.messenger.service_levels.long_budget import LongWindow
from butlers.reliability.error_budget import BudgetPolicy, burn_rate

Row = Mapping[str, Any]

_ENDINGS = (*FINISHED, "uncertain", "excused")


def rate(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def split_name(channel: str) -> tuple[str, str]:
    """`telegram.bot` is the channel telegram, used in the scope bot."""
    name, _, scope = channel.rpartition(".")
    return name, scope


def success(rows: Iterable[Row], channels: Sequence[str]) -> list[dict[str, Any]]:
    """Every channel in use, also one that ended nothing."""
    counted = {f"{row['channel']}.{row['identity_scope']}": row for row in rows}
    return [_success(name, counted.get(name, {})) for name in sorted({*channels, *counted})]


def _success(name: str, row: Row) -> dict[str, Any]:
    channel, scope = split_name(name)
    counts = {ending: int(row.get(ending, 0)) for ending in _ENDINGS}
    ended = sum(counts.values()) - counts["excused"]
    return {
        "channel": channel,
        "identity_scope": scope,
        **counts,
        "success_rate": rate(counts["delivered"], ended),
    }


def duplicates(row: Row) -> dict[str, Any]:
    twice = row["sent_again"] + row["delivered_again"]
    return {**row, "duplicates": twice, "duplicate_rate": rate(twice, row["delivered"])}


def admission(rows: Sequence[Row], rejections: Iterable[Row]) -> dict[str, Any]:
    by_rule: dict[str, dict[str, int]] = {}
    for found in rejections:
        by_rule.setdefault(found["channel"], {})[found["rule"]] = found["requests"]
    admitted, rejected = sum(row["admitted"] for row in rows), sum(row["rejected"] for row in rows)
    return {
        "admitted": admitted,
        "rejected": rejected,
        "rejection_rate": rate(rejected, admitted + rejected),
        "by_channel": [
            {
                **row,
                "rejection_rate": rate(row["rejected"], row["admitted"] + row["rejected"]),
                "by_rule": by_rule.get(row["channel"], {}),
            }
            for row in rows
        ],
    }


def queue(rows: Iterable[Row], max_in_flight: int) -> dict[str, Any]:
    rows = list(rows)
    # Released from parking but not yet let in by admission: it takes no room.
    in_flight = sum(row["admitted"] for row in rows if row["status"] in OPEN)
    return {
        "in_flight": in_flight,
        "max_in_flight": max_in_flight,
        "saturation": in_flight / max_in_flight,
        "by_status": by_status(rows),
    }


def by_status(rows: Iterable[Row]) -> dict[str, int]:
    return dict.fromkeys(map(str, OPEN + NEEDS_PERSON), 0) | {row["status"]: row["deliveries"] for row in rows}


def dead_letters(rows: Sequence[Row], replays: Row) -> dict[str, Any]:
    return {
        "dead_letters": sum(row["dead_letters"] for row in rows),
        "by_channel": list(rows),
        "replays_ended": replays["ended"],
        "replays_delivered": replays["delivered"],
        "replay_success_rate": rate(replays["delivered"], replays["ended"]),
    }


def doubts(rows: Sequence[Row]) -> dict[str, Any]:
    uncertain, unsettled = sum(row["uncertain"] for row in rows), sum(row["unsettled"] for row in rows)
    return {
        "uncertain": uncertain,
        "unsettled": unsettled,
        "settle_rate": rate(uncertain - unsettled, uncertain),
        "by_channel": [
            {**row, "settle_rate": rate(row["uncertain"] - row["unsettled"], row["uncertain"])} for row in rows
        ],
    }


def budgets(
    standings: Mapping[str, Standing],
    channels: Iterable[str],
    *,
    long: Mapping[str, Sequence[LongWindow]],
    policy: BudgetPolicy,
    now: datetime,
) -> list[dict[str, Any]]:
    return [
        _budget(name, standings.get(name, Standing()))
        | {"long_windows": [_long_window(window, policy, now) for window in long.get(name, ())]}
        for name in sorted({*channels, *standings})
    ]


def _long_window(window: LongWindow, policy: BudgetPolicy, now: datetime) -> dict[str, Any]:
    return {
        "window_s": window.window_s,
        "good": window.events.good,
        "bad": window.events.bad,
        "burn_rate": burn_rate(window.events, policy),
        "as_of": window.as_of,
        "fresh": window.is_fresh(now),  # what is old has no say
    }


def _budget(name: str, standing: Standing) -> dict[str, Any]:
    channel, scope = split_name(name)
    return {
        "channel": channel,
        "identity_scope": scope,
        "stance": standing.stance.value,
        "stance_since": standing.since,
        "stance_reason": standing.reason,
        "burn_rate": standing.burn_rate,
    }
