"""How the delivery plane is: circuits, headroom and queue (seed 001 section 5.1.4).

Channels are named with their identity scope, `telegram.bot`; a question about `telegram` means all of its scopes.
A circuit or a budget without a row was never used or has rested long enough: it is closed, it is full.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from butlers.butler.core_tools import wire
from butlers.butler.identity import Caller
from butlers.butler.surface import Tool
from butlers.clock import Clock
from butlers.contracts.envelope import invalid
from butlers.messenger.tools.limits import bucket_of, channel_layer, global_layer, in_flight_layer, recipient_layer
from butlers.messenger.tools.queue import summary
from butlers.messenger.tools.records import DeliveryRecords
from butlers.operations import deliveries as operations
from butlers.operations.deliveries import ChannelArguments, LimitArguments
from butlers.reliability.circuit_breaker import Breaker, BreakerPolicy, BreakerState, snapshot
from butlers.reliability.token_bucket import Bucket

WORST_SHOWN = 5  # recipients at their limit


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthTools:
    records: DeliveryRecords
    clock: Clock
    channels: Sequence[str]  # with their scopes: telegram.bot
    breaker: BreakerPolicy
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
        circuits = {name: describe_circuit(_breaker(states.get(name)), self.breaker, now) for name in names}
        return wire({"channels": circuits})

    async def _limits(self, _caller: Caller, arguments: LimitArguments) -> dict[str, Any]:
        names, now = self._named(arguments.channel, arguments.identity_scope), self.clock.now()
        records, queries = self.records, self.records.queries
        buckets = await self._buckets(["global", *(f"channel:{name}" for name in names)])
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
                "global": global_layer(buckets.get("global"), self.limits, now),
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

    async def _states(self, names: Iterable[str]) -> dict[str, Mapping[str, Any]]:
        rows = await self.records.rows(self.records.queries.channel_states, list(names))
        return {row["name"]: row for row in rows}

    async def _buckets(self, names: list[str]) -> dict[str, Bucket]:
        rows = await self.records.rows(self.records.queries.buckets, names)
        return {row["name"]: bucket_of(row) for row in rows}


def describe_circuit(breaker: Breaker, policy: BreakerPolicy, now: datetime) -> dict[str, Any]:
    seen = snapshot(breaker, policy, now)
    return {
        "state": seen.state.value,
        "consecutive_failures": seen.consecutive_failures,
        "trip_reason": seen.trip_reason,
        "tripped_at": seen.tripped_at,
        "recovery_timeout_s": seen.recovery_timeout,
        "retry_after_s": seen.retry_after,
        "probes_out": seen.probes_out,
        "probe_successes": seen.probe_successes,
        "failure_threshold": policy.failure_threshold,
        "success_threshold": policy.success_threshold,
    }


def _breaker(row: Mapping[str, Any] | None) -> Breaker:
    if row is None:
        return Breaker()
    return Breaker(
        state=BreakerState(row["state"]),
        generation=row["generation"],
        consecutive_failures=row["consecutive_failures"],
        probes_out=row["probes_out"],
        probe_successes=row["probe_successes"],
        trip_reason=row["trip_reason"],
        tripped_at=row["tripped_at"],
        probe_at=row["probe_at"],
    )
