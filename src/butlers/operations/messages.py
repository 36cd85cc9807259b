"""Messages to people: send, explain, list, show, cancel, acknowledge, replay, and how the runtime is doing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final
from uuid import UUID

from pydantic import Field, JsonValue

from butlers.contracts.envelope import Identity, Text, Timestamp, Value, invalid
from butlers.contracts.message_state import MessageState
from butlers.contracts.notify import Priority
from butlers.operations import operation as op
from butlers.operations.templates import read_values

_MOST_NAMED = 10_000  # of one call; the service takes fewer and says what to do with more


class SendArguments(Value):
    message: Text | None = Field(
        default=None, description="the text, with {{names}} where variables are given; instead of template_id"
    )
    recipient_ids: list[Identity] = Field(
        default_factory=list,
        max_length=_MOST_NAMED,
        description="people: contact ids, owner, channel:address or whole names, up to 1,000; none: the owner",
    )
    template_id: Identity | None = Field(default=None, description="a stored template; instead of message")
    variables: dict[str, JsonValue] = Field(default_factory=dict, description="what the template's names stand for")
    locale: Identity | None = Field(default=None, description="BCP 47 tag; absent: the recipient's own")
    subject: Identity | None = Field(default=None, description="the subject line, on channels that have one")
    event_type: Identity | None = Field(
        default=None, description="the kind of notification, by which people choose channels; absent: message"
    )
    organization_id: Identity | None = Field(
        default=None, description="whose defaults and entitlements count beside the system's"
    )
    priority: Priority = Field(default="normal", description="what goes first when several are due")
    policy: dict[str, JsonValue] = Field(
        default_factory=dict,
        description="retry, throttling, pacing, quiet_hours, urgent_passes_quiet_hours, digest_seconds, repeat",
    )
    conversation_id: Identity | None = Field(default=None, description="the conversation that it belongs to")
    not_after: Timestamp | None = Field(default=None, description="of no use later than this: RFC 3339 with an offset")
    idempotency_key: Identity | None = Field(
        default=None, description="a name for this message: a repeat with the same key is not sent again"
    )


class SendResult(op.Result):
    message_id: str = Field(description="the message, by its id")
    queued: list[op.Row] = Field(description="recipient_id, channel and scheduled_at of each person it goes to")
    blocked: list[op.Row] = Field(description="recipient_id, reason and detail of each person who does not get it")


class Explanation(op.Result):
    now: str = Field(description="the moment it is explained for")
    bypass: str | None = Field(description="why quiet hours, mutes and digests do not hold; null: they do")
    recipients: list[op.Row] = Field(
        description="of each person: every channel with its rule, quiet hours, throttle, and what would be done"
    )


class ListArguments(Value):
    recipient: Identity | None = Field(default=None, description="only to this person")
    sender_id: Identity | None = Field(default=None, description="only from this sender")
    conversation_id: Identity | None = Field(default=None, description="only of this conversation")
    state: MessageState | None = Field(default=None, description="only with a recipient in this state")
    limit: int = Field(default=op.PAGE, ge=1, le=op.LONGEST_PAGE, description="at most so many, on one page")
    cursor: str | None = Field(default=None, max_length=64, description="next_cursor of the page before")


class MessageList(op.Page):
    messages: list[op.Row] = Field(description="newest first: sender, event type, and recipients by state")


class ShowArguments(Value):
    message_id: UUID = Field(description="the message, by its id")
    limit: int = Field(default=op.PAGE, ge=1, le=op.LONGEST_PAGE, description="at most so many recipients")
    after: str = Field(default="", max_length=512, description="only recipients behind this one")


class MessageResult(op.Result):
    message: op.Row = Field(description="the message as it was accepted")
    recipients: list[op.Row] = Field(description="of each person: state, reason, history and attempts")
    next_after: str | None = Field(description="hand it back as after for more recipients; null: these are the last")


class SomeArguments(op.DecidedArguments):
    message_id: UUID = Field(description="the message, by its id")
    recipient: Identity | None = Field(default=None, description="only for this person; absent: for all")


class AcknowledgeArguments(op.DecidedArguments):
    message_id: UUID = Field(description="the message, by its id")
    recipient: Identity = Field(description="the person who has seen it")


class Changed(op.Result):
    message_id: str = Field(description="the message, by its id")
    changed: int = Field(description="for how many recipients something changed")


class ServiceLevels(op.Result):
    since: str = Field(description="the beginning of the time range, included")
    until: str = Field(description="its end, not included")
    delivered: int = Field(description="recipients who got their message")
    on_time_ratio: float | None = Field(
        description="share of them within a minute of the schedule; null: there is none"
    )
    success_ratio: float | None = Field(description="delivered among delivered and dead-lettered; null: there is none")
    goals: op.Row = Field(description="the objectives, and whether each is met; null: nothing to judge by")


def _request(given: op.Document) -> dict[str, Any]:
    """The arguments as the command line gives them."""
    text = given["message"]
    fields = {name: value for name, value in given.items() if name not in ("message", "explain", "policy", "variables")}
    fields = {name: getattr(value, "value", value) for name, value in fields.items() if value not in (None, [], ())}
    return fields | {
        **({"message": text} if text else {}),
        "variables": read_values(given["variables"] or ()),
        "policy": _json_object("policy", given["policy"]) if given["policy"] else {},
    }


def _json_object(name: str, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise invalid(name, "must be a JSON object")
    return value


def _ask(system: op.System, given: op.Document) -> dict[str, Any]:
    path = "/api/messages/explain" if given["explain"] else "/api/messages"
    return system.post(path, op.json_body(_request(given)))


def _sent(document: op.Document) -> Iterator[str]:
    if "recipients" in document:
        yield from _explained(document)
        return
    yield f"message {document['message_id']}"
    for row in document["queued"]:
        yield f"  {row['recipient_id']}  {row['channel']}  at {op.when(row['scheduled_at'])}"
    for row in document["blocked"]:
        yield f"  {row['recipient_id']}  blocked: {row['reason']}  {row['detail']}"
    yield op.Hint(f"see what becomes of it with: butlers messages show {document['message_id']}")


def _explained(document: op.Document) -> Iterator[str]:
    yield f"nothing was sent; at {op.when(document['now'])} this would happen"
    if document["bypass"]:
        yield f"quiet hours, mutes and digests are passed: {document['bypass']}"
    for row in document["recipients"]:
        yield from _explained_recipient(row)


def _explained_recipient(row: op.Document) -> Iterator[str]:
    if row["outcome"] == "blocked":
        yield f"{row['recipient_id']}: blocked, {row['reason']} ({row['detail']})"
    else:
        yield f"{row['recipient_id']}: by {row['channel']} at {op.when(row['scheduled_at'])} ({row['detail']})"
    for each in row["candidates"]:
        yield f"  {'keeps' if each['kept'] else 'drops'} {each['channel']}: {each['rule']}"
    for each in row["quiet_hours"]:
        where = f"{each['window']} in {each['timezone']}, where it is {each['local_time']}"
        ends = f"quiet until {each['ends_local']} = {each['ends_utc']}" if each["is_quiet"] else "not quiet"
        yield f"  quiet hours {where}: {ends}"
    if row["muted_until"]:
        yield f"  muted until {op.when(row['muted_until'])}"
    if row["outcome"] == "queued":
        rooms = (f"{number} within {_WITHIN[name]}" for name, number in row["throttle_headroom"].items())
        room = ", ".join(rooms)
        leaves = op.when(row["leaves_at"]) if row["leaves_at"] else "never, the throttle leaves no time"
        yield f"  throttle leaves room for {room or 'any number'}; leaves at {leaves}"
        if row["digest_seconds"]:
            yield f"  collected into a digest of {row['digest_seconds']} s"


def _listed(document: op.Document) -> Iterator[str]:
    for row in document["messages"]:
        states = [f"{number} {state}" for state, number in sorted(row["states"].items())]
        states += [f"{row['blocked']} blocked at once"] if row["blocked"] else []
        where = f"{row['id']}  {op.when(row['created_at'])}  {row['sender_id']}  {row['event_type']}"
        yield f"{where}  {', '.join(states)}"


def print_message(document: op.Document) -> Iterator[str]:
    message = document["message"]
    yield f"message {message['id']} from {message['sender_id']} at {op.when(message['created_at'])}"
    for row in document["recipients"]:
        reason = f"  {row['reason']}" if row["reason"] else ""
        yield f"{row['recipient_id']}: {row['state']}{reason}  {row['detail']}"
        if row["state"] in ("planned", "queued"):
            yield f"  waits until {op.when(row['scheduled_at'])} for {_WAITS[row['waits_for']]}"
        for each in row["history"]:
            yield f"  {op.when(each['at'])}  {each['state']:<13}  {each['channel']}  {each['detail']}"
        for each in row["attempts"]:
            ended = f"{each['outcome']} {each['error'] or ''}".strip() if each["outcome"] else "under way"
            delivery = f"  delivery {each['delivery_id']}" if each["delivery_id"] else ""
            yield f"  attempt {each['number']} by {each['channel']}: {ended}{delivery}"
            if each["outcome"] == "failed" and each["delivery_id"]:
                yield op.Hint(f"    what can be done: butlers why {each['delivery_id']}")


_WITHIN = {"minute": "a minute", "hour": "an hour", "day": "a day"}
_WAITS = {"": "its schedule", "quiet": "the end of quiet hours or of a mute", "throttle": "room under the throttle"}


def _has_changed_nothing(document: op.Document) -> bool:
    return not document["changed"]


def _changed(document: op.Document) -> Iterator[str]:
    number = document["changed"]
    yield f"message {document['message_id']}: changed for {number} recipient{'' if number == 1 else 's'}"


def _levels(document: op.Document) -> Iterator[str]:
    yield f"from {op.when(document['since'])} to {op.when(document['until'])}"
    for name in ("delivered", "digested", "dead_lettered", "expired", "blocked", "cancelled", "open"):
        yield f"  {name}: {document[name]}"
    for name, goal in document["goals"].items():
        met = {True: "met", False: "missed", None: "nothing to judge by"}[goal["met"]]
        value = "-" if goal["value"] is None else f"{goal['value']:.4f}"
        yield f"  {name}: {value} (goal {goal['goal']}): {met}"


_EXPLAIN_FIRST = op.Option("explain", "Say what would happen, and send nothing.", "--explain", default=False)
SEND: Final = op.Operation(
    name="messages.send",
    description="Send a message to people, each by an allowed and preferred channel, when it does not disturb.",
    arguments=SendArguments,
    returns=SendResult,
    hints=op.SENDS,
    routes=(op.post("/messages", "Send a message to people", status=202),),
    commands=(
        op.Command(
            "send",
            "Send a message to people, each by an allowed and preferred channel.",
            _sent,
            (
                op.Option("message", "The text; instead of --template.", positional=True, default=None),
                op.Option(
                    "recipient_ids",
                    "A person: id, owner, channel:address or name. May be given again.",
                    "--to",
                    default=None,
                ),
                op.Option("template_id", "A stored template.", "--template"),
                op.Option(
                    "variables",
                    "A value: NAME=TEXT, or NAME:=JSON for numbers, true, lists.",
                    "--set",
                    parse=read_values,
                    default=None,
                ),
                op.Option("locale", "BCP 47 tag, like de-CH."),
                op.Option("subject", "The subject line."),
                op.Option("event_type", "The kind of notification.", "--event"),
                op.Option("organization_id", "Whose defaults count.", "--organization"),
                op.Option("priority", "urgent, high, normal or low.", choices=True),
                op.Option("policy", "Delivery policy, as JSON.", default=None),
                op.Option("conversation_id", "The conversation it belongs to.", "--conversation"),
                op.Option("not_after", "Of no use later than this moment."),
                op.Option("idempotency_key", "A name, so that a repeat is not sent again.", "--key"),
                _EXPLAIN_FIRST,
            ),
            asks=_ask,
            failed=lambda answer: "queued" in answer and not answer["queued"],
        ),
    ),
)
EXPLAIN: Final = op.Operation(
    name="messages.explain",
    description="Say for each person what sending a message would do and which rules decide it; sends nothing.",
    arguments=SendArguments,
    returns=Explanation,
    hints=op.READS,
    routes=(op.post("/messages/explain", "What sending a message would do, and why"),),
)
LIST: Final = op.Operation(
    name="messages.list",
    description="Messages to people, newest first, with their recipients by state.",
    arguments=ListArguments,
    returns=MessageList,
    hints=op.READS,
    routes=(
        op.get("/messages", "Messages to people, newest first"),
        op.get("/conversations/{conversation_id}", "The messages of one conversation, newest first"),
    ),
    commands=(
        op.Command(
            "messages list",
            "Messages to people, newest first.",
            _listed,
            (
                op.Option("recipient", "Only to this person.", "--to"),
                op.Option("sender_id", "Only from this sender.", "--sender"),
                op.Option("conversation_id", "Only of this conversation.", "--conversation"),
                op.Option("state", "Only with a recipient in this state.", choices=True),
                op.LIMIT,
                op.CURSOR,
            ),
            none="there is no message",
            alone=True,
        ),
    ),
)
SHOW: Final = op.Operation(
    name="messages.show",
    description="One message: of each recipient the state, why, every change and every attempt.",
    arguments=ShowArguments,
    returns=MessageResult,
    hints=op.READS,
    routes=(op.get("/messages/{message_id}", "One message, and what became of it"),),
    commands=(
        op.Command(
            "messages show",
            "One message: of each recipient the state, why, every change and every attempt.",
            print_message,
            (op.Option("message_id", "The message."), op.Option("limit"), op.Option("after", "Behind this recipient.")),
        ),
    ),
)
_MESSAGE = op.Option("message_id", "The message.")
_ONE = op.Option("recipient", "Only for this person.", "--to")
CANCEL: Final = op.Operation(
    name="messages.cancel",
    description="Withdraw a message from recipients whom it has not left for yet.",
    arguments=SomeArguments,
    returns=Changed,
    hints=op.CHANGES,
    routes=(op.post("/messages/{message_id}/cancel", "Withdraw a message that has not left"),),
    commands=(
        op.Command(
            "messages cancel",
            "Withdraw a message that has not left yet.",
            _changed,
            (_MESSAGE, _ONE),
            failed=_has_changed_nothing,
        ),
    ),
)
ACKNOWLEDGE: Final = op.Operation(
    name="messages.acknowledge",
    description="A recipient has seen a message: it is not repeated any more.",
    arguments=AcknowledgeArguments,
    returns=Changed,
    hints=op.CHANGES,
    routes=(op.post("/messages/{message_id}/acknowledge", "A recipient has seen a message"),),
    commands=(
        op.Command(
            "messages acknowledge",
            "A recipient has seen it: repeat it no more.",
            _changed,
            (_MESSAGE, op.Option("recipient", "The person who has seen it.", "--to")),
            failed=_has_changed_nothing,
        ),
    ),
)
REPLAY: Final = op.Operation(
    name="messages.replay",
    description="Try a message again that became a dead letter, on every channel that is allowed now.",
    arguments=SomeArguments,
    returns=Changed,
    hints=op.SENDS,
    routes=(op.post("/messages/{message_id}/replay", "Try a dead letter again"),),
    commands=(op.Command("messages replay", "Try again what became a dead letter.", _changed, (_MESSAGE, _ONE)),),
)
LEVELS: Final = op.Operation(
    name="messages.service_levels",
    description="How messages ended and how late they were, beside the goals of the delivery runtime.",
    arguments=op.TimeRangeArguments,
    returns=ServiceLevels,
    hints=op.READS,
    routes=(op.get("/messages/service-levels", "How messages ended, beside the goals"),),
    commands=(
        op.Command(
            "messages levels", "How messages ended, beside the goals of the runtime.", _levels, (op.SINCE, op.UNTIL)
        ),
    ),
)

OPERATIONS: Final = (SEND, EXPLAIN, LIST, LEVELS, SHOW, CANCEL, ACKNOWLEDGE, REPLAY)
