"""Operators' actions and records as MCP tools: only a person with an operator's token may call them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import Field, JsonValue

from butlers.butler.activity import Activity
from butlers.butler.core_tools import Done, wire
from butlers.butler.identity import Caller
from butlers.butler.toolbox import AnyTool, Tool
from butlers.contracts.envelope import Identity, Timestamp, Value
from butlers.errors import NotFound
from butlers.operations import operators as operations
from butlers.operations.operation import ADDS, Role
from butlers.operations.operators import (
    ActivityArguments,
    AuditArguments,
    DeadLettersArguments,
)
from butlers.switchboard.operators.audit import AuditLog, OperatorAudit
from butlers.switchboard.operators.dead_letters import DeadLetters
from butlers.switchboard.operators.overrides import Operators

MOST_ENTRIES = 1000


class Entry(Value):
    operation: Identity = Field(description="what was done")
    request_summary: dict[str, JsonValue] = Field(default_factory=dict, description="ids and codes that tell which")
    result: Identity = Field(description="how it ended")
    error: str | None = Field(default=None, description="what went wrong, in words")
    actor: Identity | None = Field(default=None, description="the person who did it")
    at: Timestamp = Field(description="when: RFC 3339 with an offset")


class RecordArguments(Value):
    entries: list[Entry] = Field(max_length=MOST_ENTRIES, description="what was done, oldest first")


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorTools:
    operators: Operators
    dead_letters: DeadLetters
    audit: OperatorAudit
    log: AuditLog

    def tools(self) -> list[AnyTool]:
        return [
            Tool.of(operations.REROUTE, self.operators.reroute),
            Tool.of(operations.CANCEL, self.operators.cancel),
            Tool.of(operations.ABORT, self.operators.abort),
            Tool.of(operations.RETRY, self.operators.retry),
            Tool.of(operations.REPLAY, self.operators.replay),
            Tool.of(operations.FORCE_COMPLETE, self.operators.force_complete),
            Tool.of(operations.DEAD_LETTERS, self._dead_letters),
            Tool.of(operations.AUDIT, self._audit),
            Tool.of(operations.ACTIVITY, self._activity),
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

    async def _dead_letters(self, _caller: Caller, wanted: DeadLettersArguments) -> dict[str, Any]:
        if wanted.dead_letter_id is None:
            return wire(await self.dead_letters.list(**wanted.model_dump(exclude={"dead_letter_id"})))
        letter = await self.dead_letters.get(wanted.dead_letter_id)
        if letter is None:
            raise NotFound.of("dead_letter_id", "no such dead letter")
        return wire({"dead_letter": letter})

    async def _audit(self, _caller: Caller, wanted: AuditArguments) -> dict[str, Any]:
        return wire(await self.audit.list(**wanted.model_dump()))

    async def _activity(self, _caller: Caller, wanted: ActivityArguments) -> dict[str, Any]:
        return wire(await self.log.list(**wanted.model_dump()))

    async def _record(self, caller: Caller, told: RecordArguments) -> dict[str, Any]:
        for entry in told.entries:
            self.log.report(Activity(butler=caller.name, **entry.model_dump()))
        return {"status": "ok"}
