"""The record of what operators and butlers did: who, when, why, how it went, and how long it is kept."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal
from uuid import UUID

from butlers.butler.activity import Activity, ActivityQueue
from butlers.clock import Clock
from butlers.contracts.envelope import invalid
from butlers.operations.operators import Action
from butlers.storage.database import Database, Executor
from butlers.storage.queries import Queries
from butlers.storage.retention import AgingTable, forget

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_FORM = re.compile(r"(?P<moment>[0-9a-f]{1,14})-(?P<id>[0-9a-f]{32})")

KEPT = timedelta(days=365)
BATCH = 1_000
RECORDS = (
    AgingTable(table="dead_letter"),
    AgingTable(table="operator_audit_log", moment="performed_at"),
    AgingTable(table="dashboard_audit_log"),
    AgingTable(table="routing_log"),
    AgingTable(table="routing_model_calls"),
    AgingTable(table="extraction_queue"),
    AgingTable(table="extraction_log"),
    AgingTable(table="extraction_runs", key="request_id"),
    AgingTable(table="butler_eligibility_log", moment="observed_at"),
)

ActionOutcome = Literal["success", "failed", "rejected", "partial"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorIntent:
    """What an operator asks for."""

    action: Action
    operator: str
    reason: str
    at: datetime
    request_id: UUID | None  # None: the dead letter knows
    payload: Mapping[str, Any] = field(default_factory=dict)  # what belongs to the action: target, annotation, letter

    def override(self, **more: Any) -> dict[str, Any]:
        """The intent as the request's own record keeps it."""
        at = self.at.isoformat()
        return {"action": self.action.value, "operator": self.operator, "reason": self.reason, "at": at} | more


class OperatorAudit:
    def __init__(self, *, database: Database, schema: str, new_id: Callable[[], UUID]) -> None:
        self._database = database
        self._queries = Queries.load("butlers.switchboard.operators", schema=schema)
        self._new_id = new_id

    async def record(
        self,
        intent: OperatorIntent,
        outcome: ActionOutcome,
        details: Mapping[str, Any],
        *,
        request_id: UUID | None,
        connection: Executor | None = None,  # None: on its own, whatever became of the action
    ) -> UUID:
        audit_id = self._new_id()
        await (connection or self._database).execute(
            self._queries.record_action,
            audit_id,
            intent.action.value,
            request_id,
            intent.operator,
            intent.reason,
            intent.payload,
            outcome,
            details,
            intent.at,
        )
        return audit_id

    async def list(
        self,
        *,
        request_id: UUID | None = None,
        operator: str | None = None,
        action: str | None = None,
        since: datetime | None = None,
        cursor: str | None = None,
        limit: int = 50,
    ) -> dict[str, Any]:
        values = (request_id, operator, action, since, *place(cursor), limit + 1)
        rows = [dict(row) for row in await self._database.fetch(self._queries.list_actions, *values)]
        actions, following = page(rows, limit)
        shown = [{key: value for key, value in row.items() if key != "created_at"} for row in actions]
        return {"actions": shown, "next_cursor": following}


class AuditLog:
    def __init__(self, *, database: Database, schema: str, clock: Clock, new_id: Callable[[], UUID]) -> None:
        self._database = database
        self._queries = Queries.load("butlers.switchboard.operators", schema=schema)
        self._clock = clock
        self._new_id = new_id
        self._queue = ActivityQueue(sink=self._store)
        self.report = self._queue.report
        self.run = self._queue.run
        self.close = self._queue.close

    def write(
        self,
        *,
        butler: str,
        operation: str,
        request_summary: Mapping[str, Any],
        result: str,
        error: str | None = None,
        actor: str | None = None,
    ) -> None:
        self.report(
            Activity(
                butler=butler,
                operation=operation,
                request_summary=request_summary,
                result=result,
                error=error,
                actor=actor,
                at=self._clock.now(),
            )
        )

    async def list(
        self,
        *,
        butler: str | None = None,
        operation: str | None = None,
        result: str | None = None,
        since: datetime | None = None,
        cursor: str | None = None,
        limit: int = 50,
    ) -> dict[str, Any]:
        values = (butler, operation, result, since, *place(cursor), limit + 1)
        rows = [dict(row) for row in await self._database.fetch(self._queries.list_activity, *values)]
        entries, following = page(rows, limit)
        return {"entries": entries, "next_cursor": following}

    async def _store(self, entries: Sequence[Activity]) -> None:
        rows = [
            (
                self._new_id(),
                entry.butler,
                entry.operation,
                entry.request_summary,
                entry.result,
                entry.error,
                entry.actor,
                entry.at,
            )
            for entry in entries
        ]
        await self._database.executemany(self._queries.record_activity, rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordKeeper:
    database: Database
    schema: str
    clock: Clock
    batch: int = BATCH

    async def keep(self) -> None:
        """Forget what is older."""
        before = self.clock.now() - KEPT
        for aging in RECORDS:
            await forget(self.database, self.schema, aging, before=before, batch=self.batch)


def place(cursor: str | None) -> tuple[datetime | None, UUID | None]:
    """The row a page begins behind; nothing for the first page."""
    if cursor is None:
        return None, None
    match = _FORM.fullmatch(cursor)
    if match is None:
        raise invalid("cursor", "is not the next_cursor of an earlier page")
    return _EPOCH + int(match["moment"], 16) * _MICROSECOND, UUID(match["id"])


def page(rows: Sequence[dict[str, Any]], limit: int) -> tuple[list[dict[str, Any]], str | None]:
    """The rows of a page and where the next begins; it takes one row more than the page holds to know."""
    shown = [*rows[:limit]]
    if len(rows) <= limit:
        return shown, None
    last = shown[-1]
    return shown, f"{(last['created_at'] - _EPOCH) // _MICROSECOND:x}-{last['id'].hex}"
