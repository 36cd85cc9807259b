"""What became of a delivery, of many, and of everything one request led to (seed 001 section 5.1.1); and the recipients
that are not to be written to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from butlers.butler.core_tools import wire
from butlers.butler.identity import Caller
from butlers.butler.toolbox import Tool
from butlers.channels.registry import canonical_address, channel_of
from butlers.clock import Clock
from butlers.contracts.delivery_state import ENDED
from butlers.contracts.envelope import invalid
from butlers.errors import ClassifiedError, NotFound, ValidationError
from butlers.operations import deliveries as operations
from butlers.operations import people as recipient_operations
from butlers.operations.deliveries import (
    DeliveryArguments,
    SearchArguments,
    StatsArguments,
    TraceArguments,
)
from butlers.operations.operation import SWITCHBOARD, DecidedArguments, Role, page, place
from butlers.operations.people import RecipientListArguments, ReleaseArguments, SuppressArguments
from butlers.storage.database import Database, Executor
from butlers.storage.queries import Queries
from butlers.telemetry import get_logger

log = get_logger("butlers.messenger.recipients")

SEPARATOR = "/"  # no channel's name has it
LINEAGE_TIMEOUT_S = 5.0
_NOT_IN_STATUS = ("envelope", "decisions")  # the trace and `why` show them
DEFAULT_WINDOW = timedelta(hours=24)
AT_THE_DOOR = ("admitted", "deduplicated", "parked", "rejected")
_PERCENTILES = ("p50_ms", "p95_ms", "provider_p50_ms", "provider_p95_ms")
# Fourteen digits of microseconds reach into the year 4253.

Lineage = Callable[[UUID], Awaitable[Mapping[str, Any]]]  # Switchboard's trace of a request
Lines = dict[UUID, list[dict[str, Any]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryRecords:
    database: Database
    queries: Queries

    @classmethod
    def of(cls, database: Database, schema: str) -> DeliveryRecords:
        return cls(database=database, queries=Queries.load("butlers.messenger.tools", schema=schema))

    async def rows(self, query: str, *values: Any) -> list[dict[str, Any]]:
        return [dict(row) for row in await self.database.fetch(query, *values)]

    async def row(self, query: str, *values: Any) -> dict[str, Any] | None:
        row = await self.database.fetchrow(query, *values)
        return dict(row) if row is not None else None

    async def delivery(self, delivery_id: UUID) -> dict[str, Any]:
        row = await self.row(self.queries.delivery, delivery_id)
        if row is None:
            raise NotFound.of("delivery_id", "no such delivery")
        return row

    async def attempts(self, *deliveries: UUID) -> Lines:
        return _by_delivery(deliveries, await self.rows(self.queries.attempts, deliveries))

    async def receipts(self, *deliveries: UUID) -> Lines:
        return _by_delivery(deliveries, await self.rows(self.queries.receipts, deliveries))

    async def standing(self, executor: Executor, delivery_id: UUID) -> dict[str, Any] | None:
        """What decides whether a dead letter may be sent again."""
        row = await executor.fetchrow(self.queries.standing_of_deliveries, [delivery_id])
        return dict(row) if row is not None else None

    async def add_decision(
        self, executor: Executor, delivery_id: UUID, *, at: datetime, rule: str, outcome: str, detail: str
    ) -> None:
        line = {"at": at.isoformat(), "rule": rule, "verdict": outcome, "detail": detail}
        await executor.execute(self.queries.add_decision, delivery_id, [line])


def decided_by(caller: Caller, arguments: DecidedArguments) -> str:
    """Who decides: the caller, or the person Switchboard speaks for."""
    speaks_for_others = caller.role is Role.BUTLER and caller.name == SWITCHBOARD
    return arguments.decided_by or caller.name if speaks_for_others else caller.name


def check_window(since: datetime | None, until: datetime | None) -> None:
    if since is not None and until is not None and since > until:
        raise invalid("since", "is later than until")


def _by_delivery(deliveries: Iterable[UUID], rows: Iterable[Mapping[str, Any]]) -> Lines:
    lines: Lines = {delivery: [] for delivery in deliveries}
    for row in rows:
        lines[row["delivery_id"]].append({name: value for name, value in row.items() if name != "delivery_id"})
    return lines


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackingTools:
    records: DeliveryRecords
    clock: Clock
    lineage: Lineage

    def tools(self) -> list[Tool]:
        return [
            Tool.of(operations.STATUS, self._status),
            Tool.of(operations.SEARCH, self._search),
            Tool.of(operations.ATTEMPTS, self._attempts),
            Tool.of(operations.TRACE, self._trace),
            Tool.of(operations.STATS, self._stats),
        ]

    async def _status(self, _caller: Caller, arguments: DeliveryArguments) -> dict[str, Any]:
        row = await self.records.delivery(arguments.delivery_id)
        attempts = (await self.records.attempts(row["id"]))[row["id"]]
        columns = {name: value for name, value in row.items() if name not in _NOT_IN_STATUS}
        return wire({"delivery_id": row["id"], **columns, "latest_attempt": attempts[-1] if attempts else None})

    async def _search(self, _caller: Caller, arguments: SearchArguments) -> dict[str, Any]:
        check_window(arguments.since, arguments.until)
        rows = await self.records.rows(
            self.records.queries.search,
            arguments.origin_butler,
            arguments.channel,
            arguments.intent,
            arguments.status,
            arguments.request_id,
            arguments.since,
            arguments.until,
            *place(arguments.cursor),
            arguments.limit + 1,
        )
        deliveries, cursor = page(rows, arguments.limit)
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

    async def _stats(self, _caller: Caller, arguments: StatsArguments) -> dict[str, Any]:
        until = arguments.until or self.clock.now()
        since = arguments.since or until - DEFAULT_WINDOW
        check_window(since, until)
        database, queries = self.records.database, self.records.queries
        values = (since, until, arguments.group_by)
        async with database.transaction(isolation="repeatable_read") as connection:
            counted = await connection.fetch(queries.delivery_stats, *values)
            timed = await connection.fetch(queries.provider_latencies, *values)
            door = await connection.fetch(queries.requests_at_the_door, since, until)
        requests = {row["outcome"]: row["requests"] for row in door}
        latencies = {(row["overall"], row["key"]): dict(row) for row in timed}
        lines = [dict(row) | latencies.get((row["overall"], row["key"]), {}) for row in counted]
        [overall] = [line for line in lines if line["overall"]]
        groups = [line for line in lines if not line["overall"]] if arguments.group_by else []
        return wire(
            {
                "window": {"since": since, "until": until},
                "group_by": arguments.group_by,
                **describe(overall),
                "requests": {outcome: requests.get(outcome, 0) for outcome in AT_THE_DOOR} if requests else None,
                "groups": [{"key": line["key"], **describe(line)} for line in groups],
            }
        )


def _unknown(reason: str) -> dict[str, Any]:
    return {"ingress": {"unknown": reason}, "routing": {"unknown": reason}}


def describe(line: Mapping[str, Any]) -> dict[str, Any]:
    """One line of statistics."""
    ended = sum(line[name] for name in ENDED)
    shares = {
        "success_rate": (line["delivered"], ended),
        "dead_letter_rate": (line["dead_lettered"], ended),
        "retry_rate": (line["retried"], line["attempted"]),
    }
    times = {name: line.get(name) for name in _PERCENTILES}
    return {
        **{name: line[name] for name in ("total", *ENDED)},
        "open": line["total"] - ended,
        **{name: round(part / whole, 6) if whole else None for name, (part, whole) in shares.items()},
        **{name: round(float(time), 3) if time is not None else None for name, time in times.items()},
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipientTools:
    records: DeliveryRecords
    clock: Clock

    def tools(self) -> list[Tool]:
        return [
            Tool.of(recipient_operations.LIST, self._list),
            Tool.of(recipient_operations.SUPPRESS, self._suppress),
            Tool.of(recipient_operations.RELEASE, self._release),
        ]

    async def _list(self, _caller: Caller, arguments: RecipientListArguments) -> dict[str, Any]:
        rows = await self.records.rows(
            self.records.queries.recipient_rules, arguments.channel, *_place(arguments.cursor), arguments.limit + 1
        )
        shown = rows[: arguments.limit]
        more = len(rows) > arguments.limit
        cursor = f"{shown[-1]['channel']}{SEPARATOR}{shown[-1]['target']}" if more else None
        return wire({"recipients": shown, "next_cursor": cursor})

    async def _suppress(self, caller: Caller, arguments: SuppressArguments) -> dict[str, Any]:
        person, target = decided_by(caller, arguments), canonical_address(arguments.channel, arguments.target)
        if (problem := channel_of(arguments.channel).address.problem(target)) is not None:
            raise invalid("target", problem)
        row = await self.records.row(
            self.records.queries.suppress, arguments.channel, target, arguments.reason, person, self.clock.now()
        )
        log.info("recipient suppressed", channel=arguments.channel, caller=person)
        return wire({"recipient": row})

    async def _release(self, caller: Caller, arguments: ReleaseArguments) -> dict[str, Any]:
        target = canonical_address(arguments.channel, arguments.target)
        row = await self.records.row(self.records.queries.release, arguments.channel, target)
        if row is None:
            raise NotFound.of("target", "no such recipient: it has no rule on this channel")
        person = decided_by(caller, arguments)
        log.info("recipient released", channel=arguments.channel, caller=person)
        return wire({"released": row, "released_by": person})


def _place(cursor: str | None) -> tuple[str | None, str | None]:
    if cursor is None:
        return None, None
    channel, separator, target = cursor.partition(SEPARATOR)
    if not separator:
        raise invalid("cursor", "is not the next_cursor of an earlier page")
    return channel, target
