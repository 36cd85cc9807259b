"""Reading the record: one request with every hop, and lists of requests."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID

from pydantic_core import to_json

from butlers.butler.core_tools import wire
from butlers.butler.identity import Caller
from butlers.butler.toolbox import Tool
from butlers.butler.transport import Transport
from butlers.channels.registry import channel_of
from butlers.clock import Clock
from butlers.contracts.envelope import RequestContext
from butlers.errors import ClassifiedError, NotFound
from butlers.operations import requests as operations
from butlers.operations.operation import LONGEST_PAGE, NoArguments
from butlers.storage.database import Database
from butlers.storage.queries import Queries
from butlers.switchboard.operators.audit import OperatorAudit
from butlers.switchboard.operators.dead_letters import DeadLetters
from butlers.switchboard.operators.decisions import possible

TRACE_TIMEOUT_S = 5.0
COUNTED = timedelta(hours=24)  # of requests that have ended
MOST_RECENT = 1_000  # requests whose lineage stays in memory


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestReader:
    database: Database
    queries: Queries
    transport: Transport
    dead_letters: DeadLetters
    audit: OperatorAudit
    clock: Clock

    def tools(self) -> list[Tool]:
        return [Tool.of(operations.LIST, self._list), Tool.of(operations.COUNTS, self._counts)]

    async def _list(self, _caller: Caller, wanted: operations.RequestListArguments) -> dict[str, Any]:
        query = self.queries.list_requests if wanted.state is None else self.queries.list_requests_in_state
        state = [] if wanted.state is None else [wanted.state]
        rows = [dict(row) for row in await self.database.fetch(query, wanted.before, wanted.limit, *state)]
        cursor = rows[-1]["request_id"] if len(rows) == wanted.limit else None
        return wire({"requests": rows, "next_cursor": cursor})

    async def trace(self, request_id: UUID) -> dict[str, Any]:
        """What happened to a request, from the door to the provider's receipt."""
        row = await self.database.fetchrow(self.queries.get_request, request_id)
        if row is None:
            raise NotFound.of("request_id", "no such request")
        routing = await self.database.fetch(self.queries.routing_of_request, request_id)
        notifications = await self.database.fetch(self.queries.notifications_of_request, request_id)
        letters = await self.dead_letters.list(request_id=request_id, include_resolved=True, limit=LONGEST_PAGE)
        actions = await self.audit.list(request_id=request_id, limit=LONGEST_PAGE)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """A request on record."""

    context: RequestContext
    source_event: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LineageReader:
    """Where requests came from. It never changes, so what this process works on need not be read again."""

    database: Database
    queries: Queries
    _recent: OrderedDict[UUID, Lineage] = field(default_factory=OrderedDict, init=False)

    async def of(self, request_id: UUID) -> Lineage | None:
        if (known := self._recent.get(request_id)) is not None:
            return known
        row = await self.database.fetchrow(self.queries.lineage, request_id)
        if row is None:
            return None
        return self.remember(RequestContext.model_validate_json(to_json(row["request_context"])), row["raw_payload"])

    def remember(self, context: RequestContext, raw_payload: Any) -> Lineage:
        inbound = channel_of(context.source_channel).inbound
        event = inbound.source_event(raw_payload) if inbound is not None else None
        lineage = self._recent[context.request_id] = Lineage(context=context, source_event=event)
        if len(self._recent) > MOST_RECENT:
            self._recent.popitem(last=False)
        return lineage
