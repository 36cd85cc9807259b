"""Reading the record: one request with every hop, and lists of requests."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from butlers.butler.core_tools import wire
from butlers.butler.identity import Caller
from butlers.butler.toolbox import Tool
from butlers.butler.transport import Transport
from butlers.channels.registry import reacting_names
from butlers.clock import Clock
from butlers.errors import ClassifiedError, NotFound
from butlers.operations import requests as operations
from butlers.operations.operation import LONGEST_PAGE, NoArguments, TimeRangeArguments
from butlers.operations.operators import AuditArguments, DeadLettersArguments
from butlers.operations.routing import SERVICE_LEVELS
from butlers.storage.database import Database, Executor
from butlers.storage.queries import Queries
from butlers.switchboard.operators.audit import AuditLog
from butlers.switchboard.operators.dead_letters import DeadLetters
from butlers.switchboard.operators.decisions import possible
from butlers.telemetry import get_logger

TRACE_TIMEOUT_S = 5.0
COUNTED = timedelta(hours=24)  # of requests that have ended


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestReader:
    database: Database
    queries: Queries
    transport: Transport
    dead_letters: DeadLetters
    audit: AuditLog
    clock: Clock

    def tools(self) -> list[Tool]:
        return [Tool.of(operations.LIST, self._list), Tool.of(operations.COUNTS, self._counts)]

    async def _list(self, _caller: Caller, arguments: operations.RequestListArguments) -> dict[str, Any]:
        query = self.queries.list_requests if arguments.state is None else self.queries.list_requests_in_state
        state = [] if arguments.state is None else [arguments.state]
        rows = [dict(row) for row in await self.database.fetch(query, arguments.before, arguments.limit, *state)]
        cursor = rows[-1]["request_id"] if len(rows) == arguments.limit else None
        return wire({"requests": rows, "next_cursor": cursor})

    async def trace(self, request_id: UUID) -> dict[str, Any]:
        """What happened to a request, from the door to the provider's receipt."""
        row = await self.database.fetchrow(self.queries.get_request, request_id)
        if row is None:
            raise NotFound.of("request_id", "no such request")
        routing = await self.database.fetch(self.queries.routing_of_request, request_id)
        notifications = await self.database.fetch(self.queries.notifications_of_request, request_id)
        letters = await self.dead_letters.list(
            DeadLettersArguments(request_id=request_id, include_resolved=True, limit=LONGEST_PAGE)
        )
        actions = await self.audit.actions(AuditArguments(request_id=request_id, limit=LONGEST_PAGE))
        hops = await self._hops(request_id, _butlers_of(row["routing_output"]))
        deliveries = hops.get("messenger", {}).pop("deliveries", [])
        return {
            "request_id": request_id,
            "lifecycle_state": row["lifecycle_state"],
            "lifecycle_error": row["lifecycle_error"],
            "ingress": _ingress(row),
            "routing": {
                "decision": row["routing_output"],
                "dispatches": [dict(line) for line in routing],
                "outcomes": row["dispatch_outcomes"] or [],
                "waiting_for": row["waiting_for"],
                "not_before": row["not_before"],
            },
            "butlers": hops,
            "notifications": _with_present_status(notifications, deliveries),
            "deliveries": deliveries,
            "reply": row["aggregated_reply"],
            "override": row["override"],
            "overrides": actions["actions"][::-1],
            "dead_letters": letters["dead_letters"][::-1],
            "possible": [action.value for action in possible(row["lifecycle_state"])],
            "final_state_at": row["final_state_at"],
        }

    async def _hops(self, request_id: UUID, butlers: Iterable[str]) -> dict[str, dict[str, Any]]:
        names = sorted({*butlers, "messenger"})
        return dict(zip(names, await asyncio.gather(*(self._hop(name, request_id) for name in names)), strict=True))

    async def _hop(self, butler: str, request_id: UUID) -> dict[str, Any]:
        # Unknown is shown as unknown: a butler that does not answer has not done nothing.
        try:
            async with asyncio.timeout(TRACE_TIMEOUT_S):
                return await self.transport.call(butler, "trace", {"request_id": str(request_id)})
        except (ClassifiedError, TimeoutError) as error:
            return {"unknown": str(error) or "no answer in time"}

    async def _counts(self, _caller: Caller, _arguments: NoArguments) -> dict[str, Any]:
        """By state: everything that is open; of what has ended, what came within the last day."""
        rows = await self.database.fetch(self.queries.counts_by_state, self.clock.now() - COUNTED)
        counts = {row["lifecycle_state"]: row["requests"] for row in rows}
        return {"requests": counts, "ended_within_hours": COUNTED / timedelta(hours=1)}


def _butlers_of(routing_output: Any) -> list[str]:
    return [segment["butler"] for segment in (routing_output or {}).get("segments", [])]


