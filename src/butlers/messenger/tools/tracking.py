"""What became of a delivery, of many, and of everything one request led to (seed 001 section 5.1.1)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from pydantic import Field

from butlers.butler.core_tools import wire
from butlers.butler.identity import Caller
from butlers.butler.surface import READS, Tool
from butlers.contracts.envelope import Identity, RequestId, Timestamp, Value
from butlers.contracts.notify import Channel, DeliveryStatus, Intent
from butlers.errors import ClassifiedError, NotFound, ValidationError
from butlers.messenger.tools.cursor import page, place
from butlers.messenger.tools.records import DeliveryArguments, DeliveryRecords, check_window
from butlers.messenger.tools.results import DeliveryAttempts, DeliveryList, DeliveryResult, DeliveryTrace

PAGE, LONGEST_PAGE = 50, 500
LINEAGE_TIMEOUT_S = 5.0
_NOT_IN_STATUS = ("envelope", "decisions")  # the trace and `why` show them

Lineage = Callable[[UUID], Awaitable[Mapping[str, Any]]]  # Switchboard's trace of a request


class SearchArguments(Value):
    origin_butler: Identity | None = Field(default=None, description="only what this butler said")
    channel: Channel | None = Field(default=None, description="only this channel")
    intent: Intent | None = Field(default=None, description="only this intent")
    status: DeliveryStatus | None = Field(default=None, description="only deliveries that stand so")
    request_id: UUID | None = Field(default=None, description="only what belongs to this request")
    since: Timestamp | None = Field(
        default=None, description="only what was created then or later: RFC 3339 with an offset"
    )
    until: Timestamp | None = Field(default=None, description="only what was created before: RFC 3339 with an offset")
    limit: int = Field(default=PAGE, ge=1, le=LONGEST_PAGE, description="at most so many, on one page")
    cursor: Identity | None = Field(default=None, description="next_cursor of the page before; absent: the first page")


class TraceArguments(Value):
    request_id: RequestId = Field(description="the id that the request got at the door: a UUID of version 7")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackingTools:
    records: DeliveryRecords
    lineage: Lineage

    def tools(self) -> list[Tool]:
        return [
            Tool(
                name="messenger_delivery_status",
                description="One delivery: its status, its latest attempt and what the provider calls it.",
                arguments=DeliveryArguments,
                returns=DeliveryResult,
                hints=READS,
                handler=self._status,
            ),
            Tool(
                name="messenger_delivery_search",
                description="Deliveries that fit the filters, newest first, a page at a time.",
                arguments=SearchArguments,
                returns=DeliveryList,
                hints=READS,
                handler=self._search,
            ),
            Tool(
                name="messenger_delivery_attempts",
                description="Every attempt at one delivery, in order.",
                arguments=DeliveryArguments,
                returns=DeliveryAttempts,
                hints=READS,
                handler=self._attempts,
            ),
            Tool(
                name="messenger_delivery_trace",
                description="One request from the door through routing to its deliveries, attempts and receipts.",
                arguments=TraceArguments,
                returns=DeliveryTrace,
                hints=READS,
                handler=self._trace,
            ),
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
