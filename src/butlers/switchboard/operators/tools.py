"""Operators' actions and records as MCP tools: only a person with an operator's token may call them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from pydantic import Field, JsonValue

from butlers.butler.activity import Activity
from butlers.butler.core_tools import wire
from butlers.butler.identity import Caller, Role
from butlers.butler.results import Done, Page
from butlers.butler.surface import ACTS, ADDS, READS, AnyTool, Result, Row, Tool, ToolLine, tools_of
from butlers.contracts.envelope import Identity, RequestId, Timestamp, Value
from butlers.errors import ErrorClass, NotFound
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


class ActionDone(Result):
    outcome: str = Field(description="what became of the action")
    request_id: str | None = Field(description="the request it was about")
    audit_id: str = Field(description="the entry in the operators' record")


class ActionList(Page):
    actions: list[Row] = Field(description="the actions: who did what to which request, why, and the outcome")


class ActivityList(Page):
    entries: list[Row] = Field(description="the entries: who did what, when, and how it ended")


class DeadLettersResult(Result):
    dead_letters: list[Row] | None = Field(default=None, description="the dead letters of the page")
    dead_letter: Row | None = Field(default=None, description="the one that was asked for, whole")
    next_cursor: str | None = Field(default=None, description="hand it back for the next page; null: the last one")


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorTools:
    operators: Operators
    dead_letters: DeadLetters
    audit: OperatorAudit
    log: AuditLog

    def tools(self) -> list[AnyTool]:
        return [
            *tools_of((*self._actions(), *self._records()), roles=OPERATORS),
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

    def _actions(self) -> tuple[ToolLine, ...]:
        return (
            (
                "request.reroute",
                "Send a request to another butler.",
                RerouteArguments,
                ActionDone,
                ACTS,
                self._reroute,
            ),
            (
                "request.cancel",
                "Withdraw a request that nobody works on yet.",
                ActionArguments,
                ActionDone,
                ACTS,
                self._cancel,
            ),
            (
                "request.abort",
                "Stop a request that is being worked on.",
                ActionArguments,
                ActionDone,
                ACTS,
                self._abort,
            ),
            (
                "request.retry",
                "Work on a request again that ended badly.",
                ActionArguments,
                ActionDone,
                ACTS,
                self._retry,
            ),
            (
                "request.replay",
                "Work on a dead letter's request again.",
                ReplayArguments,
                ActionDone,
                ACTS,
                self._replay,
            ),
            (
                "request.force_complete",
                "Declare a request done, with a note.",
                ForceCompleteArguments,
                ActionDone,
                ACTS,
                self._force_complete,
            ),
        )

    def _records(self) -> tuple[ToolLine, ...]:
        return (
            (
                "request.dead_letters",
                "Requests and parts of requests that failed for good, newest first; or one of them, whole.",
                DeadLettersArguments,
                DeadLettersResult,
                READS,
                self._dead_letters,
            ),
            (
                "request.audit",
                "What operators did about requests, newest first.",
                AuditArguments,
                ActionList,
                READS,
                self._audit,
            ),
            (
                "audit.list",
                "What butlers and operators did, newest first.",
                ActivityArguments,
                ActivityList,
                READS,
                self._activity,
            ),
        )

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
