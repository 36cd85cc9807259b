"""Deliveries and mails that were set aside: which, why, and trying them again (seed 001 section 5.1.2)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final
from uuid import UUID

from pydantic import Field

from butlers.contracts.delivery_state import ENDED_BADLY
from butlers.contracts.envelope import Channel, Identity, Timestamp, Value
from butlers.errors import ErrorClass
from butlers.operations import delivery_lines as lines
from butlers.operations import operation as op
from butlers.operations.deliveries import DeadLetterEnded, DeliveryReleased

_ID = "the dead letter, by its id"
_DEAD_LETTER = op.Option("dead_letter_id", "A dead letter's id, as `dead-letters list` prints it.")


class ListArguments(Value):
    channel: Channel | None = Field(default=None, description="only this channel")
    origin_butler: Identity | None = Field(default=None, description="only what this butler said")
    error_class: ErrorClass | None = Field(default=None, description="only this kind of failure")
    since: Timestamp | None = Field(
        default=None, description="only what is from then or later: RFC 3339 with an offset"
    )
    include_discarded: bool = Field(default=False, description="also what was given up")
    limit: int = Field(default=op.PAGE, ge=1, le=op.LONGEST_PAGE, description="at most so many, on one page")
    cursor: Identity | None = Field(default=None, description="next_cursor of the page before; absent: the first page")


class DeadLetterArguments(Value):
    dead_letter_id: UUID = Field(description=_ID)


class ReplayArguments(op.DecidedArguments):
    dead_letter_id: UUID = Field(description=_ID)


class DiscardArguments(op.DecidedArguments):
    dead_letter_id: UUID = Field(description=_ID)
    reason: Identity = Field(description="why, for the record")


class DeadLetterList(op.Page):
    dead_letters: list[op.Row] = Field(description="the dead letters: id, delivery, reason, error and replay_eligible")


class DeadLetterResult(op.Result):
    dead_letter_id: str = Field(description=_ID)
    delivery_id: str = Field(description="the delivery, by its id")
    original_envelope: op.Row = Field(description="the notify.v1 that was asked for")
    all_attempt_outcomes: list[op.Row] = Field(description="everything that was tried")
    replay_eligibility: op.Row = Field(description="whether it may be sent again, and if not, why")


def _ended_badly(sent: op.Document) -> bool:
    return lines.status_of(sent) in ENDED_BADLY


_reads = partial(op.Operation, hints=op.READS, butler=op.MESSENGER)
_decides = partial(op.Operation, owner=op.SWITCHBOARD, butler=op.MESSENGER)

LIST: Final = _reads(
    name="messenger_dead_letter_list",
    description="Deliveries that were set aside, newest first, a page at a time.",
    arguments=ListArguments,
    returns=DeadLetterList,
    routes=(op.get("/dead-letters", "Deliveries that were set aside, newest first"),),
    commands=(
        op.Command(
            "dead-letters list",
            "Dead letters, newest first.",
            lines.dead_letters,
            (
                op.ORIGIN,
                op.CHANNEL,
                op.Option("error_class", "Only this class of error."),
                op.SINCE,
                op.Option("include_discarded", "Also what was given up.", "--discarded"),
                op.LIMIT,
                op.CURSOR,
            ),
            none="no dead letters",
        ),
    ),
)
INSPECT: Final = _reads(
    name="messenger_dead_letter_inspect",
    description="One dead letter: what was asked, all that was tried, and whether it may be replayed.",
    arguments=DeadLetterArguments,
    returns=DeadLetterResult,
    routes=(op.get("/dead-letters/{dead_letter_id}", "One of them, whole"),),
    commands=(
        op.Command(
            "dead-letters show",
            "One dead letter: what was asked, all that was tried, whether it may be sent again.",
            lines.dead_letter,
            (_DEAD_LETTER,),
        ),
    ),
)
REPLAY: Final = _decides(
    name="messenger_dead_letter_replay",
    description="Send a dead letter again as a new delivery; returns its outcome, or where it stands.",
    arguments=ReplayArguments,
    returns=DeliveryReleased,
    hints=op.SENDS,
    routes=(op.post("/dead-letters/{dead_letter_id}/replay", "Send it again"),),
    commands=(
        op.Command(
            "dead-letters replay",
            "Send it again; exit code 1 when that ended badly, too.",
            lines.result,
            (_DEAD_LETTER,),
            failed=_ended_badly,
        ),
    ),
)
DISCARD: Final = _decides(
    name="messenger_dead_letter_discard",
    description="Give a dead letter up for good; it is never replayed.",
    arguments=DiscardArguments,
    returns=DeadLetterEnded,
    hints=op.ACTS,
    routes=(op.post("/dead-letters/{dead_letter_id}/discard", "Give it up for good"),),
    commands=(
        op.Command(
            "dead-letters discard",
            "Give it up for good; it can never be replayed.",
            lines.discarded,
            (_DEAD_LETTER, op.REASON),
        ),
    ),
)


class QuarantinedArguments(Value):
    limit: int = Field(default=op.PAGE, ge=1, le=op.LONGEST_PAGE, description="mails of one page")
    cursor: str | None = Field(default=None, max_length=80, description="next_cursor of the page before")


class RetryArguments(op.DecidedArguments):
    mail: str = Field(max_length=40, description="UIDVALIDITY-UID, as email_list_quarantined prints it")


class QuarantinedList(op.Result):
    mails: list[op.Row] = Field(description="the mails, each with the reason")
    next_cursor: str | None = Field(description="hand it back for the next page; null: this is the last one")


class MailRetried(op.Result):
    mail: str = Field(description="the mail, as email_list_quarantined prints it")
    retried_by: str = Field(description="who decided it")
    handled: bool = Field(description="whether it came to an end")


def _quarantined_lines(document: op.Document) -> Iterator[str]:
    for row in document["mails"]:
        yield f"{row['mail']}  {op.when(row['quarantined_at'])}  {row['attempts']} attempts  {row['size_bytes']} bytes"
        yield f"    {row['reason']}"
        yield op.Hint(f"    try it again: butlers mailbox retry {row['mail']}")


def _retried_lines(document: op.Document) -> Iterator[str]:
    if document["handled"]:
        yield f"mail {document['mail']} was handled"
    else:
        yield f"mail {document['mail']} stays quarantined"
        yield op.Hint("see why: butlers mailbox quarantined")


QUARANTINED: Final = _reads(
    name="email_list_quarantined",
    description="Mails that no attempt could bring to an end, newest first, each with the reason.",
    arguments=QuarantinedArguments,
    returns=QuarantinedList,
    routes=(op.get("/mailbox/quarantine", "Mails that could not be handled, newest first"),),
    commands=(
        op.Command(
            "mailbox quarantined",
            "Mails that are quarantined after three attempts, newest first, each with the reason.",
            _quarantined_lines,
            (op.LIMIT, op.CURSOR),
            none="no mail is quarantined",
        ),
    ),
)
RETRY: Final = _decides(
    name="email_retry_quarantined",
    description="Try a quarantined mail again; it stays quarantined unless that ends well.",
    arguments=RetryArguments,
    returns=MailRetried,
    hints=op.ACTS,
    routes=(op.post("/mailbox/quarantine/{mail}/retry", "Try one of them again"),),
    commands=(
        op.Command(
            "mailbox retry",
            "Try a quarantined mail again; exit code 1 when it stays quarantined.",
            _retried_lines,
            (op.Option("mail", "A mail, as `mailbox quarantined` prints it.", metavar="MAIL"),),
            failed=lambda answer: not answer["handled"],
        ),
    ),
)

OPERATIONS: Final = (LIST, INSPECT, REPLAY, DISCARD, QUARANTINED, RETRY)
