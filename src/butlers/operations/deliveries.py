"""Deliveries: what was sent, what waits, how the way out is doing, and what a person can do about one of them."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from typing import Any, Final, Literal
from uuid import UUID

from pydantic import Field, JsonValue

from butlers.channels.registry import outbound_names
from butlers.contracts.delivery_state import DeliveryStatus
from butlers.contracts.envelope import Channel, Identity, RequestId, Timestamp, Value
from butlers.contracts.notify import Intent
from butlers.operations import delivery_lines as lines
from butlers.operations import operation as op
from butlers.operations import why

Settlement = Literal["confirmed_sent", "send_again"]
_ID = "the delivery, by its id"
_DELIVERY = op.Option("delivery_id", "A delivery id, as `deliveries list` prints it.")


class SearchArguments(Value):
    origin_butler: Identity | None = Field(default=None, description="only what this butler said")
    channel: Channel | None = Field(default=None, description="only this channel")
    intent: Intent | None = Field(default=None, description="only this intent")
    status: DeliveryStatus | None = Field(default=None, description="only deliveries that stand so")
    request_id: UUID | None = Field(default=None, description="only what belongs to this request")
    since: Timestamp | None = Field(
        default=None, description="only what was created then or later: RFC 3339 with an offset"
    )
    until: Timestamp | None = Field(default=None, description="only what was created before: RFC 3339 with an offset")
    limit: int = Field(default=op.PAGE, ge=1, le=op.LONGEST_PAGE, description="at most so many, on one page")
    cursor: Identity | None = Field(default=None, description="next_cursor of the page before; absent: the first page")


class TraceArguments(Value):
    request_id: RequestId = Field(description="the id that the request got at the door: a UUID of version 7")


class DeliveryArguments(Value):
    delivery_id: UUID = Field(description=_ID)


class SettleArguments(op.DecidedArguments):
    delivery_id: UUID = Field(description=_ID)
    outcome: Settlement = Field(description="confirmed_sent: it arrived; send_again: it did not")


class QuarantineArguments(op.DecidedArguments):
    delivery_id: UUID = Field(description=_ID)
    reason: Identity = Field(description="why, for the record")


class StatsArguments(Value):
    since: Timestamp | None = Field(
        default=None, description="the beginning: RFC 3339 with an offset; absent: 24 hours before until"
    )
    until: Timestamp | None = Field(default=None, description="the end: RFC 3339 with an offset; absent: now")
    group_by: Literal["channel", "intent", "origin_butler", "outcome", "error_class"] | None = Field(
        default=None, description="also count by this property"
    )


class ChannelArguments(Value):
    channel: Identity | None = Field(
        default=None, description="only this channel, with or without its scope: telegram or telegram.bot"
    )


class LimitArguments(ChannelArguments):
    identity_scope: Literal["bot", "user"] | None = Field(
        default=None, description="bot: the system's own accounts; user: the owner's; absent: both"
    )


class NotifyArguments(Value):
    notify_request: dict[str, JsonValue] = Field(description="a notify.v1 envelope, as notify.dispatch takes it")


class DeliveryResult(op.Result):
    delivery_id: str = Field(description=_ID)
    status: str = Field(description="where the delivery stands")
    channel: str = Field(description="the channel it leaves by")
    attempts: int = Field(description="how often it was tried")
    provider_delivery_id: str | None = Field(description="the provider's own id of the message")
    latest_attempt: op.Row | None = Field(description="the last attempt, with its outcome and certainty")


class DeliveryList(op.Page):
    deliveries: list[op.Row] = Field(description="the deliveries: id, channel, target, status, attempts and error")


class DeliveryAttempts(op.Result):
    delivery_id: str = Field(description=_ID)
    attempts: list[op.Row] = Field(
        description="the attempts: when, outcome, certainty, error and the provider's answer"
    )


class DeliveryTrace(op.Result):
    request_id: str = Field(description="the request that was asked about")
    ingress: op.Row = Field(description="how it came in, or why that is unknown")
    routing: op.Row = Field(description="who was to deal with it, or why that is unknown")
    deliveries: list[op.Row] = Field(description="what left because of it, with attempts and receipts")


class DeliveryWhy(op.Result):
    delivery_id: str = Field(description=_ID)
    status: str = Field(description="where the delivery stands")
    lines: list[str] = Field(description="what happened and what can be done now, in plain words")
    decisions: list[op.Row] = Field(description="the rules that decided, in order")


class DeliveryReleased(op.Result):
    delivery_id: str = Field(description=_ID)
    status: str = Field(description="where the delivery stands now")
    provider_delivery_id: str | None = Field(default=None, description="the provider's own id of the message")


class DeadLetterEnded(op.Result):
    dead_letter_id: str = Field(description="the dead letter, by its id")
    delivery_id: str = Field(description=_ID)
    status: str = Field(description="what became of it")
    reason: str = Field(description="why, as the person said")


class NotifyValidity(op.Result):
    valid: bool = Field(description="whether the envelope would pass the checks")
    errors: list[op.Row] = Field(description="field and error of everything that is wrong")


class DryRun(op.Result):
    valid: bool = Field(description="whether the envelope would pass the checks")
    would_be_admitted: bool = Field(description="whether it would be sent now")
    outcome: str = Field(description="what would become of it")
    target_identity: str | None = Field(description="the address it would go to")
    channel_adapter: str | None = Field(description="what would send it")
    headroom: op.Row | None = Field(description="what is left of the budgets")
    reasons: list[op.Row] = Field(description="the rules that decide")


class CircuitStatus(op.Result):
    channels: dict[str, op.Row] = Field(description="by channel: the state of its circuit, and why")


class RateLimitStatus(op.Result):
    channels: dict[str, op.Row] = Field(
        description="by channel: consumed, total, remaining, and until when it is throttled"
    )
    in_flight: op.Row = Field(description="deliveries that are taken on and not yet ended")
    recipients: op.Row = Field(description="who is at the limit")


class QueueDepth(op.Result):
    total: int = Field(description="deliveries on their way")
    by_status: dict[str, int] = Field(description="the same, by status")
    by_phase: dict[str, int] = Field(description="the same, by phase")
    by_channel: dict[str, op.Row] = Field(description="the same, by channel")
    oldest_age_s: float | None = Field(description="seconds since the oldest was asked for")


class DeliveryStats(op.Result):
    window: op.Row = Field(description="since and until")
    total: int = Field(description="deliveries that were asked for in the window")
    delivered: int = Field(description="of these, delivered")
    success_rate: float | None = Field(description="delivered of ended; null: none has ended")
    retry_rate: float | None = Field(description="tried more than once of tried; null: none was tried")
    p50_ms: float | None = Field(description="median milliseconds from asking to the end, of the delivered")
    p95_ms: float | None = Field(description="the same at the 95th percentile")
    groups: list[op.Row] = Field(description="the same figures by the property that was asked for")


def _try(system: op.System, given: op.Document) -> dict[str, Any]:
    if given["message"] == "-":
        return system.post("/api/deliveries/dry-run", sys.stdin.buffer.read())
    delivery = {"intent": "send"} | {name: given[name] for name in ("channel", "message", "recipient", "subject")}
    fields = {name: value for name, value in delivery.items() if value is not None}
    envelope = {"schema_version": "notify.v1", "origin_butler": given["origin"], "delivery": fields}
    return system.post("/api/deliveries/dry-run", op.json_body(envelope))


def _with_note(system: op.System, given: op.Document, found: dict[str, Any]) -> dict[str, Any]:
    """That nothing is found may be a slip of the pen; a butler that was taken away still has deliveries."""
    origin = given["origin_butler"]
    if origin is None or found["deliveries"]:
        return found
    names = sorted(row["name"] for row in system.get("/api/butlers")["butlers"])
    if origin in names:
        return found
    return found | {"note": f"no butler is called {origin!r}; there are {', '.join(names)}"}


def _is_open(answer: op.Document) -> bool:
    return any(row["state"] != "closed" for row in answer["channels"].values())


_reads = partial(op.Operation, hints=op.READS, butler=op.MESSENGER)
_decides = partial(op.Operation, owner=op.SWITCHBOARD, butler=op.MESSENGER)

SEARCH: Final = _reads(
    name="messenger_delivery_search",
    description="Deliveries that fit the filters, newest first, a page at a time.",
    arguments=SearchArguments,
    returns=DeliveryList,
    routes=(op.get("/deliveries", "Deliveries, newest first"),),
    commands=(
        op.Command(
            words="deliveries list",
            help="Deliveries, newest first.",
            prints=lines.deliveries,
            none="no deliveries",
            alone=True,
            completed=_with_note,
            options=(
                op.ORIGIN,
                op.CHANNEL,
                op.Option("intent", "send, reply or react."),
                op.Option("status", "Only deliveries that stand like this.", choices=True),
                op.Option("request_id", "Only deliveries of this request.", "--request"),
                *(op.SINCE, op.UNTIL, op.LIMIT, op.CURSOR),
            ),
        ),
    ),
)
STATUS: Final = _reads(
    name="messenger_delivery_status",
    description="One delivery: its status, its latest attempt and what the provider calls it.",
    arguments=DeliveryArguments,
    returns=DeliveryResult,
    routes=(op.get("/deliveries/{delivery_id}", "One delivery"),),
    commands=(
        op.Command(
            "deliveries show", "One delivery: where it stands and its latest attempt.", lines.delivery, (_DELIVERY,)
        ),
    ),
)
ATTEMPTS: Final = _reads(
    name="messenger_delivery_attempts",
    description="Every attempt at one delivery, in order.",
    arguments=DeliveryArguments,
    returns=DeliveryAttempts,
    routes=(op.get("/deliveries/{delivery_id}/attempts", "Every attempt at it"),),
    commands=(
        op.Command("deliveries attempts", "Every attempt at one delivery, in order.", lines.attempts, (_DELIVERY,)),
    ),
)
TRACE: Final = _reads(
    name="messenger_delivery_trace",
    description="One request from the door through routing to its deliveries, attempts and receipts.",
    arguments=TraceArguments,
    returns=DeliveryTrace,
    routes=(op.get("/deliveries/trace/{request_id}", "One request, from the door to the receipts"),),
)
WHY: Final = _reads(
    name="messenger_delivery_why",
    description="In plain words: which rule decided what about a delivery, and what can be done now.",
    arguments=DeliveryArguments,
    returns=DeliveryWhy,
    routes=(op.get("/deliveries/{delivery_id}/why", "Which rule decided what, in plain words"),),
    commands=(why.COMMAND,),
)
SETTLE: Final = _decides(
    name="messenger_delivery_settle",
    description="Say what became of an uncertain delivery: confirmed_sent, or send_again.",
    arguments=SettleArguments,
    returns=DeliveryReleased,
    hints=op.ACTS_OUTSIDE,
    routes=(op.post("/deliveries/{delivery_id}/settle", "Say what became of an uncertain delivery"),),
    commands=(
        op.Command(
            "deliveries settle",
            "Say what became of an uncertain delivery.",
            lines.result,
            (
                _DELIVERY,
                op.Option("outcome", "Whether it arrived, or is to be sent once more.", positional=True, choices=True),
            ),
        ),
    ),
)
QUARANTINE: Final = _decides(
    name="messenger_dead_letter_quarantine",
    description="Set a delivery aside that is not in a provider call.",
    arguments=QuarantineArguments,
    returns=DeadLetterEnded,
    hints=op.ACTS,
    routes=(op.post("/deliveries/{delivery_id}/quarantine", "Set it aside"),),
    commands=(
        op.Command(
            "deliveries quarantine",
            "Set a delivery aside that is not in a provider call.",
            lines.quarantined,
            (_DELIVERY, op.REASON),
        ),
    ),
)
STATS: Final = _reads(
    name="messenger_delivery_stats",
    description="Counts, rates and latencies of the deliveries of a window, overall and by one property.",
    arguments=StatsArguments,
    returns=DeliveryStats,
    routes=(op.get("/deliveries/stats", "Counts, rates and latencies"),),
    commands=(
        op.Command(
            "deliveries stats",
            "Counts, rates and latencies of the last 24 hours, or of another window.",
            lines.stats,
            (op.SINCE, op.UNTIL, op.Option("group_by", "One line for each.", choices=True)),
        ),
    ),
)
QUEUE: Final = _reads(
    name="messenger_queue_depth",
    description="How many deliveries are on their way, by status, phase and channel.",
    arguments=ChannelArguments,
    returns=QueueDepth,
    routes=(op.get("/deliveries/queue", "What is on its way"),),
    commands=(op.Command("deliveries queue", "How many deliveries are on their way.", lines.queue, (op.CHANNEL,)),),
)
LIMITS: Final = _reads(
    name="messenger_rate_limit_status",
    description="What is left of each budget, until when a provider asked to wait, who is at the limit.",
    arguments=LimitArguments,
    returns=RateLimitStatus,
    routes=(op.get("/deliveries/limits", "What is left of the budgets"),),
    commands=(
        op.Command(
            "deliveries limits",
            "What is left of the budgets, and who is held back.",
            lines.limits,
            (op.CHANNEL, op.Option("identity_scope", "bot or user.", "--scope")),
        ),
    ),
)
CIRCUITS: Final = _reads(
    name="messenger_circuit_status",
    description="The circuit breaker of each channel, and why it is open.",
    arguments=ChannelArguments,
    returns=CircuitStatus,
    routes=(op.get("/deliveries/circuits", "The circuit of each channel"),),
    commands=(
        op.Command(
            "deliveries circuits",
            "The circuit breaker of each channel; exit code 1 when one is not closed.",
            lines.circuits,
            (op.CHANNEL,),
            failed=_is_open,
        ),
    ),
)
DRY_RUN: Final = _reads(
    name="messenger_dry_run",
    description="What would become of a notify.v1 now: target, adapter, headroom, admission.",
    arguments=NotifyArguments,
    returns=DryRun,
    routes=(op.post("/deliveries/dry-run", "What would happen to a notify.v1", body_is="notify_request"),),
    commands=(
        op.Command(
            "deliveries dry-run",
            "What would happen to a message, without sending it; exit code 1 when it would be refused.",
            lines.dry_run,
            (
                op.Option("message", "What would be sent; - reads a notify.v1 envelope from stdin.", positional=True),
                op.Option("origin", "The butler that would ask.", default="general"),
                replace(op.CHANNEL, default=outbound_names()[0]),
                op.Option("recipient", "An address; default: the owner.", "--to", default=None),
                op.Option("subject", "For mail.", default=None),
            ),
            asks=_try,
            failed=lambda answer: answer["outcome"] in ("invalid", "suppressed", "rejected"),
        ),
    ),
)
VALIDATE: Final = _reads(
    name="messenger_validate_notify",
    description="Whether a notify.v1 would pass the checks, field by field; nothing happens.",
    arguments=NotifyArguments,
    returns=NotifyValidity,
    routes=(op.post("/deliveries/validate", "Whether a notify.v1 is valid", body_is="notify_request"),),
)

OPERATIONS: Final = (
    *(SEARCH, STATUS, ATTEMPTS, TRACE, WHY, SETTLE, QUARANTINE),
    *(STATS, QUEUE, LIMITS, CIRCUITS, DRY_RUN, VALIDATE),
)
