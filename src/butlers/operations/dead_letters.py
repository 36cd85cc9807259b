"""Deliveries that were set aside: which, why, and sending them again (seed 001 section 5.1.2)."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from pydantic import Field

from butlers.contracts.delivery_state import ENDED_BADLY
from butlers.contracts.envelope import Channel, Identity, Timestamp, Value
from butlers.errors import ErrorClass
from butlers.operations import delivery_lines as lines
from butlers.operations.deliveries import DeadLetterEnded, DeliveryReleased
from butlers.operations.operation import (
    ACTS,
    CHANNEL,
    CURSOR,
    LIMIT,
    LONGEST_PAGE,
    MESSENGER,
    ORIGIN,
    PAGE,
    READS,
    REASON,
    SENDS,
    SINCE,
    SWITCHBOARD,
    Command,
    DecidedArguments,
    Document,
    Operation,
    Option,
    Page,
    Result,
    Row,
    get,
    post,
)

_ID = "the dead letter, by its id"
_DEAD_LETTER = Option("dead_letter_id", "A dead letter's id, as `dead-letters list` prints it.")


class ListArguments(Value):
    channel: Channel | None = Field(default=None, description="only this channel")
    origin_butler: Identity | None = Field(default=None, description="only what this butler said")
    error_class: ErrorClass | None = Field(default=None, description="only this kind of failure")
    since: Timestamp | None = Field(
        default=None, description="only what is from then or later: RFC 3339 with an offset"
    )
    include_discarded: bool = Field(default=False, description="also what was given up")
    limit: int = Field(default=PAGE, ge=1, le=LONGEST_PAGE, description="at most so many, on one page")
    cursor: Identity | None = Field(default=None, description="next_cursor of the page before; absent: the first page")


class DeadLetterArguments(Value):
    dead_letter_id: UUID = Field(description=_ID)


class ReplayArguments(DecidedArguments):
    dead_letter_id: UUID = Field(description=_ID)


class DiscardArguments(DecidedArguments):
    dead_letter_id: UUID = Field(description=_ID)
    reason: Identity = Field(description="why, for the record")


class DeadLetterList(Page):
    dead_letters: list[Row] = Field(description="the dead letters: id, delivery, reason, error and replay_eligible")


class DeadLetterResult(Result):
    dead_letter_id: str = Field(description=_ID)
    delivery_id: str = Field(description="the delivery, by its id")
    original_envelope: Row = Field(description="the notify.v1 that was asked for")
    all_attempt_outcomes: list[Row] = Field(description="everything that was tried")
    replay_eligibility: Row = Field(description="whether it may be sent again, and if not, why")


def _ended_badly(sent: Document) -> bool:
    return lines.status_of(sent) in ENDED_BADLY


LIST: Final = Operation(
    name="messenger_dead_letter_list",
    description="Deliveries that were set aside, newest first, a page at a time.",
    arguments=ListArguments,
    returns=DeadLetterList,
    hints=READS,
    butler=MESSENGER,
    routes=(get("/dead-letters", "Deliveries that were set aside, newest first"),),
    commands=(
        Command(
            "dead-letters list",
            "Dead letters, newest first.",
            lines.dead_letters,
            (
                ORIGIN,
                CHANNEL,
                Option("error_class", "Only this class of error."),
                SINCE,
                Option("include_discarded", "Also what was given up.", "--discarded"),
                LIMIT,
                CURSOR,
            ),
            none="no dead letters",
        ),
    ),
)
INSPECT: Final = Operation(
    name="messenger_dead_letter_inspect",
    description="One dead letter: what was asked, all that was tried, and whether it may be replayed.",
    arguments=DeadLetterArguments,
    returns=DeadLetterResult,
    hints=READS,
    butler=MESSENGER,
    routes=(get("/dead-letters/{dead_letter_id}", "One of them, whole"),),
    commands=(
        Command(
            "dead-letters show",
            "One dead letter: what was asked, all that was tried, whether it may be sent again.",
            lines.dead_letter,
            (_DEAD_LETTER,),
        ),
    ),
)
REPLAY: Final = Operation(
    name="messenger_dead_letter_replay",
    description="Send a dead letter again as a new delivery; returns its outcome, or where it stands.",
    arguments=ReplayArguments,
    returns=DeliveryReleased,
    hints=SENDS,
    owner=SWITCHBOARD,
    butler=MESSENGER,
    routes=(post("/dead-letters/{dead_letter_id}/replay", "Send it again"),),
    commands=(
        Command(
            "dead-letters replay",
            "Send it again; exit code 1 when that ended badly, too.",
            lines.result,
            (_DEAD_LETTER,),
            failed=_ended_badly,
        ),
    ),
)
DISCARD: Final = Operation(
    name="messenger_dead_letter_discard",
    description="Give a dead letter up for good; it is never replayed.",
    arguments=DiscardArguments,
    returns=DeadLetterEnded,
    hints=ACTS,
    owner=SWITCHBOARD,
    butler=MESSENGER,
    routes=(post("/dead-letters/{dead_letter_id}/discard", "Give it up for good"),),
    commands=(
        Command(
            "dead-letters discard",
            "Give it up for good; it can never be replayed.",
            lines.discarded,
            (_DEAD_LETTER, REASON),
        ),
    ),
)

OPERATIONS: Final = (LIST, INSPECT, REPLAY, DISCARD)
