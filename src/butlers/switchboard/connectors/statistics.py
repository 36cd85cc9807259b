"""Statistics of connectors for people: one connector, its time series, all of them, and where their messages went.

The numbers are those of the rollups and as old as they are: `rolled_up_until` says until when they count, and `age_s`
how long ago that was. Where nothing was rolled up there is no number (null, an empty list) and never a zero.

    24h, 7d    hours, from connector_stats_hourly
    30d        days in UTC, from connector_stats_daily
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from butlers.butler.core_tools import wire
from butlers.butler.identity import Caller
from butlers.butler.toolbox import AnyTool, Tool
from butlers.clock import Clock
from butlers.errors import NotFound
from butlers.operations import connector_statistics as operations
from butlers.operations.connectors import ConnectorArguments
from butlers.storage.database import Database
from butlers.storage.queries import Queries
from butlers.switchboard.connectors.deltas import COUNTERS
from butlers.switchboard.connectors.registry import FIGURES, Liveness, liveness
from butlers.switchboard.connectors.rollups import midnight

LARGEST = 2**63 - 1  # what a rollup stores


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """A span of time that ends now, in whole buckets."""

    name: str
    bucket: str  # hour or day
    start: datetime

    @classmethod
    def ending(cls, now: datetime, name: operations.PeriodName) -> Period:
        if name == "30d":
            return cls(name=name, bucket="day", start=midnight(now.date()) - timedelta(days=30))
        hours = 24 if name == "24h" else 7 * 24
        this_hour = now.replace(minute=0, second=0, microsecond=0)
        return cls(name=name, bucket="hour", start=this_hour - timedelta(hours=hours))


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorStatistics:
    database: Database
    queries: Queries  # of butlers.switchboard.connectors.statistics
    rollups: Queries  # of the registry, which adds hours up, too
    clock: Clock

    def tools(self) -> list[AnyTool]:
        return [
            Tool.of(operations.SHOW, self._show),
            Tool.of(operations.STATS, self._stats),
            Tool.of(operations.SUMMARY, self._summary),
            Tool.of(operations.FANOUT, self._fanout),
        ]

    async def _show(self, _caller: Caller, given: ConnectorArguments) -> dict[str, Any]:
        row = await self.database.fetchrow(self.queries.connector, given.connector_type, given.endpoint_identity)
        if row is None:
            raise NotFound.of("endpoint_identity", "no such connector")
        now, found = self.clock.now(), dict(row)
        checkpoint = {"cursor": found.pop("checkpoint_cursor"), "updated_at": found.pop("checkpoint_updated_at")}
        counters = {name: found.pop(name) for name in (*COUNTERS, "checkpoint_saves")}
        return wire(
            found
            | {
                "liveness": liveness(row["last_heartbeat_at"], now),
                "age_s": _age(row["last_heartbeat_at"], now),
                "checkpoint": checkpoint if checkpoint["updated_at"] or checkpoint["cursor"] else None,
                "counters": counters,
            }
        )

    async def _stats(self, _caller: Caller, given: operations.StatsArguments) -> dict[str, Any]:
        now = self.clock.now()
        period = Period.ending(now, given.period)
        named = (given.connector_type, given.endpoint_identity)
        query = self.queries.hours_of_connector if period.bucket == "hour" else self.queries.days_of_connector
        rows = [dict(row) for row in await self.database.fetch(query, *named, period.start)]
        if not rows and await self.database.fetchrow(self.queries.connector, *named) is None:
            raise NotFound.of("endpoint_identity", "no such connector")
        buckets = [row | {"healthy_pct": _share(row["healthy_count"], row["heartbeat_count"])} for row in rows]
        about = {"connector_type": named[0], "endpoint_identity": named[1]}
        return wire(about | await self._head(period, now) | {"totals": _total(rows), "buckets": buckets})

    async def _summary(self, _caller: Caller, given: operations.SummaryArguments) -> dict[str, Any]:
        now = self.clock.now()
        period = Period.ending(now, given.period)
        query = self.rollups.rolled_up_since if period.bucket == "hour" else self.queries.days_by_connector
        figures = await self._by_connector(query, period.start)
        seen = await self._by_connector(self.queries.connectors_seen)
        there = {name: liveness(row["last_heartbeat_at"], now) for name, row in seen.items()}
        connectors = [
            {
                "connector_type": name[0],
                "endpoint_identity": name[1],
                "liveness": there.get(name),
                "state": seen[name]["state"] if name in seen else None,
                "last_heartbeat_at": seen[name]["last_heartbeat_at"] if name in seen else None,
                "age_s": _age(seen[name]["last_heartbeat_at"], now) if name in seen else None,
                "totals": _total([figures[name]]) if name in figures else None,
            }
            for name in sorted({*figures, *seen})
        ]
        return wire(
            await self._head(period, now)
            | {
                "connectors_by_liveness": {one.value: list(there.values()).count(one) for one in Liveness},
                "totals": _total(figures.values()),
                "connectors": connectors,
            }
        )

    async def _fanout(self, _caller: Caller, given: operations.FanoutArguments) -> dict[str, Any]:
        now = self.clock.now()
        start = midnight(now.date()) - timedelta(days=7 if given.period == "7d" else 30)
        until = (await self._rolled_up_until())["fanout"]
        rows = await self.database.fetch(self.queries.fanout, start)
        return wire(
            {
                "period": given.period,
                "since": start,
                "rolled_up_until": until,
                "age_s": _age(until, now),
                **fanout_matrix([dict(row) for row in rows]),
            }
        )

    async def _by_connector(self, query: str, *values: Any) -> dict[tuple[str, str], dict[str, Any]]:
        rows = await self.database.fetch(query, *values)
        return {(row["connector_type"], row["endpoint_identity"]): dict(row) for row in rows}

    async def _head(self, period: Period, now: datetime) -> dict[str, Any]:
        until = (await self._rolled_up_until())["hourly" if period.bucket == "hour" else "daily"]
        return {
            "period": period.name,
            "bucket": period.bucket,
            "since": period.start,
            "rolled_up_until": until,
            "age_s": _age(until, now),
        }

    async def _rolled_up_until(self) -> Mapping[str, datetime | None]:
        row = await self.database.fetchrow(self.queries.rolled_up_until)
        return dict(row) if row is not None else {}


def fanout_matrix(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """By connector and butler how many messages went there, and their share of the connector's messages."""
    by_source: dict[tuple[str, str], dict[str, int]] = defaultdict(dict)
    for row in rows:
        by_source[row["source_channel"], row["source_endpoint_identity"]][row["target_butler"]] = row["messages"]
    connectors = [
        {
            "source_channel": source[0],
            "source_endpoint_identity": source[1],
            "messages": _sum(targets.values()),
            "targets": {
                butler: {"messages": count, "share_pct": _share(count, sum(targets.values()))}
                for butler, count in targets.items()
            },
        }
        for source, targets in by_source.items()
    ]
    butlers = sorted({row["target_butler"] for row in rows})
    total = _sum(row["messages"] for row in rows) if rows else None
    return {"messages": total, "butlers": butlers, "connectors": connectors}


def _total(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The figures added up, with their shares; None: there are none."""
    found = list(rows)
    if not found:
        return None
    figures: dict[str, Any] = {name: _sum(row[name] for row in found) for name in FIGURES}
    handled = figures["messages_ingested"] + figures["messages_failed"]
    shares = {
        "failed_pct": _share(figures["messages_failed"], handled),
        "healthy_pct": _share(figures["healthy_count"], figures["heartbeat_count"]),
    }
    return figures | shares


def _sum(numbers: Iterable[int]) -> int:
    return min(sum(numbers), LARGEST)


def _share(part: int, whole: int) -> float | None:
    """In per cent; None: of nothing."""
    return round(100 * part / whole, 2) if whole else None


def _age(moment: datetime | None, now: datetime) -> float | None:
    return round(max(0.0, (now - moment).total_seconds()), 3) if moment is not None else None
