"""The registry of butlers: who gets routes, and who was taken out of service, put back, and why."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final
from uuid import UUID

from pydantic import Field

from butlers.contracts.envelope import Identity, Value
from butlers.operations.operation import (
    ACTS,
    CURSOR,
    EVERY_ROLE,
    LONGEST_PAGE,
    OPERATORS,
    PAGE,
    READS,
    REASON,
    Command,
    Document,
    Operation,
    Option,
    Page,
    Result,
    Row,
    get,
    post,
)

_BUTLER = Option("butler", "A butler's name.", metavar="BUTLER")


class HoldArguments(Value):
    butler: Identity = Field(description="the butler, by its name")
    reason: Identity = Field(description="why, for the record")


class HistoryArguments(Value):
    butler: Identity = Field(description="the butler, by its name")
    cursor: UUID | None = Field(default=None, description="next_cursor of the page before; absent: the first page")
    limit: int = Field(default=PAGE, ge=1, le=LONGEST_PAGE, description="at most so many, on one page")


class ButlerList(Result):
    butlers: list[Row] = Field(
        description="the butlers: name, description, triggers, tools and whether they get routes"
    )


class HoldResult(Result):
    butler: str = Field(description="the butler, by its name")
    held: Row | None = Field(description="who holds it, why and since when; null: nobody")
    eligibility_state: str = Field(description="whether it gets routes")


class HoldHistory(Page):
    butler: str = Field(description="the butler, by its name")
    history: list[Row] = Field(description="what changed, when and why, newest first")


def _butlers(document: Document) -> Iterator[str]:
    for row in document["butlers"]:
        held = f"  held by {row['held']['operator']}: {row['held']['reason']}" if row["held"] else ""
        yield f"{row['name']:<16} {row['eligibility_state']:<12} seen {row['last_seen_at']}{held}"


def _history(document: Document) -> Iterator[str]:
    for row in document["history"]:
        yield f"{row['observed_at']}  {row['previous'] or '-'} -> {row['new']}  {row['reason']}"


def _state(document: Document) -> Iterator[str]:
    held = document["held"]
    yield f"{document['butler']}: {'held by ' + held['operator'] if held else document['eligibility_state']}"


LIST: Final = Operation(
    name="list_butlers",
    description="The registry.",
    returns=ButlerList,
    hints=READS,
    roles=EVERY_ROLE,
    routes=(get("/butlers", "The registry"),),
    commands=(
        Command("registry list", "Every butler, and whether it gets routes.", _butlers, none="nobody is registered"),
    ),
)
HOLD: Final = Operation(
    name="butler.hold",
    description="Take a butler out of service: no new routes until it is released.",
    arguments=HoldArguments,
    returns=HoldResult,
    hints=ACTS,
    roles=OPERATORS,
    routes=(post("/butlers/{butler}/hold", "Take a butler out of service"),),
    commands=(
        Command(
            "registry hold",
            "Take a butler out of service: it gets no new routes, whatever signs of life it gives.",
            _state,
            (_BUTLER, REASON),
        ),
    ),
)
RELEASE: Final = Operation(
    name="butler.release",
    description="Put a butler back into service that was held.",
    arguments=HoldArguments,
    returns=HoldResult,
    hints=ACTS,
    roles=OPERATORS,
    routes=(post("/butlers/{butler}/release", "Put a butler back into service"),),
    commands=(Command("registry release", "Put a butler back into service.", _state, (_BUTLER, REASON)),),
)
HISTORY: Final = Operation(
    name="butler.history",
    description="Why a butler was or was not routable, newest first.",
    arguments=HistoryArguments,
    returns=HoldHistory,
    hints=READS,
    routes=(get("/butlers/{butler}/history", "Why a butler was or was not routable"),),
    commands=(
        Command(
            "registry history",
            "Why a butler was or was not routable, newest first.",
            _history,
            (_BUTLER, Option("limit"), CURSOR),
            none="nothing ever changed",
        ),
    ),
)

OPERATIONS: Final = (LIST, HISTORY, HOLD, RELEASE)
