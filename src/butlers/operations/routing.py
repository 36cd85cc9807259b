"""Routing as an operator sees it: the registry of butlers and who was taken out of service, which prompt and model
decide, what is on trial, what was learned about people on the way, and how well it all goes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Annotated, Any, Final, Literal
from uuid import UUID

from pydantic import Field, StringConstraints

from butlers.contracts.envelope import Identity, Value
from butlers.operations import operation as op

Levels = Mapping[str, Any]
_ENDS = ("parsed", "errored", "open", "shed", "decided_by_a_person")


def service_levels(document: op.Document) -> Iterator[str]:
    window, routes = document["window"], document["routes"]
    yield f"from {op.when(window['since'])} to {op.when(window['until'])}"
    yield from _section(
        "accept", document["accept"], lambda row: f"{row['source_channel']}: {row['messages']} messages"
    )
    yield from _section("completion", document["completion"], _completion)
    yield f"routes: {_rate(routes['success_rate'])} of {routes['routes']}"
    for row in routes["by_butler"]:
        failed = "".join(f", {count} {name}" for name, count in row["errors"].items())
        yield f"  {row['target_butler']}: {_rate(row['success_rate'])} of {row['routes']}{failed}"
    yield from _section("interactive, from progress to the end", document["interactive"], _interactive)


def _section(title: str, rows: Iterable[Levels], about: Any) -> Iterator[str]:
    lines = [f"  {about(row)}{_percentiles(row)}" for row in rows]
    yield f"{title}:" if lines else f"{title}: nothing in this time"
    yield from lines


def _completion(row: Levels) -> str:
    counts = ", ".join(f"{row[name]} {name.replace('_', ' ')}" for name in _ENDS if row[name])
    return f"{row['source_channel']} {row['policy_tier']}: {counts}"


def _interactive(row: Levels) -> str:
    return f"{row['source_channel']}: {row['requests']} {row['lifecycle_state']}"


def _percentiles(row: Levels) -> str:
    known = ((name, row[f"{name}_ms"]) for name in ("p50", "p95", "p99"))
    return "".join(f", {name} {op.milliseconds(value)}" for name, value in known if value is not None)


def _rate(rate: float | None) -> str:
    return "unknown" if rate is None else f"{rate:.2%}"


ExtractionStatus = Literal["pending", "confirmed", "dismissed", "expired", "refused", "any"]


class ReasonArguments(Value):
    reason: Annotated[str, StringConstraints(max_length=500)] = Field(default="", description="why, for the record")


class ListArguments(Value):
    status: ExtractionStatus = Field(default="pending", description="only what stands so")
    cursor: UUID | None = Field(default=None, description="next_cursor of the page before; absent: the first page")
    limit: int = Field(default=op.PAGE, ge=1, le=op.LONGEST_PAGE, description="at most so many, on one page")


class DecideArguments(Value):
    extraction_id: UUID = Field(description="what was learned, by its id")


class RoutingStatus(op.Result):
    llm: op.Row = Field(description="whether a model is asked, and which")
    skills: list[str] = Field(description="the skills that its prompt is made of")
    prompt_version: str | None = Field(description="the version of the prompt")
    stable: op.Row = Field(description="how the version in use does")
    canary: op.Row | None = Field(description="the version on trial, and how it does")
    history: list[op.Row] = Field(description="earlier trials, newest first")


class RolloutChanged(op.Result):
    """The trial as it stands now."""


class ExtractionList(op.Page):
    extractions: list[op.Row] = Field(description="what was learned: id, type, data, confidence and status")


class ExtractionResult(op.Result):
    id: str = Field(description="what was learned, by its id")
    status: str = Field(description="what was decided")


class ServiceLevelsResult(op.Result):
    window: op.Row = Field(description="since and until")
    accept: op.Row | list[op.Row] = Field(description="how long the door took")
    completion: op.Row | list[op.Row] = Field(description="how long requests took to their end")
    routes: op.Row = Field(description="how many routes succeeded, in all and by butler")
    interactive: op.Row | list[op.Row] = Field(description="how long people waited for an answer")


def _extractions(document: op.Document) -> Iterator[str]:
    for row in document["extractions"]:
        details = ", ".join(f"{name} {value}" for name, value in row["data"].items() if value not in (None, ""))
        kind, who = row["signal_type"], row["contact_hint"] or "-"
        created = op.when(row["created_at"])
        yield f"{row['id']}  {created}  {row['status']:<9}  {row['confidence']:.2f}  {kind:<11}  {who}: {details}"


_acts = partial(op.Operation, hints=op.ACTS, roles=op.OPERATORS)

STATUS: Final = op.Operation(
    name="routing.status",
    description="What decides who gets a message.",
    returns=RoutingStatus,
    hints=op.READS,
    routes=(op.get("/routing", "What decides who gets a message"),),
)
ROLLBACK: Final = _acts(
    name="routing.rollback",
    description="Take back the version of prompt and model that is on trial.",
    arguments=ReasonArguments,
    returns=RolloutChanged,
    routes=(op.post("/routing/rollback", "Take back the version on trial"),),
)
RESUME: Final = _acts(
    name="routing.resume",
    description="Go on with a trial that was rolled back; it is judged anew.",
    arguments=ReasonArguments,
    returns=RolloutChanged,
    routes=(op.post("/routing/resume", "Go on with a trial that was rolled back"),),
)
EXTRACTIONS: Final = op.Operation(
    name="extraction.list",
    description="What messages told about people, newest first.",
    arguments=ListArguments,
    returns=ExtractionList,
    hints=op.READS,
    routes=(op.get("/extractions", "What messages told about people, newest first"),),
    commands=(
        op.Command(
            "extractions",
            "What messages told about people, newest first; pending: it waits for a person.",
            _extractions,
            (op.Option("status", "Only those that stand like this.", choices=True), op.LIMIT, op.CURSOR),
            none="no extractions",
        ),
    ),
)
CONFIRM: Final = _acts(
    name="extraction.confirm",
    description="Let the relationship butler record what was learned.",
    arguments=DecideArguments,
    returns=ExtractionResult,
    routes=(op.post("/extractions/{extraction_id}/confirm", "Let it be recorded"),),
)
DISMISS: Final = _acts(
    name="extraction.dismiss",
    description="Forget what was learned.",
    arguments=DecideArguments,
    returns=ExtractionResult,
    routes=(op.post("/extractions/{extraction_id}/dismiss", "Forget it"),),
)
SERVICE_LEVELS: Final = op.Operation(
    name="service_levels",
    description="How well messages are taken in and dealt with: accept, completion, routes, interactive.",
    arguments=op.TimeRangeArguments,
    returns=ServiceLevelsResult,
    hints=op.READS,
    routes=(op.get("/service-levels", "The service levels of a stretch of time"),),
    commands=(
        op.Command(
            "service-levels",
            "Accept and completion times, route success, and how long people wait in a chat; the last day by default.",
            service_levels,
            (op.SINCE, op.UNTIL),
        ),
    ),
)

_BUTLER = op.Option("butler", "A butler's name.", metavar="BUTLER")


class HoldArguments(Value):
    butler: Identity = Field(description="the butler, by its name")
    reason: Identity = Field(description="why, for the record")


class HistoryArguments(Value):
    butler: Identity = Field(description="the butler, by its name")
    cursor: UUID | None = Field(default=None, description="next_cursor of the page before; absent: the first page")
    limit: int = Field(default=op.PAGE, ge=1, le=op.LONGEST_PAGE, description="at most so many, on one page")


class ButlerList(op.Result):
    butlers: list[op.Row] = Field(
        description="the butlers: name, description, triggers, tools and whether they get routes"
    )


class HoldResult(op.Result):
    butler: str = Field(description="the butler, by its name")
    held: op.Row | None = Field(description="who holds it, why and since when; null: nobody")
    eligibility_state: str = Field(description="whether it gets routes")


class HoldHistory(op.Page):
    butler: str = Field(description="the butler, by its name")
    history: list[op.Row] = Field(description="what changed, when and why, newest first")


def _butlers(document: op.Document) -> Iterator[str]:
    for row in document["butlers"]:
        held = f"  held by {row['held']['operator']}: {row['held']['reason']}" if row["held"] else ""
        yield f"{row['name']:<16} {row['eligibility_state']:<12} seen {row['last_seen_at']}{held}"


def _history(document: op.Document) -> Iterator[str]:
    for row in document["history"]:
        yield f"{row['observed_at']}  {row['previous'] or '-'} -> {row['new']}  {row['reason']}"


def _state(document: op.Document) -> Iterator[str]:
    held = document["held"]
    yield f"{document['butler']}: {'held by ' + held['operator'] if held else document['eligibility_state']}"


LIST: Final = op.Operation(
    name="list_butlers",
    description="The registry.",
    returns=ButlerList,
    hints=op.READS,
    roles=op.EVERY_ROLE,
    routes=(op.get("/butlers", "The registry"),),
    commands=(
        op.Command("registry list", "Every butler, and whether it gets routes.", _butlers, none="nobody is registered"),
    ),
)
HOLD: Final = _acts(
    name="butler.hold",
    description="Take a butler out of service: no new routes until it is released.",
    arguments=HoldArguments,
    returns=HoldResult,
    routes=(op.post("/butlers/{butler}/hold", "Take a butler out of service"),),
    commands=(
        op.Command(
            "registry hold",
            "Take a butler out of service: it gets no new routes, whatever signs of life it gives.",
            _state,
            (_BUTLER, op.REASON),
        ),
    ),
)
RELEASE: Final = _acts(
    name="butler.release",
    description="Put a butler back into service that was held.",
    arguments=HoldArguments,
    returns=HoldResult,
    routes=(op.post("/butlers/{butler}/release", "Put a butler back into service"),),
    commands=(op.Command("registry release", "Put a butler back into service.", _state, (_BUTLER, op.REASON)),),
)
HISTORY: Final = op.Operation(
    name="butler.history",
    description="Why a butler was or was not routable, newest first.",
    arguments=HistoryArguments,
    returns=HoldHistory,
    hints=op.READS,
    routes=(op.get("/butlers/{butler}/history", "Why a butler was or was not routable"),),
    commands=(
        op.Command(
            "registry history",
            "Why a butler was or was not routable, newest first.",
            _history,
            (_BUTLER, op.Option("limit"), op.CURSOR),
            none="nothing ever changed",
        ),
    ),
)

OPERATIONS: Final = (
    LIST,
    HISTORY,
    HOLD,
    RELEASE,
    STATUS,
    ROLLBACK,
    RESUME,
    EXTRACTIONS,
    CONFIRM,
    DISMISS,
    SERVICE_LEVELS,
)
