"""Requests as operators see them: what they can do about one, what failed for good, and the record of both."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Final
from uuid import UUID

from pydantic import Field

from butlers.contracts.envelope import Identity, RequestId, Timestamp, Value
from butlers.errors import ErrorClass
from butlers.operations import operation as op

_COMMANDS = {
    "manual_reroute": "reroute {id} --to BUTLER --reason WHY",
    "cancel": "cancel {id} --reason WHY",
    "abort": "abort {id} --reason WHY",
    "retry": "retry {id} --reason WHY",
    "force_complete": "force-complete {id} --annotation NOTE --reason WHY",
}
_ID = "the id that the request got at the door: a UUID of version 7"
_REASON = "why, for the record"
_REQUEST = op.Option("request_id", "A request's id, as `requests list` prints it.")
_DEAD_LETTER = op.Option("dead_letter_id", "A dead letter's id, as `requests dead-letters` prints it.")
_OF_REQUEST = op.Option("request_id", "Only about this request.", "--request")


def print_dead_letters(document: op.Document) -> Iterator[str]:
    for row in document["dead_letters"]:
        yield f"{row['id']}  {op.when(row['created_at'])}  {_stands(row):<14}  {_part(row)}  {row['error_class']}"
        yield f"    request {row['request_id']}: {row['failure_category']}: {row['failure_reason']}"


def print_dead_letter(document: op.Document) -> Iterator[str]:
    row = document["dead_letter"]
    yield f"dead letter {row['id']}: {_stands(row)}"
    yield f"  request   {row['request_id']}, {_part(row)}"
    yield f"  because   {row['failure_category']}: {row['error_class']}: {row['failure_reason']}"
    yield f"  tried     {_times(row['attempts'])}, set aside {op.when(row['created_at'])}"
    context, copy = row["request_context"], row["original_payload"]
    received = op.when(context["received_at"])
    yield f"  from      {context['source_channel']} {context['source_sender_identity']}, {received}"
    for number, line in enumerate(copy["normalized_text"].splitlines()):
        yield f"  {'' if number else 'message':<8}  {line}"
    if row["replay_count"]:
        yield f"  replayed  {_times(row['replay_count'])}, the last one {row['replay_outcome']}"
    yield from (f"  {line}" for line in letter_hints(row))


def letter_line(row: op.Document) -> str:
    replayed = f", replayed {_times(row['replay_count'])}: {row['replay_outcome']}" if row["replay_count"] else ""
    failure = f"{row['failure_category']}: {row['error_class']}: {row['failure_reason']}"
    return f"letter   {row['id']} ({_part(row)}): {_stands(row)}{replayed}; {failure}"


def letter_hints(row: op.Document) -> Iterator[str]:
    if row["resolved_at"] is not None:
        return
    if not row["replay_eligible"]:
        yield f"cannot be replayed: {row['ineligible_reason']}"
    elif row["replay_outcome"] != "pending":
        yield op.Hint(f"run it again: butlers requests replay {row['id']} --reason WHY")


def request_hints(trace: op.Document) -> Iterator[str]:
    """What can be done about a request now."""
    for action in trace["possible"]:
        command = _COMMANDS[action].format(id=trace["request_id"])
        yield op.Hint(f"possible now: butlers requests {command}")


def print_actions(document: op.Document) -> Iterator[str]:
    for row in document["actions"]:
        yield f"{row['id']}  {action_line(row)}  request {row['request_id'] or 'unknown'}"


def action_line(row: op.Document) -> str:
    problem = row["outcome_details"].get("problem")
    result = f"{row['outcome']} ({problem})" if problem else row["outcome"]
    return f"{op.when(row['performed_at'])}  {row['action']} by {row['operator']}: {row['reason']} -> {result}"


def print_activity(document: op.Document) -> Iterator[str]:
    for row in document["entries"]:
        actor = f" by {row['actor']}" if row["actor"] else ""
        error = f" ({row['error']})" if row["error"] else ""
        about = ", ".join(f"{name} {value}" for name, value in row["request_summary"].items() if value is not None)
        what = f"{row['operation']}{actor}: {row['result']}{error}"
        yield f"{op.when(row['created_at'])}  {row['butler']}  {what}  {about}"


def print_outcome(document: op.Document) -> Iterator[str]:
    outcome = "" if document["outcome"] == "success" else f" ({document['outcome']})"
    yield f"{document['action']}{outcome}: request {document['request_id']} is {document['lifecycle_state']} now"
    if handed := document["details"].get("handed_to"):
        yield f"{', '.join(handed)} may have it already and finish it"
    yield op.Hint(f"follow it with: butlers why {document['request_id']}")


def _stands(row: op.Document) -> str:
    if row["resolved_at"] is not None:
        return f"settled ({row['resolution']})"
    if row["replay_outcome"] == "pending":
        return "being replayed"
    return "replayable" if row["replay_eligible"] else "not replayable"


def _part(row: op.Document) -> str:
    return f"{row['segment_id']} to {row['target_butler']}" if row["segment_id"] else "the whole request"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


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
    limit: int = Field(default=op.PAGE, ge=1, le=op.LONGEST_PAGE, description="at most so many, on one page")


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


class ActionDone(op.Result):
    outcome: str = Field(description="what became of the action")
    request_id: str | None = Field(description="the request it was about")
    audit_id: str = Field(description="the entry in the operators' record")


class OperatorActionList(op.Page):
    actions: list[op.Row] = Field(description="the actions: who did what to which request, why, and the outcome")


class ActivityList(op.Page):
    entries: list[op.Row] = Field(description="the entries: who did what, when, and how it ended")


class DeadLettersResult(op.Result):
    dead_letters: list[op.Row] | None = Field(default=None, description="the dead letters of the page")
    dead_letter: op.Row | None = Field(default=None, description="the one that was asked for, whole")
    next_cursor: str | None = Field(default=None, description="hand it back for the next page; null: the last one")


def _action(
    word: str,
    description: str,
    summary: str,
    about: str,
    *,
    arguments: type[Value] = ActionArguments,
    options: tuple[op.Option, ...] = (_REQUEST, op.REASON),
    below: str = "{request_id}",
) -> op.Operation:
    return op.Operation(
        name=f"request.{word.replace('-', '_')}",
        description=description,
        arguments=arguments,
        returns=ActionDone,
        hints=op.ACTS,
        roles=op.OPERATORS,
        routes=(op.post(f"/requests/{below}/{word}", summary),),
        commands=(op.Command(f"requests {word}", about, print_outcome, options),),
    )


REROUTE: Final = _action(
    "reroute",
    "Send a request to another butler.",
    "Send it to another butler",
    "Send a request that is open, or ended badly, to another butler.",
    arguments=RerouteArguments,
    options=(_REQUEST, op.Option("target", "The butler that is to have it.", "--to"), op.REASON),
)
CANCEL: Final = _action(
    "cancel",
    "Withdraw a request that nobody works on yet.",
    "Withdraw it before anybody works on it",
    "Withdraw a request that nobody works on yet.",
)
ABORT: Final = _action(
    "abort", "Stop a request that is being worked on.", "Stop the work on it", "Stop the work on a request."
)
RETRY: Final = _action(
    "retry",
    "Work on a request again that ended badly.",
    "Work on it again after it ended badly",
    "Work on a request again that ended badly; what succeeded is not repeated.",
)
FORCE_COMPLETE: Final = _action(
    "force-complete",
    "Declare a request done, with a note.",
    "Declare it done, with a note",
    "Declare a request done, with a note.",
    arguments=ForceCompleteArguments,
    options=(
        _REQUEST,
        op.Option("annotation", "What was done about it otherwise; it is shown.", "--annotation"),
        op.Option("reason", "Why; it is kept.", "--reason", default="force-completed"),
    ),
)
REPLAY: Final = _action(
    "replay",
    "Work on a dead letter's request again.",
    "Work on it again",
    "Work on a dead letter's request again, under its own id.",
    arguments=ReplayArguments,
    options=(_DEAD_LETTER, op.REASON),
    below="dead-letters/{dead_letter_id}",
)
DEAD_LETTERS: Final = op.Operation(
    name="request.dead_letters",
    description="Requests and parts of requests that failed for good, newest first; or one of them, whole.",
    arguments=DeadLettersArguments,
    returns=DeadLettersResult,
    hints=op.READS,
    roles=op.OPERATORS,
    routes=(
        op.get(
            "/requests/dead-letters",
            "Requests that failed for good, newest first",
            query=tuple(name for name in DeadLettersArguments.model_fields if name != "dead_letter_id"),
        ),
        op.get("/requests/dead-letters/{dead_letter_id}", "One of them, whole", query=()),
    ),
    commands=(
        op.Command(
            words="requests dead-letters",
            help="Requests, and parts of them, that failed for good, newest first.",
            prints=print_dead_letters,
            none="no dead letters",
            options=(
                _OF_REQUEST,
                op.Option("target_butler", "Only what this butler was to do.", "--butler"),
                op.Option("error_class", "Only this class of error."),
                op.Option("failure_category", "Only this category of failure.", "--category"),
                op.SINCE,
                op.Option("include_resolved", "Also what is settled.", "--settled"),
                *(op.LIMIT, op.CURSOR),
            ),
        ),
        op.Command("requests dead-letter", "One dead letter, whole.", print_dead_letter, (_DEAD_LETTER,), route=1),
    ),
)
AUDIT: Final = op.Operation(
    name="request.audit",
    description="What operators did about requests, newest first.",
    arguments=AuditArguments,
    returns=OperatorActionList,
    hints=op.READS,
    roles=op.OPERATORS,
    routes=(op.get("/audit/operators", "What operators did about requests, newest first"),),
    commands=(
        op.Command(
            "requests audit",
            "What operators did about requests, newest first.",
            print_actions,
            (
                _OF_REQUEST,
                op.Option("operator", "Only what this operator did."),
                op.Option("action", "Only this action, e.g. manual_reroute."),
                op.SINCE,
                op.LIMIT,
                op.CURSOR,
            ),
            none="no operator has acted",
        ),
    ),
)
ACTIVITY: Final = op.Operation(
    name="audit.list",
    description="What butlers and operators did, newest first.",
    arguments=ActivityArguments,
    returns=ActivityList,
    hints=op.READS,
    roles=op.OPERATORS,
    routes=(op.get("/audit", "What butlers and operators did, newest first"),),
    commands=(
        op.Command(
            "requests activity",
            "What butlers and operators did, newest first: sessions, schedules, actions.",
            print_activity,
            (
                op.Option("butler", "Only what this butler did."),
                op.Option("operation", "Only this, e.g. session."),
                op.Option("result", "Only with this result, e.g. failed."),
                op.SINCE,
                op.LIMIT,
                op.CURSOR,
            ),
            none="nothing on record",
        ),
    ),
)

OPERATIONS: Final = (*(REROUTE, CANCEL, ABORT, RETRY, FORCE_COMPLETE, REPLAY), *(DEAD_LETTERS, AUDIT, ACTIVITY))
