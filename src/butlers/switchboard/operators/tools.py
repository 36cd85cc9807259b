"""Operators' actions and records as MCP tools: only a person with an operator's token may call them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from pydantic import Field, JsonValue

from butlers.butler.activity import Activity
from butlers.butler.core_tools import wire
from butlers.butler.identity import Caller, Role
from butlers.butler.surface import AnyTool, Tool
from butlers.contracts.envelope import Identity, RequestId, Timestamp, Value, invalid
from butlers.errors import ErrorClass
from butlers.switchboard.operators.audit import OperatorAudit
from butlers.switchboard.operators.dashboard import AuditLog
from butlers.switchboard.operators.dead_letters import DeadLetters
from butlers.switchboard.operators.decisions import Action
from butlers.switchboard.operators.overrides import Operators
from butlers.switchboard.operators.paging import LONGEST_PAGE

OPERATORS = frozenset({Role.OPERATOR})
PAGE = 50
MOST_ENTRIES = 1000


class ActionArguments(Value):
    request_id: RequestId = Field(description="the id that the request got at the door: a UUID of version 7")
    reason: Identity = Field(description="why, for the record")


class RerouteArguments(ActionArguments):
    target: Identity = Field(description="the butler that is to have it")


class ForceCompleteArguments(ActionArguments):
    annotation: Identity = Field(description="what the record shall say about it")


class ReplayArguments(Value):
    dead_letter_id: UUID = Field(description="the dead letter, by its id")
    reason: Identity = Field(description="why, for the record")


class PageArguments(Value):
    since: Timestamp | None = Field(
        default=None, description="only what is from then or later: RFC 3339 with an offset"
    )
    cursor: Identity | None = Field(default=None, description="next_cursor of the page before; absent: the first page")
    limit: int = Field(default=PAGE, ge=1, le=LONGEST_PAGE, description="at most so many, on one page")


class DeadLettersArguments(PageArguments):
    dead_letter_id: UUID | None = Field(default=None, description="only this one, whole")
    request_id: UUID | None = Field(default=None, description="only what belongs to this request")
    target_butler: Identity | None = Field(default=None, description="only what this butler was to do")
    error_class: ErrorClass | None = Field(default=None, description="only this kind of failure")
    failure_category: Identity | None = Field(default=None, description="only this category")
    include_resolved: bool = Field(default=False, description="also what was replayed")


class AuditArguments(PageArguments):
    request_id: UUID | None = Field(default=None, description="only what was done to this request")
    operator: Identity | None = Field(default=None, description="only what this person did")
    action: Action | None = Field(default=None, description="only this action")


class ActivityArguments(PageArguments):
    butler: Identity | None = Field(default=None, description="only what this butler did")
    operation: Identity | None = Field(default=None, description="only this operation")
    result: Identity | None = Field(default=None, description="only what ended so")


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
            _tool("request.reroute", "Send a request to another butler.", RerouteArguments, self._reroute),
            _tool("request.cancel", "Withdraw a request that nobody works on yet.", ActionArguments, self._cancel),
            _tool("request.abort", "Stop a request that is being worked on.", ActionArguments, self._abort),
            _tool("request.retry", "Work on a request again that ended badly.", ActionArguments, self._retry),
            _tool("request.replay", "Work on a dead letter's request again.", ReplayArguments, self._replay),
            _tool(
                "request.force_complete",
                "Declare a request done, with a note.",
                ForceCompleteArguments,
                self._force_complete,
            ),
            _tool(
                "request.dead_letters",
                "Requests and parts of requests that failed for good, newest first; or one of them, whole.",
                DeadLettersArguments,
                self._dead_letters,
            ),
            _tool("request.audit", "What operators did about requests, newest first.", AuditArguments, self._audit),
            _tool("audit.list", "What butlers and operators did, newest first.", ActivityArguments, self._activity),
            Tool(
                name="audit.record",
                description="A butler tells what it did; told and forgotten.",
                arguments=RecordArguments,
                handler=self._record,
                roles=frozenset({Role.BUTLER}),
            ),
        ]

    async def _reroute(self, caller: Caller, wanted: RerouteArguments) -> dict[str, Any]:
        done = self.operators.reroute(
            wanted.request_id, target=wanted.target, operator=caller.name, reason=wanted.reason
        )
        return wire(await done)

    async def _cancel(self, caller: Caller, wanted: ActionArguments) -> dict[str, Any]:
        return wire(await self.operators.cancel(wanted.request_id, operator=caller.name, reason=wanted.reason))

    async def _abort(self, caller: Caller, wanted: ActionArguments) -> dict[str, Any]:
        return wire(await self.operators.abort(wanted.request_id, operator=caller.name, reason=wanted.reason))

    async def _retry(self, caller: Caller, wanted: ActionArguments) -> dict[str, Any]:
        return wire(await self.operators.retry(wanted.request_id, operator=caller.name, reason=wanted.reason))

    async def _replay(self, caller: Caller, wanted: ReplayArguments) -> dict[str, Any]:
        return wire(await self.operators.replay(wanted.dead_letter_id, operator=caller.name, reason=wanted.reason))

    async def _force_complete(self, caller: Caller, wanted: ForceCompleteArguments) -> dict[str, Any]:
        done = self.operators.force_complete(
            wanted.request_id, annotation=wanted.annotation, operator=caller.name, reason=wanted.reason
        )
        return wire(await done)

    async def _dead_letters(self, _caller: Caller, wanted: DeadLettersArguments) -> dict[str, Any]:
        if wanted.dead_letter_id is None:
            return wire(await self.dead_letters.list(**wanted.model_dump(exclude={"dead_letter_id"})))
        letter = await self.dead_letters.get(wanted.dead_letter_id)
        if letter is None:
            raise invalid("dead_letter_id", "no such dead letter")
        return wire({"dead_letter": letter})

    async def _audit(self, _caller: Caller, wanted: AuditArguments) -> dict[str, Any]:
        return wire(await self.audit.list(**wanted.model_dump()))

    async def _activity(self, _caller: Caller, wanted: ActivityArguments) -> dict[str, Any]:
        return wire(await self.log.list(**wanted.model_dump()))

    async def _record(self, caller: Caller, told: RecordArguments) -> dict[str, Any]:
        for entry in told.entries:
            self.log.report(Activity(butler=caller.name, **entry.model_dump()))
        return {"status": "ok"}


def _tool(name: str, description: str, arguments: type[Value], handler: Any) -> Tool:
    return Tool(name=name, description=description, arguments=arguments, handler=handler, roles=OPERATORS)
