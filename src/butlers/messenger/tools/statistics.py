"""What became of the deliveries of a window (seed 001 section 5.1.4).

    success_rate      delivered / ended         an uncertain delivery has ended and is no success
    dead_letter_rate  dead-lettered / ended
    retry_rate        tried more than once / tried at all
    p50_ms, p95_ms    of the delivered, from asking to the end; provider_* of the attempts alone

A rate of nothing is unknown (null) and not zero. Percentiles come from the raw latencies of the whole window or group;
they are never averaged. A delivery belongs to the window in which it was asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from butlers.butler.core_tools import wire
from butlers.butler.identity import Caller
from butlers.butler.surface import Tool
from butlers.clock import Clock
from butlers.contracts.delivery_state import ENDED
from butlers.messenger.tools.records import DeliveryRecords, check_window
from butlers.operations.deliveries import STATS, StatsArguments

DEFAULT_WINDOW = timedelta(hours=24)
AT_THE_DOOR = ("admitted", "deduplicated", "parked", "rejected")
_COUNTS = ("total", *ENDED)
_PERCENTILES = ("p50_ms", "p95_ms", "provider_p50_ms", "provider_p95_ms")


@dataclass(frozen=True, slots=True, kw_only=True)
class StatisticsTools:
    records: DeliveryRecords
    clock: Clock

    def tools(self) -> list[Tool]:
        return [Tool.of(STATS, self._stats)]

    async def _stats(self, _caller: Caller, arguments: StatsArguments) -> dict[str, Any]:
        since, until = window(arguments.since, arguments.until, self.clock.now())
        database, queries = self.records.database, self.records.queries
        values = (since, until, arguments.group_by)
        async with database.transaction(isolation="repeatable_read") as connection:
            counted = await connection.fetch(queries.delivery_stats, *values)
            timed = await connection.fetch(queries.provider_latencies, *values)
            door = await connection.fetch(queries.requests_at_the_door, since, until)
        latencies = {(row["overall"], row["key"]): dict(row) for row in timed}
        lines = [dict(row) | latencies.get((row["overall"], row["key"]), {}) for row in counted]
        [overall] = [line for line in lines if line["overall"]]
        groups = [line for line in lines if not line["overall"]] if arguments.group_by else []
        return wire(
            {
                "window": {"since": since, "until": until},
                "group_by": arguments.group_by,
                **describe(overall),
                "requests": _at_the_door({row["outcome"]: row["requests"] for row in door}),
                "groups": [{"key": line["key"], **describe(line)} for line in groups],
            }
        )


def window(since: datetime | None, until: datetime | None, now: datetime) -> tuple[datetime, datetime]:
    end = until or now
    begin = since or end - DEFAULT_WINDOW
    check_window(begin, end)
    return begin, end


def describe(line: Mapping[str, Any]) -> dict[str, Any]:
    """One line of statistics."""
    ended = sum(line[name] for name in ENDED)
    return {
        **{name: line[name] for name in _COUNTS},
        "open": line["total"] - ended,
        "success_rate": _rate(line["delivered"], ended),
        "dead_letter_rate": _rate(line["dead_lettered"], ended),
        "retry_rate": _rate(line["retried"], line["attempted"]),
        **{name: _rounded(line.get(name)) for name in _PERCENTILES},
    }


def _rate(part: int, whole: int) -> float | None:
    return round(part / whole, 6) if whole else None


def _rounded(milliseconds: float | None) -> float | None:
    return round(float(milliseconds), 3) if milliseconds is not None else None


def _at_the_door(counted: Mapping[str, int]) -> dict[str, int] | None:
    return {outcome: counted.get(outcome, 0) for outcome in AT_THE_DOOR} if counted else None
