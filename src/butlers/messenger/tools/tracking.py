"""What became of a delivery, of many, and of everything one request led to (seed 001 section 5.1.1)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from butlers.butler.core_tools import wire
from butlers.butler.identity import Caller
from butlers.butler.toolbox import Tool
from butlers.clock import Clock
from butlers.contracts.delivery_state import ENDED
from butlers.errors import ClassifiedError, NotFound, ValidationError
from butlers.messenger.tools.records import DeliveryRecords, check_window, page, place
from butlers.operations import deliveries as operations
from butlers.operations.deliveries import (
    STATS,
    DeliveryArguments,
    SearchArguments,
    StatsArguments,
    TraceArguments,
)

LINEAGE_TIMEOUT_S = 5.0
_NOT_IN_STATUS = ("envelope", "decisions")  # the trace and `why` show them

Lineage = Callable[[UUID], Awaitable[Mapping[str, Any]]]  # Switchboard's trace of a request


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackingTools:
    records: DeliveryRecords
    lineage: Lineage

    def tools(self) -> list[Tool]:
        return [
            Tool.of(operations.STATUS, self._status),
            Tool.of(operations.SEARCH, self._search),
            Tool.of(operations.ATTEMPTS, self._attempts),
            Tool.of(operations.TRACE, self._trace),
        ]

    async def _status(self, _caller: Caller, arguments: DeliveryArguments) -> dict[str, Any]:
        row = await self.records.delivery(arguments.delivery_id)
        attempts = (await self.records.attempts(row["id"]))[row["id"]]
        columns = {name: value for name, value in row.items() if name not in _NOT_IN_STATUS}
        return wire({"delivery_id": row["id"], **columns, "latest_attempt": attempts[-1] if attempts else None})

    async def _search(self, _caller: Caller, wanted: SearchArguments) -> dict[str, Any]:
        check_window(wanted.since, wanted.until)
        rows = await self.records.rows(
            self.records.queries.search,
            wanted.origin_butler,
            wanted.channel,
            wanted.intent,
            wanted.status,
            wanted.request_id,
            wanted.since,
            wanted.until,
            *place(wanted.cursor),
            wanted.limit + 1,
        )
        deliveries, cursor = page(rows, wanted.limit)
        return wire({"deliveries": deliveries, "next_cursor": cursor})

    async def _attempts(self, _caller: Caller, arguments: DeliveryArguments) -> dict[str, Any]:
        row = await self.records.delivery(arguments.delivery_id)
        attempts = await self.records.attempts(row["id"])
        return wire({"delivery_id": row["id"], "attempts": attempts[row["id"]]})

    async def _trace(self, _caller: Caller, arguments: TraceArguments) -> dict[str, Any]:
        request_id = arguments.request_id
        deliveries = await self._deliveries_of(request_id)
        try:
            async with asyncio.timeout(LINEAGE_TIMEOUT_S):
                lineage = dict(await self.lineage(request_id))
        except ValidationError as error:
            if not deliveries:
                raise NotFound.of("request_id", "no such request") from error
            lineage = _unknown(error.message)
        except (ClassifiedError, TimeoutError) as error:
            # Unknown is shown as unknown: a Switchboard that does not answer has not routed nothing.
            lineage = _unknown(str(error) or f"switchboard gave no answer within {LINEAGE_TIMEOUT_S:g} s")
        missing = _unknown("switchboard did not tell")
        ingress = lineage.get("ingress") or missing["ingress"]
        routing = lineage.get("routing") or missing["routing"]
        return wire({"request_id": request_id, "ingress": ingress, "routing": routing, "deliveries": deliveries})

    async def _deliveries_of(self, request_id: UUID) -> list[dict[str, Any]]:
        records = self.records
        rows = await records.rows(records.queries.deliveries_of_request, request_id)
        ids = [row["id"] for row in rows]
        attempts, receipts = await records.attempts(*ids), await records.receipts(*ids)
        return [{**row, "attempts": attempts[row["id"]], "receipts": receipts[row["id"]]} for row in rows]


def _unknown(reason: str) -> dict[str, Any]:
    return {"ingress": {"unknown": reason}, "routing": {"unknown": reason}}


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
