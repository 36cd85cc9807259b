"""Requests as operators see them: what they can do about one, what failed for good, and the record of both."""

from __future__ import annotations

from enum import StrEnum
from typing import Final
from uuid import UUID

from pydantic import Field

from butlers.contracts.envelope import Identity, RequestId, Timestamp, Value
from butlers.errors import ErrorClass
from butlers.operations.operation import (
    ACTS,
    LONGEST_PAGE,
    OPERATORS,
    PAGE,
    READS,
    Operation,
    Page,
    Result,
    Row,
    get,
    post,
)

_ID = "the id that the request got at the door: a UUID of version 7"
_REASON = "why, for the record"


class Action(StrEnum):
    MANUAL_REROUTE = "manual_reroute"
    CANCEL = "cancel"
    ABORT = "abort"
    RETRY = "retry"
    REPLAY = "replay"
    FORCE_COMPLETE = "force_complete"


class ActionArguments(Value):
    request_id: RequestId = Field(description=_ID)
    reason: Identity = Field(description=_REASON)


class RerouteArguments(Value):
    request_id: RequestId = Field(description=_ID)
    target: Identity = Field(description="the butler that is to have it")
    reason: Identity = Field(description=_REASON)


class ForceCompleteArguments(Value):
    request_id: RequestId = Field(description=_ID)
    annotation: Identity = Field(description="what the record shall say about it")
    reason: Identity = Field(description=_REASON)


class ReplayArguments(Value):
    dead_letter_id: UUID = Field(description="the dead letter, by its id")
    reason: Identity = Field(description=_REASON)


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


class ActionDone(Result):
    outcome: str = Field(description="what became of the action")
    request_id: str | None = Field(description="the request it was about")
    audit_id: str = Field(description="the entry in the operators' record")


class OperatorActionList(Page):
    actions: list[Row] = Field(description="the actions: who did what to which request, why, and the outcome")


class ActivityList(Page):
    entries: list[Row] = Field(description="the entries: who did what, when, and how it ended")


class DeadLettersResult(Result):
    dead_letters: list[Row] | None = Field(default=None, description="the dead letters of the page")
    dead_letter: Row | None = Field(default=None, description="the one that was asked for, whole")
    next_cursor: str | None = Field(default=None, description="hand it back for the next page; null: the last one")


def _action(
    name: str, description: str, path: str, summary: str, arguments: type[Value] = ActionArguments
) -> Operation:
    return Operation(
        name=name,
        description=description,
        arguments=arguments,
        returns=ActionDone,
        hints=ACTS,
        roles=OPERATORS,
        routes=(post(f"/requests/{path}", summary),),
    )


REROUTE: Final = _action(
    "request.reroute",
    "Send a request to another butler.",
    "{request_id}/reroute",
    "Send it to another butler",
    RerouteArguments,
)
CANCEL: Final = _action(
    "request.cancel",
    "Withdraw a request that nobody works on yet.",
    "{request_id}/cancel",
    "Withdraw it before anybody works on it",
)
ABORT: Final = _action(
    "request.abort", "Stop a request that is being worked on.", "{request_id}/abort", "Stop the work on it"
)
RETRY: Final = _action(
    "request.retry",
    "Work on a request again that ended badly.",
    "{request_id}/retry",
    "Work on it again after it ended badly",
)
FORCE_COMPLETE: Final = _action(
    "request.force_complete",
    "Declare a request done, with a note.",
    "{request_id}/force-complete",
    "Declare it done, with a note",
    ForceCompleteArguments,
)
REPLAY: Final = _action(
    "request.replay",
    "Work on a dead letter's request again.",
    "dead-letters/{dead_letter_id}/replay",
    "Work on it again",
    ReplayArguments,
)
DEAD_LETTERS: Final = Operation(
    name="request.dead_letters",
    description="Requests and parts of requests that failed for good, newest first; or one of them, whole.",
    arguments=DeadLettersArguments,
    returns=DeadLettersResult,
    hints=READS,
    roles=OPERATORS,
    routes=(
        get(
            "/requests/dead-letters",
            "Requests that failed for good, newest first",
            query=tuple(name for name in DeadLettersArguments.model_fields if name != "dead_letter_id"),
        ),
        get("/requests/dead-letters/{dead_letter_id}", "One of them, whole", query=()),
    ),
)
AUDIT: Final = Operation(
    name="request.audit",
    description="What operators did about requests, newest first.",
    arguments=AuditArguments,
    returns=OperatorActionList,
    hints=READS,
    roles=OPERATORS,
    routes=(get("/audit/operators", "What operators did about requests, newest first"),),
)
ACTIVITY: Final = Operation(
    name="audit.list",
    description="What butlers and operators did, newest first.",
    arguments=ActivityArguments,
    returns=ActivityList,
    hints=READS,
    roles=OPERATORS,
    routes=(get("/audit", "What butlers and operators did, newest first"),),
)

OPERATIONS: Final = (
    *(REROUTE, CANCEL, ABORT, RETRY, FORCE_COMPLETE, REPLAY),
    *(DEAD_LETTERS, AUDIT, ACTIVITY),
)
