"""Requests: handing in messages, and what became of them, from the door to the provider's receipt."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

from pydantic import Field

from butlers.channels.channel import AnswersGo
from butlers.channels.registry import channel_of, channels, listed
from butlers.clock import SystemClock
from butlers.contracts.envelope import Value
from butlers.contracts.ingest import IngestEnvelope, IngestReply
from butlers.contracts.request_state import RequestState
from butlers.errors import ValidationError
from butlers.ids import Uuid7Factory
from butlers.operations import operation as op

MOST_MESSAGES = 500  # in one batch: as many as one transaction takes


class IngestBatch(Value):
    """What a batch looks like; its messages are checked one by one."""

    messages: list[IngestEnvelope] = Field(
        min_length=1, max_length=MOST_MESSAGES, description="the messages, each an ingest.v1"
    )


# Over HTTP a message that is wrong is no mistake of the others, so the body may hold anything in its place.
_MESSAGE = {"description": "an IngestEnvelope; each is judged for itself, and has its own error in the answer"}
_BATCH_BODY = {
    "title": IngestBatch.__name__,
    "type": "object",
    "properties": {
        "messages": {"type": "array", "minItems": 1, "maxItems": MOST_MESSAGES, "items": _MESSAGE},
    },
    "additionalProperties": False,
    "required": ["messages"],
}


class RequestListArguments(Value):
    before: UUID | None = Field(default=None, description="a request id: list what came before it")
    state: RequestState | None = Field(default=None, description="only requests in this state")
    limit: int = Field(default=op.PAGE, ge=1, le=op.LONGEST_PAGE, description="at most so many, on one page")


class TraceArguments(Value):
    request_id: UUID = Field(description="the id that the request got at the door: a UUID of version 7")


class BatchResult(op.Result):
    results: list[op.Row] = Field(description="a reply or an error for each message, in their order")
    accepted: int = Field(description="how many are new")
    duplicates: int = Field(description="how many the door knew already")
    refused: int = Field(description="how many have an error")


class RequestList(op.Page):
    requests: list[op.Row] = Field(description="the requests: id, source, state, when received and who got them")


class RequestCounts(op.Result):
    requests: dict[str, int] = Field(description="by state: all that are open, and those that ended lately")
    ended_within_hours: float = Field(description="how far back those lie that have ended")


class TraceResult(op.Result):
    """What is on record depends on the butler."""

    request_id: str | None = Field(default=None, description="the request that was asked about")
    ingress: op.Row | None = Field(default=None, description="how the request came in (Switchboard)")
    routing: op.Row | None = Field(default=None, description="who was to deal with it, and why (Switchboard)")
    deliveries: list[op.Row] | None = Field(
        default=None, description="what left because of it (Messenger, Switchboard)"
    )
    route_inbox: list[op.Row] | None = Field(default=None, description="the parts that a specialist was to do")
    entries: list[op.Row] | None = Field(default=None, description="what a specialist kept of it")


def _hand_in(system: op.System, given: op.Document) -> dict[str, Any]:
    key, target = given["key"], given["target"]
    if given["text"] == "-":
        if key is not None or target is not None:
            raise ValidationError("an envelope from standard input says itself what --key and --to would say")
        return system.post("/api/ingest", sys.stdin.buffer.read())
    source, sender = _source(system, given["sender"])
    clock = SystemClock()
    event = {"external_event_id": str(Uuid7Factory(clock)()), "observed_at": clock.now()}
    if channel_of(source["channel"]).answers_go is AnswersGo.TO_CONVERSATION:
        event["external_thread_id"] = sender  # a person's own chat with the bot has the person's number
    envelope = {
        "schema_version": "ingest.v1",
        "source": source,
        "event": event,
        "sender": {"identity": sender},
        "payload": {"raw": {"text": given["text"]}, "normalized_text": given["text"]},
        "control": {"idempotency_key": key, "pinned_target": target},
    }
    return system.post("/api/ingest", op.json_body(envelope))


def _source(system: op.System, sender: str) -> tuple[dict[str, str], str]:
    """Where a message of `NAME` or `CHANNEL:NAME` comes from, and the name."""
    name, colon, identity = sender.partition(":")
    if not colon:
        return {"channel": "api", "provider": "internal", "endpoint_identity": "cli"}, sender
    inbound = channel_of(name).inbound
    if inbound is None or not channel_of(name).has_connector or not identity:
        known = listed(tuple(known for known, channel in channels().items() if channel.has_connector))
        raise ValidationError.of("--from", f"must be NAME or CHANNEL:NAME, with the channel {known}; not {sender!r}")
    rows = system.get("/api/connectors")["connectors"]
    found = sorted({row["endpoint_identity"] for row in rows if row["connector_type"] == name})
    if len(found) != 1:
        there = f"there are {', '.join(found)}" if found else "none has reported yet"
        raise ValidationError(f"it is not plain which {name} endpoint is meant: {there}; pass an envelope with -")
    return {"channel": name, "provider": inbound.providers[0], "endpoint_identity": found[0]}, identity


def _accepted(reply: op.Document) -> Iterator[str]:
    yield f"{'already known as' if reply['duplicate'] else 'accepted as'} {reply['request_id']}"
    yield op.Hint(f"follow it with: butlers trace {reply['request_id']}")


def _listed(document: op.Document) -> Iterator[str]:
    # Plain lines: a table would cut the ids that people copy.
    for row in document["requests"]:
        butlers = ", ".join(s["butler"] for s in (row["routing_output"] or {}).get("segments", []))
        source = f"{row['source_channel']}:{row['source_sender_identity']}"
        received = op.when(row["received_at"])
        yield f"{row['request_id']}  {received}  {row['lifecycle_state']:<8}  {butlers or '-':<12}  {source}"


def print_trace(document: op.Document) -> Iterator[str]:
    yield f"request {document['request_id']}: {document['lifecycle_state']}"
    for line in _hops(document):
        yield f"  {line}"


def _hops(document: op.Document) -> Iterator[str]:
    ended = document["final_state_at"]
    yield from _ingress(document["ingress"])
    yield from _routing(document["routing"], ended=ended is not None)
    for name, hop in document["butlers"].items():
        if "unknown" in hop:
            yield f"butler   {name}: unknown ({hop['unknown']})"
        for route in hop.get("route_inbox", []):
            yield f"butler   {name} {route['segment_id']}: {route['lifecycle_state']}, attempt {route['attempts']}"
    for delivery in document["deliveries"]:
        yield from _delivery(delivery)
    if error := document["lifecycle_error"]:
        yield f"error    {error['class']}: {error['message']}"
    if ended:
        yield f"end      {_clock(ended)}  {document['lifecycle_state']}"
    yield from _interventions(document)


def _ingress(ingress: op.Document) -> Iterator[str]:
    context = ingress["request_context"]
    yield (
        f"in       {_clock(ingress['received_at'])}  {context['source_channel']} message from "
        f"{context['source_sender_identity']}, handed in by {ingress['submitted_by']}"
    )
    what = "the same words from there" if ingress["dedupe_key"].startswith("content-") else "the same event"
    yield f"once     {what}, handed in again, is this request ({ingress['dedupe_key']})"


def _routing(routing: op.Document, *, ended: bool) -> Iterator[str]:
    decision = routing["decision"]
    if decision is None:
        yield "route    nobody" if ended else "route    not decided yet"
        return
    targets = ", ".join(f"{segment['butler']} ({segment['confidence']:g})" for segment in decision["segments"])
    yield f"route    to {targets} by {decision['router']}: {decision['why']}{_versions(decision)}"
    yield from _plan(decision)
    attempts = {outcome["segment_id"]: outcome.get("attempts") for outcome in routing["outcomes"]}
    for dispatch in routing["dispatches"]:
        outcome = "ok" if dispatch["success"] else f"{dispatch['error_class']}: {dispatch['error']}"
        target = f"{dispatch['target_butler']} {dispatch['segment_id']}"
        tried = f" after {count} attempts" if (count := attempts.get(dispatch["segment_id"]) or 1) > 1 else ""
        yield f"dispatch {target}: {outcome}{tried} in {op.milliseconds(dispatch['duration_ms'])}"
    for outcome in routing["outcomes"]:
        if outcome.get("skipped"):
            yield f"skipped  {outcome['target_butler']} {outcome['segment_id']}: {outcome['skipped']}"
    if routing["not_before"] and not ended:
        for_whom = f" for {', '.join(routing['waiting_for'])}" if routing["waiting_for"] else ""
        yield f"waits    until {_clock(routing['not_before'])}{for_whom}"


def _versions(decision: op.Document) -> str:
    named = {"prompt": decision.get("prompt_version"), "model": decision.get("model_version")}
    versions = ", ".join(f"{name} {version}" for name, version in named.items() if version)
    return f" [{versions}]" if versions else ""


def _plan(decision: op.Document) -> Iterator[str]:
    if len((plan := decision.get("plan") or {}).get("nodes", ())) > 1:
        yield f"plan     {plan['mode']}, {plan['join']}, after a failure {plan['abort']}"
        for node in plan["nodes"]:
            after = f", after {', '.join(node['depends_on'])} ({node['run_if']})" if node["depends_on"] else ""
            yield f"part     {node['segment_id']}: {'required' if node['required'] else 'optional'}{after}"
    if policy := decision.get("policy"):
        yield f"budget   {', '.join(f'{name} {value}' for name, value in policy.items())}"


def _delivery(delivery: op.Document) -> Iterator[str]:
    yield (
        f"out      {delivery['origin_butler']} -> {delivery['channel']} {delivery['target_identity']}: "
        f"{delivery['status']} ({delivery['id']})"
    )
    for attempt in delivery["attempts"]:
        error = f" {attempt['error_class']}: {attempt['error_message']}" if attempt["error_class"] else ""
        stands = f"outcome {attempt['outcome']}, certainty {attempt['certainty']}"
        yield f"attempt  {attempt['attempt_number']}: {stands if attempt['outcome'] else 'no outcome yet'}{error}"
    for receipt in delivery["receipts"]:
        yield f"receipt  {receipt['receipt_type']} as {receipt['provider_delivery_id']}"


def _interventions(document: op.Document) -> Iterator[str]:
    for action in document["overrides"]:
        problem = action["outcome_details"].get("problem")
        outcome = f"{action['outcome']} ({problem})" if problem else action["outcome"]
        who = f"{action['operator']}, {op.when(action['performed_at'])}"
        yield f"operator {who}: {action['action']}: {action['reason']} -> {outcome}"
    if annotation := (document["override"] or {}).get("annotation"):
        yield f"note     {annotation}"


def _clock(timestamp: str) -> str:
    moment = datetime.fromisoformat(timestamp).astimezone(UTC)
    return f"{moment:%H:%M:%S}.{moment.microsecond // 1000:03} UTC"


INGEST: Final = op.Operation(
    name="ingest",
    description="Hand in one message (ingest.v1); the same door as POST /api/ingest.",
    arguments=IngestEnvelope,
    returns=IngestReply,
    hints=op.ADDS_ONCE,
    roles=op.EVERY_ROLE,
    routes=(op.post("/ingest", "Hand in one message (ingest.v1)", body_is="", decides=False, status=202),),
    commands=(
        op.Command(
            "ingest",
            "Hand in a message through POST /api/ingest.",
            _accepted,
            (
                op.Option("text", "What is said; - reads an ingest.v1 envelope from stdin.", positional=True),
                op.Option(
                    "sender", "Who says it; telegram:ID speaks for that person on Telegram.", "--from", default="cli"
                ),
                op.Option("key", "Idempotency key: the same key is the same message.", "--key", default=None),
                op.Option("target", "A butler's name, to skip routing.", "--to", default=None),
            ),
            asks=_hand_in,
        ),
    ),
)
INGEST_BATCH: Final = op.Operation(
    name="ingest.batch",
    description="Hand in many messages (ingest.v1); a result or an error for each, in their order.",
    arguments=IngestBatch,
    returns=BatchResult,
    hints=op.ADDS_ONCE,
    roles=op.EVERY_ROLE,
    routes=(
        op.post(
            "/ingest/batch",
            "Hand in many messages: a result or an error for each, in their order",
            body_is="",
            body_schema=_BATCH_BODY,
            decides=False,
            status=202,
        ),
    ),
)
LIST: Final = op.Operation(
    name="request.list",
    description="Recent requests, newest first, a page at a time.",
    arguments=RequestListArguments,
    returns=RequestList,
    hints=op.READS,
    routes=(op.get("/requests", "Recent requests, newest first"),),
    commands=(
        op.Command(
            "requests list",
            "Recent requests, newest first.",
            _listed,
            (
                op.Option("state", "Only requests in this state.", choices=True),
                op.LIMIT,
                op.Option("before", "A request id: list what came before it."),
            ),
            none="no requests",
            alone=True,
        ),
    ),
)
TRACE: Final = op.Operation(
    name="trace",
    description="What this butler did for one request.",
    arguments=TraceArguments,
    returns=TraceResult,
    hints=op.READS,
    routes=(op.get("/requests/{request_id}", "One request, every hop"),),
    commands=(
        op.Command(
            "trace",
            "One request, every hop, from the door to the provider's receipt.",
            print_trace,
            (op.Option("request_id", "As ingest printed it."),),
        ),
        op.Command(
            "requests show",
            "One request, every hop.",
            print_trace,
            (op.Option("request_id", "A request's id, as `requests list` prints it."),),
        ),
    ),
)
COUNTS: Final = op.Operation(
    name="request.counts",
    description="How many requests there are, by state.",
    returns=RequestCounts,
    hints=op.READS,
    routes=(op.get("/status", "Counts by state"),),
)

OPERATIONS: Final = (INGEST, INGEST_BATCH, LIST, TRACE, COUNTS)
