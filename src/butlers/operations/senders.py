"""Senders at the doors: who was refused, who has a code, and an operator's decision about both. Codes are shown to a
person with an operator's token only: whoever knows the owner's can become the owner.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final
from uuid import UUID

from pydantic import Field

from butlers.channels.registry import listed, pairing_names, written_names
from butlers.contracts.envelope import Identity, OneOf, Value
from butlers.operations.operation import (
    ACTS,
    CHANGES,
    CURSOR,
    LIMIT,
    LONGEST_PAGE,
    OPERATORS,
    PAGE,
    READS,
    Command,
    Document,
    Hint,
    Operation,
    Option,
    Page,
    Result,
    Row,
    get,
    post,
    when,
)

WrittenChannel = Annotated[str, OneOf(written_names)]
PairingChannel = Annotated[str, OneOf(pairing_names)]
_SENDER = (
    Option("channel", f"{listed(written_names())}.", positional=True, metavar="CHANNEL", choices=written_names),
    Option("identity", "A Telegram user's number, or a mail address.", positional=True, metavar="IDENTITY"),
)


class PairingsArguments(Value):
    cursor: UUID | None = Field(default=None, description="next_cursor of the page before; absent: the first page")
    limit: int = Field(default=PAGE, ge=1, le=LONGEST_PAGE, description="at most so many, on one page")


class RefusedArguments(PairingsArguments):
    channel: WrittenChannel | None = Field(default=None, description="only senders on this channel")


class ApproveArguments(Value):
    code: Identity = Field(description="the code that the stranger was given, like K7QF-2M9X")


class SenderArguments(Value):
    channel: WrittenChannel = Field(description="the channel that the person writes by")
    identity: Identity = Field(description="who it is there: a Telegram user's number, or a mail address")


class AllowArguments(SenderArguments):
    name: Identity | None = Field(default=None, description="the person's name; absent: the identity")
    owner: bool = Field(default=False, description="true: it is the owner's own identity")


class OwnerCodeArguments(Value):
    channel: PairingChannel = Field(default=pairing_names()[0], description="the channel that the owner writes by")


class RefusedSenders(Page):
    senders: list[Row] = Field(description="the senders: channel, identity, why, how often and when last")


class Pairings(Page):
    pairings: list[Row] = Field(description="the strangers: channel, identity, code and until when it counts")


class SenderAllowed(Result):
    channel: str = Field(description="the channel that the person writes by")
    identity: str = Field(description="who it is there")
    contact_id: str = Field(description="the contact that the person is now")


class SenderRemoved(Result):
    channel: str = Field(description="the channel that the person wrote by")
    identity: str = Field(description="who it is there")
    removed: bool = Field(description="true")


class OwnerCode(Result):
    channel: str = Field(description="the channel that the owner writes by")
    code: str | None = Field(description="the code to send; null: the owner is known there, or pairing is off")
    expires_at: str | None = Field(description="until when the code counts")


def _refused(document: Document) -> Iterator[str]:
    for row in document["senders"]:
        name = f" ({row['display_name']})" if row["display_name"] not in (None, row["sender"]) else ""
        number = f"{row['messages']} message{'' if row['messages'] == 1 else 's'}"
        yield (
            f"{row['channel']}:{row['sender']}{name}  {row['reason']}  {number}"
            f"  first {when(row['first_at'])}  last {when(row['last_at'])}"
        )
    if document["senders"]:
        yield Hint("let one in with: butlers senders allow CHANNEL IDENTITY")


def _pairings(document: Document) -> Iterator[str]:
    for row in document["pairings"]:
        who = f"{row['channel']}:{row['sender']} ({row['display_name']})"
        yield f"{row['code']}  {row['state']:<8}  {who}  asked {when(row['created_at'])}"


def _let_in(document: Document) -> Iterator[str]:
    yield f"{document['name']} ({document['channel']} {document['identity']}) may write in from now on"


def _gone(document: Document) -> Iterator[str]:
    yield f"{document['channel']} {document['identity']} is served no longer"


def _owner_code(document: Document) -> Iterator[str]:
    if document["code"] is None:
        yield f"no code is needed: the owner is known on {document['channel']}, or everybody may write in there"
        return
    yield document["code"]
    yield Hint(f"send it to the bot: the chat that sends it becomes the owner's; good until {document['expires_at']}")


REFUSED: Final = Operation(
    name="senders.refused",
    description="Senders that wrote in and were not served, and why; what they wrote is not kept.",
    arguments=RefusedArguments,
    returns=RefusedSenders,
    hints=READS,
    routes=(get("/senders/refused", "Senders that were not served, and why"),),
    commands=(
        Command(
            "senders refused",
            "Senders that wrote in and were not served, and why; what they wrote is not kept.",
            _refused,
            (Option("channel", "Only on this channel.", choices=written_names), LIMIT, CURSOR),
            none="nobody was refused",
            alone=True,
        ),
    ),
)
PAIRINGS: Final = Operation(
    name="senders.pairings",
    description="Strangers that were given a pairing code, newest first.",
    arguments=PairingsArguments,
    returns=Pairings,
    hints=READS,
    roles=OPERATORS,
    routes=(get("/senders/pairings", "Strangers that were given a pairing code", decides=True),),
    commands=(
        Command(
            "senders pairings",
            "Strangers that were given a pairing code, newest first.",
            _pairings,
            (LIMIT, CURSOR),
            none="no stranger was given a code",
        ),
    ),
)
APPROVE: Final = Operation(
    name="senders.approve",
    description="Let the stranger with this pairing code in: it becomes a contact and is served.",
    arguments=ApproveArguments,
    returns=SenderAllowed,
    hints=ACTS,
    roles=OPERATORS,
    routes=(post("/senders/approve", "Let the stranger with a pairing code in"),),
    commands=(
        Command(
            "senders approve",
            "Let the stranger with this code in.",
            _let_in,
            (Option("code", "The stranger's code, like K7QF-2M9X.", positional=True),),
        ),
    ),
)
ALLOW: Final = Operation(
    name="senders.allow",
    description="Let a person in without a code, or add an identity of the owner's.",
    arguments=AllowArguments,
    returns=SenderAllowed,
    hints=CHANGES,
    roles=OPERATORS,
    routes=(post("/senders/allow", "Let a person in without a code"),),
    commands=(
        Command(
            "senders allow",
            "Let a person in without a code, or add an identity of the owner's.",
            _let_in,
            (*_SENDER, Option("name", "The person's name."), Option("owner", "It is the owner's own.", "--owner")),
        ),
    ),
)
REMOVE: Final = Operation(
    name="senders.remove",
    description="Serve this person no longer; the owner's identities stay.",
    arguments=SenderArguments,
    returns=SenderRemoved,
    hints=CHANGES,
    roles=OPERATORS,
    routes=(post("/senders/remove", "Serve a person no longer"),),
    commands=(Command("senders remove", "Serve a person no longer.", _gone, (*_SENDER,)),),
)
OWNER_CODE: Final = Operation(
    name="senders.owner_code",
    description="The code that makes the chat that sends it the owner's, while the owner has none there.",
    arguments=OwnerCodeArguments,
    returns=OwnerCode,
    hints=READS,
    roles=OPERATORS,
    routes=(get("/senders/owner-code", "The code that makes a chat the owner's", query=(), decides=True),),
    commands=(
        Command("senders owner-code", "The code that makes the Telegram chat that sends it the owner's.", _owner_code),
    ),
)

OPERATIONS: Final = (REFUSED, PAIRINGS, APPROVE, ALLOW, REMOVE, OWNER_CODE)
