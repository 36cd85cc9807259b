"""What is left of the budgets, as an operator reads it. Pure: rows and the time in, a description out.

`total` is the limit that holds now: a channel whose error budget burns gets less than is configured. A stored bucket
that was filled under another limit is cut to the present one, as admission cuts it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from butlers.reliability.error_budget import Stance, admission_factor
from butlers.reliability.token_bucket import Bucket, available


def bucket_of(row: Mapping[str, Any]) -> Bucket:
    fields = ("capacity", "refill_per_second", "tokens", "updated_at")
    return Bucket(**{field: row[field] for field in fields})


def layer(bucket: Bucket | None, limit: float, now: datetime) -> dict[str, Any]:
    """One budget: consumed, total, remaining, and when it is whole again (None: it is)."""
    remaining = min(limit, available(bucket, now)) if bucket is not None else limit
    missing = limit - remaining
    whole_at = now + timedelta(seconds=missing / (limit / 60)) if missing > 0 else None
    return {
        "consumed": round(missing, 3),
        "total": limit,
        "remaining": round(remaining, 3),
        "resets_at": whole_at,
    }


def global_layer(bucket: Bucket | None, limits: Mapping[str, float], now: datetime) -> dict[str, Any]:
    return layer(bucket, limits["global"], now) | {"throttled_until": None}


def in_flight_layer(in_flight: int, limits: Mapping[str, float]) -> dict[str, Any]:
    total = limits.get("in_flight")
    remaining = max(0, int(total) - in_flight) if total is not None else None
    return {"consumed": in_flight, "total": total, "remaining": remaining}


def channel_layer(
    name: str,
    bucket: Bucket | None,
    *,
    limits: Mapping[str, float],
    state: Mapping[str, Any] | None,
    throttles: Sequence[Mapping[str, Any]],
    now: datetime,
) -> dict[str, Any]:
    configured = limits[f"channel:{name}"]
    stance = Stance(state["stance"]) if state is not None else Stance.NORMAL
    window = next((line for line in throttles if line["scope"] == name), None)
    return layer(bucket, max(1.0, configured * admission_factor(stance)), now) | {
        "configured": configured,
        "stance": stance.value,
        "stance_reason": state["stance_reason"] if state is not None else None,
        "burn_rate": state["burn_rate"] if state is not None else None,
        "throttled_until": window["until"] if window else None,
        "throttle_reason": window["reason"] if window else None,
    }


def recipient_layer(
    crowded: Sequence[Mapping[str, Any]],
    throttles: Sequence[Mapping[str, Any]],
    limits: Mapping[str, float],
    now: datetime,
) -> dict[str, Any]:
    """Whether the limits per recipient hold anybody back, and whom the most."""
    held = {line["scope"]: line for line in throttles if line["scope"] != line["channel"]}
    at_limit = crowded[0]["at_limit"] if crowded else 0
    return {
        "total": limits["recipient"],
        "active": bool(at_limit or held),
        "at_limit": at_limit,
        "throttled": len(held),
        "worst": [_recipient(row, limits["recipient"], now) for row in crowded],
        "throttles": [_throttled(line) for line in held.values()],
    }


def _recipient(row: Mapping[str, Any], limit: float, now: datetime) -> dict[str, Any]:
    _, channel, target = row["name"].split(":", 2)
    return {"channel": channel, "target": target, **layer(bucket_of(row), limit, now)}


def _throttled(line: Mapping[str, Any]) -> dict[str, Any]:
    target = line["scope"].removeprefix(f"{line['channel']}:")
    return {"channel": line["channel"], "target": target, "throttled_until": line["until"], "reason": line["reason"]}
