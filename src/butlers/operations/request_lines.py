"""What operators see of requests: dead letters, their own actions, and what can be done now."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from butlers.operations.command import Hint, when

Document = Mapping[str, Any]
_COMMANDS = {
    "manual_reroute": "reroute {id} --to BUTLER --reason WHY",
    "cancel": "cancel {id} --reason WHY",
    "abort": "abort {id} --reason WHY",
    "retry": "retry {id} --reason WHY",
    "force_complete": "force-complete {id} --annotation NOTE --reason WHY",
}


def dead_letters(document: Document) -> Iterator[str]:
    for row in document["dead_letters"]:
        yield f"{row['id']}  {when(row['created_at'])}  {_stands(row):<14}  {_part(row)}  {row['error_class']}"
        yield f"    request {row['request_id']}: {row['failure_category']}: {row['failure_reason']}"


def dead_letter(document: Document) -> Iterator[str]:
    row = document["dead_letter"]
    yield f"dead letter {row['id']}: {_stands(row)}"
    yield f"  request   {row['request_id']}, {_part(row)}"
    yield f"  because   {row['failure_category']}: {row['error_class']}: {row['failure_reason']}"
    yield f"  tried     {_times(row['attempts'])}, set aside {when(row['created_at'])}"
    context, copy = row["request_context"], row["original_payload"]
    yield f"  from      {context['source_channel']} {context['source_sender_identity']}, {when(context['received_at'])}"
    for number, line in enumerate(copy["normalized_text"].splitlines()):
        yield f"  {'' if number else 'message':<8}  {line}"
    if row["replay_count"]:
        yield f"  replayed  {_times(row['replay_count'])}, the last one {row['replay_outcome']}"
    yield from (f"  {line}" for line in letter_hints(row))


def letter_line(row: Document) -> str:
    replayed = f", replayed {_times(row['replay_count'])}: {row['replay_outcome']}" if row["replay_count"] else ""
    told = f"{row['failure_category']}: {row['error_class']}: {row['failure_reason']}"
    return f"letter   {row['id']} ({_part(row)}): {_stands(row)}{replayed}; {told}"


def letter_hints(row: Document) -> Iterator[str]:
    if row["resolved_at"] is not None:
        return
    if not row["replay_eligible"]:
        yield f"cannot be replayed: {row['ineligible_reason']}"
    elif row["replay_outcome"] != "pending":
        yield Hint(f"run it again: butlers requests replay {row['id']} --reason WHY")


def request_hints(trace: Document) -> Iterator[str]:
    """What can be done about a request now."""
    for action in trace["possible"]:
        command = _COMMANDS[action].format(id=trace["request_id"])
        yield Hint(f"possible now: butlers requests {command}")


def actions(document: Document) -> Iterator[str]:
    for row in document["actions"]:
        yield f"{row['id']}  {action_line(row)}  request {row['request_id'] or 'unknown'}"


def action_line(row: Document) -> str:
    problem = row["outcome_details"].get("problem")
    result = f"{row['outcome']} ({problem})" if problem else row["outcome"]
    return f"{when(row['performed_at'])}  {row['action']} by {row['operator']}: {row['reason']} -> {result}"


def activity(document: Document) -> Iterator[str]:
    for row in document["entries"]:
        actor = f" by {row['actor']}" if row["actor"] else ""
        error = f" ({row['error']})" if row["error"] else ""
        about = ", ".join(f"{name} {value}" for name, value in row["request_summary"].items() if value is not None)
        yield f"{when(row['created_at'])}  {row['butler']}  {row['operation']}{actor}: {row['result']}{error}  {about}"


def acted(document: Document) -> Iterator[str]:
    outcome = "" if document["outcome"] == "success" else f" ({document['outcome']})"
    yield f"{document['action']}{outcome}: request {document['request_id']} is {document['lifecycle_state']} now"
    if handed := document["details"].get("handed_to"):
        yield f"{', '.join(handed)} may have it already and finish it"
    yield Hint(f"follow it with: butlers why {document['request_id']}")


def _stands(row: Document) -> str:
    if row["resolved_at"] is not None:
        return f"settled ({row['resolution']})"
    if row["replay_outcome"] == "pending":
        return "being replayed"
    return "replayable" if row["replay_eligible"] else "not replayable"


def _part(row: Document) -> str:
    return f"{row['segment_id']} to {row['target_butler']}" if row["segment_id"] else "the whole request"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
