"""The record of what operators and butlers did: who, when, why, how it went, and how long it is kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal
from uuid import UUID

from pydantic import Field, JsonValue

from butlers.butler.activity import Activity, ActivityQueue
from butlers.butler.core_tools import Done, wire
from butlers.butler.identity import Caller
from butlers.butler.toolbox import AnyTool, Tool
from butlers.clock import Clock
from butlers.contracts.envelope import Identity, Timestamp, Value
from butlers.operations import operators as operations
from butlers.operations.operation import ADDS, Role, page, place
from butlers.operations.operators import Action, ActivityArguments, AuditArguments
from butlers.storage.database import Database, Executor
from butlers.storage.queries import Queries
from butlers.storage.retention import AgingTable, forget

RETENTION = timedelta(days=365)
BATCH = 1_000
MOST_ENTRIES = 1_000  # that a butler reports at once
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
    payload: Mapping[str, Any] = field(default_factory=dict)  # what belongs to the action: target, annotation, letter

    def override(self, **more: Any) -> dict[str, Any]:
        """The intent as the request's own record keeps it."""
        at = self.at.isoformat()
        return {"action": self.action.value, "operator": self.operator, "reason": self.reason, "at": at} | more


class Entry(Value):
    operation: Identity = Field(description="what was done")
    request_summary: dict[str, JsonValue] = Field(default_factory=dict, description="ids and codes that tell which")
    result: Identity = Field(description="how it ended")
    error: str | None = Field(default=None, description="what went wrong, in words")
    actor: Identity | None = Field(default=None, description="the person who did it")
    at: Timestamp = Field(description="when: RFC 3339 with an offset")


class RecordArguments(Value):
    entries: list[Entry] = Field(max_length=MOST_ENTRIES, description="what was done, oldest first")


class AuditLog:
    """Two records: the operators' actions, written with what they changed, and what butlers say they did, queued."""

    def __init__(self, *, database: Database, schema: str, new_id: Callable[[], UUID]) -> None:
        self._database = database
        self._queries = Queries.load("butlers.switchboard.operators", schema=schema)
        self._new_id = new_id
        self._queue = ActivityQueue(sink=self._store)
        self.report = self._queue.report
        self.run = self._queue.run
        self.close = self._queue.close

    def tools(self) -> list[AnyTool]:
        return [
            Tool.of(operations.AUDIT, self._list_actions),
            Tool.of(operations.ACTIVITY, self._list_activity),
            Tool(
                name="audit.record",
                description="A butler tells what it did; told and forgotten.",
                arguments=RecordArguments,
                returns=Done,
                hints=ADDS,
                handler=self._record,
                roles=frozenset({Role.BUTLER}),
            ),
        ]

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

    async def actions(self, arguments: AuditArguments) -> dict[str, Any]:
        values = (arguments.request_id, arguments.operator, arguments.action, arguments.since, *place(arguments.cursor))
        rows = await self._database.fetch(self._queries.list_actions, *values, arguments.limit + 1)
        actions, following = page([dict(row) for row in rows], arguments.limit)
        shown = [{key: value for key, value in row.items() if key != "created_at"} for row in actions]
        return {"actions": shown, "next_cursor": following}

    async def _list_actions(self, _caller: Caller, arguments: AuditArguments) -> dict[str, Any]:
        return wire(await self.actions(arguments))

    async def _list_activity(self, _caller: Caller, arguments: ActivityArguments) -> dict[str, Any]:
        values = (arguments.butler, arguments.operation, arguments.result, arguments.since, *place(arguments.cursor))
        rows = await self._database.fetch(self._queries.list_activity, *values, arguments.limit + 1)
        entries, following = page([dict(row) for row in rows], arguments.limit)
        return wire({"entries": entries, "next_cursor": following})

    async def _record(self, caller: Caller, arguments: RecordArguments) -> dict[str, Any]:
        for entry in arguments.entries:
            self.report(Activity(butler=caller.name, **entry.model_dump()))
        return {"status": "ok"}

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
        before = self.clock.now() - RETENTION
        for aging in RECORDS:
            await forget(self.database, self.schema, aging, before=before, batch=self.batch)