def _with_present_status(notifications: Iterable[Any], deliveries: Iterable[Any]) -> list[dict[str, Any]]:
    """What was known when it was asked for, and how its delivery stands now; None where Messenger does not say."""
    present = {str(delivery["id"]): delivery["status"] for delivery in deliveries}
    return [dict(line) | {"delivery_status": present.get(str(line["delivery_id"]))} for line in notifications]


def _ingress(row: Any) -> dict[str, Any]:
    fields = ("received_at", "request_context", "normalized_text", "policy_tier", "schema_version", "submitted_by")
    return {field: row[field] for field in (*fields, "attempts", "dedupe_key")}


log = get_logger("butlers.service_levels")


FLUSH_EVERY_S: Final = 5.0
RETENTION: Final = timedelta(days=32)  # a little longer than the longest window

_Key = tuple[datetime, str, int]  # minute, channel, milliseconds


class AcceptTimes:
    def __init__(self, *, database: Database, schema: str, clock: Clock) -> None:
        self._database = database
        self._queries = Queries.load("butlers.switchboard", schema=schema)
        self._clock = clock
        self._counts: Counter[_Key] = Counter()

    def note(self, received_at: datetime, channel: str, elapsed_ms: float) -> None:
        """One message was accepted; on the hot path, so it only counts: whole milliseconds, rounded up to two digits of
        them.
        """
        whole = max(0, math.ceil(elapsed_ms))
        step: int = 10 ** max(0, len(str(whole)) - 2)
        rounded_up = -(-whole // step) * step
        self._counts[received_at.replace(second=0, microsecond=0), channel, rounded_up] += 1

    async def flush(self) -> None:
        """Put the counts on record; those that could not be written come with the next."""
        counts, self._counts = self._counts, Counter()
        if not counts:
            return
        minutes, channels, times = zip(*counts, strict=True)
        values = (list(minutes), list(channels), list(times), [*counts.values()])
        try:
            await self._database.execute(self._queries.add_accept_times, *values)
        except Exception as error:
            self._counts.update(counts)
            log.warning("accept times were not written", error=error)

    async def run(self) -> None:
        """Flush until cancelled, and forget what is too old."""
        forget_at = self._clock.now()
        while True:
            await self._clock.sleep(FLUSH_EVERY_S)
            await self.flush()
            if self._clock.now() >= forget_at:
                forget_at = self._clock.now() + timedelta(hours=1)
                await self._forget()

    async def _forget(self) -> None:
        try:
            await self._database.execute(self._queries.forget_accept_times, self._clock.now() - RETENTION)
        except Exception as error:
            log.warning("old accept times were not removed", error=error)


Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceLevels:
    database: Database
    queries: Queries
    accept_times: AcceptTimes
    clock: Clock

    def tools(self) -> list[Tool]:
        return [Tool.of(SERVICE_LEVELS, self._answer)]

    async def _answer(self, _caller: Caller, given: TimeRangeArguments) -> dict[str, Any]:
        return wire(await self.slis(*given.between(self.clock.now())))

    async def slis(self, since: datetime, until: datetime) -> dict[str, Any]:
        """All four of [since, until), from one snapshot; the accepts are those of whole minutes."""
        await self.accept_times.flush()
        async with self.database.transaction(isolation="repeatable_read") as snapshot:
            routes = await _rows(snapshot, self.queries.routes, since, until)
            errors = await _rows(snapshot, self.queries.route_errors, since, until)
            return {
                "window": {"since": since, "until": until},
                "accept": await _rows(snapshot, self.queries.accept_times, since, until),
                "completion": await _rows(snapshot, self.queries.completions, since, until),
                "routes": route_success(routes, errors),
                "interactive": await _rows(snapshot, self.queries.interactive, since, until, sorted(reacting_names())),
            }


def route_success(routes: Sequence[Row], errors: Iterable[Row]) -> dict[str, Any]:
    """In all and per butler, with the classes of what failed."""
    by_class: dict[str, dict[str, int]] = {}
    for row in errors:
        by_class.setdefault(row["target_butler"], {})[row["error_class"]] = row["routes"]
    total, succeeded = sum(row["routes"] for row in routes), sum(row["succeeded"] for row in routes)
    return {
        "routes": total,
        "succeeded": succeeded,
        "success_rate": _rate(succeeded, total),
        "by_butler": [
            {
                **row,
                "success_rate": _rate(row["succeeded"], row["routes"]),
                "errors": by_class.get(row["target_butler"], {}),
            }
            for row in routes
        ],
    }


def _rate(part: int, whole: int) -> float | None:
    return part / whole if whole else None


async def _rows(source: Executor, query: str, *values: Any) -> list[dict[str, Any]]:
    return [dict(row) for row in await source.fetch(query, *values)]
