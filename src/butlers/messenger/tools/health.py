"""How the delivery plane is: circuits, headroom and queue (seed 001 section 5.1.4).

Channels are named with their identity scope, `telegram.bot`; a question about `telegram` means all of its scopes.
A circuit or a budget without a row was never used or has rested long enough: it is closed, it is full.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

from butlers.butler.core_tools import wire
from butlers.butler.identity import Caller
from butlers.butler.toolbox import Tool
from butlers.clock import Clock
from butlers.contracts.delivery_state import IN_FLIGHT, NEEDS_PERSON, OPEN
from butlers.contracts.envelope import invalid
from butlers.messenger.config import BreakersSection
from butlers.messenger.deliveries import circuit_of_row
from butlers.messenger.tools.deliveries import DeliveryRecords
from butlers.operations import deliveries as operations
from butlers.operations.deliveries import ChannelArguments, LimitArguments
from butlers.reliability.circuit_breaker import Breaker, BreakerPolicy, snapshot
from butlers.reliability.error_budget import ADMISSION_FACTORS, BudgetMode
from butlers.reliability.token_bucket import Bucket, refill

PHASES = ("admitted", "awaiting_admission", "awaiting_retry", "in_provider_call")
_SECONDS = ("recovery_timeout", "retry_after")  # of a circuit
WORST_SHOWN = 5  # recipients at their limit
Group = Mapping[str, Any]  # channel, status, admitted, deliveries, oldest


def bucket_of(row: Mapping[str, Any]) -> Bucket:
    fields = ("capacity", "refill_per_second", "tokens", "updated_at")
    return Bucket(**{field: row[field] for field in fields})


def layer(bucket: Bucket | None, limit: float, now: datetime) -> dict[str, Any]:
    """One budget: consumed, total, remaining, and when it is whole again (None: it is)."""
    remaining = min(limit, refill(bucket, now).tokens) if bucket is not None else limit
    missing = limit - remaining
    whole_at = now + timedelta(seconds=missing / (limit / 60)) if missing > 0 else None
    return {
        "consumed": round(missing, 3),
        "total": limit,
        "remaining": round(remaining, 3),
        "resets_at": whole_at,
    }


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
    mode = BudgetMode(state["stance"]) if state is not None else BudgetMode.NORMAL
    window = next((line for line in throttles if line["scope"] == name), None)
    return layer(bucket, max(1.0, configured * ADMISSION_FACTORS[mode]), now) | {
        "configured": configured,
        "stance": mode.value,
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
    limit, worst, throttled = limits["recipient"], [], []
    for row in crowded:
        _, channel, target = row["name"].split(":", 2)
        worst.append({"channel": channel, "target": target, **layer(bucket_of(row), limit, now)})
    for line in throttles:
        if (channel := line["channel"]) != line["scope"]:
            target = line["scope"].removeprefix(f"{channel}:")
            until, reason = line["until"], line["reason"]
            throttled.append({"channel": channel, "target": target, "throttled_until": until, "reason": reason})
    at_limit = crowded[0]["at_limit"] if crowded else 0
    return {
        "total": limit,
        "active": bool(at_limit or throttled),
        "at_limit": at_limit,
        "throttled": len(throttled),
        "worst": worst,
        "throttles": throttled,
    }


def summary(groups: Sequence[Group], now: datetime) -> dict[str, Any]:
    moving = [group for group in groups if group["status"] in OPEN]
    oldest = min((group["oldest"] for group in moving), default=None)
    phases = dict.fromkeys(PHASES, 0)
    of_channels: dict[str, list[Group]] = {}
    for group in moving:
        phases[_phase(group)] += group["deliveries"]
        of_channels.setdefault(group["channel"], []).append(group)
    return {
        "total": _in_flight(groups),
        "by_status": _by_status(moving, OPEN),
        "by_phase": phases,
        "by_channel": {
            name: {"total": _in_flight(own)} | _by_status(own, OPEN) for name, own in sorted(of_channels.items())
        },
        "parked": _by_status(groups, NEEDS_PERSON),
        "oldest_age_s": round(max(0.0, (now - oldest).total_seconds()), 3) if oldest else None,
    }


def _phase(group: Group) -> str:
    if group["status"] == "pending":
        return "admitted" if group["admitted"] else "awaiting_admission"
    return "in_provider_call" if group["status"] == "in_progress" else "awaiting_retry"


def _in_flight(groups: Iterable[Group]) -> int:
    return sum(group["deliveries"] for group in groups if group["status"] in IN_FLIGHT)


def _by_status(groups: Iterable[Group], names: Iterable[str]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for group in groups:
        counts[group["status"]] += group["deliveries"]
    return {name: counts[name] for name in names}


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthTools:
    records: DeliveryRecords
    clock: Clock
    channels: Sequence[str]  # with their scopes: telegram.bot
    breaker: BreakersSection
    limits: Mapping[str, float]  # per minute: global, channel:telegram.bot, recipient; and in_flight

    def tools(self) -> list[Tool]:
        return [
            Tool.of(operations.CIRCUITS, self._circuits),
            Tool.of(operations.LIMITS, self._limits),
            Tool.of(operations.QUEUE, self._queue),
        ]

    async def _circuits(self, _caller: Caller, arguments: ChannelArguments) -> dict[str, Any]:
        names = self._named(arguments.channel)
        states, now = await self._states(names), self.clock.now()
        circuits = {}
        for name in names:
            breaker = circuit_of_row(states[name]) if name in states else Breaker()
            circuits[name] = describe_circuit(breaker, self.breaker.policy(name), now)
        return wire({"channels": circuits})

    async def _limits(self, _caller: Caller, arguments: LimitArguments) -> dict[str, Any]:
        names, now = self._named(arguments.channel, arguments.identity_scope), self.clock.now()
        records, queries = self.records, self.records.queries
        stored = await records.rows(queries.buckets, ["global", *(f"channel:{name}" for name in names)])
        buckets = {row["name"]: bucket_of(row) for row in stored}
        throttles = await records.rows(queries.throttles, names, now)
        prefixes = [f"recipient:{name}:" for name in names]
        crowded = await records.rows(queries.recipients_at_limit, now, prefixes, WORST_SHOWN)
        in_flight = await records.database.fetchval(queries.in_flight)
        states = await self._states(names)
        channels = {
            name: channel_layer(
                name,
                buckets.get(f"channel:{name}"),
                limits=self.limits,
                state=states.get(name),
                throttles=throttles,
                now=now,
            )
            for name in names
        }
        return wire(
            {
                "global": layer(buckets.get("global"), self.limits["global"], now) | {"throttled_until": None},
                "in_flight": in_flight_layer(in_flight, self.limits),
                "channels": channels,
                "recipients": recipient_layer(crowded, throttles, self.limits, now),
            }
        )

    async def _queue(self, _caller: Caller, arguments: ChannelArguments) -> dict[str, Any]:
        self._named(arguments.channel)
        channel, _, scope = (arguments.channel or "").partition(".")
        rows = await self.records.rows(self.records.queries.queue, channel or None, scope or None)
        return wire(summary(rows, self.clock.now()))

    def _named(self, channel: str | None, scope: str | None = None) -> list[str]:
        """The channels that are meant; a name that means none is a mistake."""
        meant = [name for name in self.channels if channel in (None, name, name.partition(".")[0])]
        if channel is not None and not meant:
            raise invalid("channel", f"no such channel here; there are {', '.join(self.channels) or 'none'}")
        return [name for name in meant if scope in (None, name.partition(".")[2])]

    async def _states(self, names: Iterable[str]) -> dict[str, Any]:
        rows = await self.records.rows(self.records.queries.channel_states, list(names))
        return {row["name"]: row for row in rows}


def describe_circuit(breaker: Breaker, policy: BreakerPolicy, now: datetime) -> dict[str, Any]:
    seen = asdict(snapshot(breaker, policy, now))
    return {
        **{f"{name}_s" if name in _SECONDS else name: value for name, value in seen.items()},
        "failure_threshold": policy.failure_threshold,
        "success_threshold": policy.success_threshold,
    }
