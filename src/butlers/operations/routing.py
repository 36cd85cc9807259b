"""Routing as an operator sees it: which prompt and model decide, what is on trial, and ending or resuming the trial.
What was learned about people on the way, and how well it all goes, stand here as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Final, Literal
from uuid import UUID

from pydantic import Field, StringConstraints

from butlers.contracts.envelope import Value
from butlers.operations.operation import (
    ACTS,
    CURSOR,
    LIMIT,
    LONGEST_PAGE,
    OPERATORS,
    PAGE,
    READS,
    SINCE,
    UNTIL,
    Command,
    Document,
    Operation,
    Option,
    Page,
    Result,
    Row,
    TimeRangeArguments,
    get,
    milliseconds,
    post,
    when,
)

Levels = Mapping[str, Any]
_ENDS = ("parsed", "errored", "open", "shed", "decided_by_a_person")


def service_levels(document: Document) -> Iterator[str]:
    window, routes = document["window"], document["routes"]
    yield f"from {when(window['since'])} to {when(window['until'])}"
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
    return "".join(f", {name} {milliseconds(value)}" for name, value in known if value is not None)


def _rate(rate: float | None) -> str:
    return "unknown" if rate is None else f"{rate:.2%}"


ExtractionStatus = Literal["pending", "confirmed", "dismissed", "expired", "refused", "any"]


class ReasonArguments(Value):
    reason: Annotated[str, StringConstraints(max_length=500)] = Field(default="", description="why, for the record")


class ListArguments(Value):
    status: ExtractionStatus = Field(default="pending", description="only what stands so")
    cursor: UUID | None = Field(default=None, description="next_cursor of the page before; absent: the first page")
    limit: int = Field(default=PAGE, ge=1, le=LONGEST_PAGE, description="at most so many, on one page")


class DecideArguments(Value):
    extraction_id: UUID = Field(description="what was learned, by its id")


class RoutingStatus(Result):
    llm: Row = Field(description="whether a model is asked, and which")
    skills: list[str] = Field(description="the skills that its prompt is made of")
    prompt_version: str | None = Field(description="the version of the prompt")
    stable: Row = Field(description="how the version in use does")
    canary: Row | None = Field(description="the version on trial, and how it does")
    history: list[Row] = Field(description="earlier trials, newest first")


class RolloutChanged(Result):
    """The trial as it stands now."""


class ExtractionList(Page):
    extractions: list[Row] = Field(description="what was learned: id, type, data, confidence and status")


class ExtractionResult(Result):
    id: str = Field(description="what was learned, by its id")
    status: str = Field(description="what was decided")


class ServiceLevelsResult(Result):
    window: Row = Field(description="since and until")
    accept: Row | list[Row] = Field(description="how long the door took")
    completion: Row | list[Row] = Field(description="how long requests took to their end")
    routes: Row = Field(description="how many routes succeeded, in all and by butler")
    interactive: Row | list[Row] = Field(description="how long people waited for an answer")


def _extractions(document: Document) -> Iterator[str]:
    for row in document["extractions"]:
        told = ", ".join(f"{name} {value}" for name, value in row["data"].items() if value not in (None, ""))
        kind, who = row["signal_type"], row["contact_hint"] or "-"
        created = when(row["created_at"])
        yield f"{row['id']}  {created}  {row['status']:<9}  {row['confidence']:.2f}  {kind:<11}  {who}: {told}"


STATUS: Final = Operation(
    name="routing.status",
    description="What decides who gets a message.",
    returns=RoutingStatus,
    hints=READS,
    routes=(get("/routing", "What decides who gets a message"),),
)
ROLLBACK: Final = Operation(
    name="routing.rollback",
    description="Take back the version of prompt and model that is on trial.",
    arguments=ReasonArguments,
    returns=RolloutChanged,
    hints=ACTS,
    roles=OPERATORS,
    routes=(post("/routing/rollback", "Take back the version on trial"),),
)
RESUME: Final = Operation(
    name="routing.resume",
    description="Go on with a trial that was rolled back; it is judged anew.",
    arguments=ReasonArguments,
    returns=RolloutChanged,
    hints=ACTS,
    roles=OPERATORS,
    routes=(post("/routing/resume", "Go on with a trial that was rolled back"),),
)
EXTRACTIONS: Final = Operation(
    name="extraction.list",
    description="What messages told about people, newest first.",
    arguments=ListArguments,
    returns=ExtractionList,
    hints=READS,
    routes=(get("/extractions", "What messages told about people, newest first"),),
    commands=(
        Command(
            "extractions",
            "What messages told about people, newest first; pending: it waits for a person.",
            _extractions,
            (Option("status", "Only those that stand like this.", choices=True), LIMIT, CURSOR),
            none="no extractions",
        ),
    ),
)
CONFIRM: Final = Operation(
    name="extraction.confirm",
    description="Let the relationship butler record what was learned.",
    arguments=DecideArguments,
    returns=ExtractionResult,
    hints=ACTS,
    roles=OPERATORS,
    routes=(post("/extractions/{extraction_id}/confirm", "Let it be recorded"),),
)
DISMISS: Final = Operation(
    name="extraction.dismiss",
    description="Forget what was learned.",
    arguments=DecideArguments,
    returns=ExtractionResult,
    hints=ACTS,
    roles=OPERATORS,
    routes=(post("/extractions/{extraction_id}/dismiss", "Forget it"),),
)
SERVICE_LEVELS: Final = Operation(
    name="service_levels",
    description="How well messages are taken in and dealt with: accept, completion, routes, interactive.",
    arguments=TimeRangeArguments,
    returns=ServiceLevelsResult,
    hints=READS,
    routes=(get("/service-levels", "The service levels of a stretch of time"),),
    commands=(
        Command(
            "service-levels",
            "Accept and completion times, route success, and how long people wait in a chat; the last day by default.",
            service_levels,
            (SINCE, UNTIL),
        ),
    ),
)

OPERATIONS: Final = (STATUS, ROLLBACK, RESUME, EXTRACTIONS, CONFIRM, DISMISS, SERVICE_LEVELS)
