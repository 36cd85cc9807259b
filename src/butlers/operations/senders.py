"""Senders at the doors: who was refused, who has a code, and an operator's decision about both. Codes are shown to a
person with an operator's token only: whoever knows the owner's can become the owner.
"""

from __future__ import annotations

from typing import Annotated, Final
from uuid import UUID

from pydantic import Field

from butlers.channels.registry import pairing_names, written_names
from butlers.contracts.channels import OneOf
from butlers.contracts.envelope import Identity, Value
from butlers.operations.operation import (
    ACTS,
    CHANGES,
    LONGEST_PAGE,
    OPERATORS,
    PAGE,
    READS,
    Operation,
    Page,
    Result,
    Row,
    get,
    post,
)

WrittenChannel = Annotated[str, OneOf(written_names)]
PairingChannel = Annotated[str, OneOf(pairing_names)]


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


REFUSED: Final = Operation(
    name="senders.refused",
    description="Senders that wrote in and were not served, and why; what they wrote is not kept.",
    arguments=RefusedArguments,
    returns=RefusedSenders,
    hints=READS,
    routes=(get("/senders/refused", "Senders that were not served, and why"),),
)
PAIRINGS: Final = Operation(
    name="senders.pairings",
    description="Strangers that were given a pairing code, newest first.",
    arguments=PairingsArguments,
    returns=Pairings,
    hints=READS,
    roles=OPERATORS,
    routes=(get("/senders/pairings", "Strangers that were given a pairing code", decides=True),),
)
APPROVE: Final = Operation(
    name="senders.approve",
    description="Let the stranger with this pairing code in: it becomes a contact and is served.",
    arguments=ApproveArguments,
    returns=SenderAllowed,
    hints=ACTS,
    roles=OPERATORS,
    routes=(post("/senders/approve", "Let the stranger with a pairing code in"),),
)
ALLOW: Final = Operation(
    name="senders.allow",
    description="Let a person in without a code, or add an identity of the owner's.",
    arguments=AllowArguments,
    returns=SenderAllowed,
    hints=CHANGES,
    roles=OPERATORS,
    routes=(post("/senders/allow", "Let a person in without a code"),),
)
REMOVE: Final = Operation(
    name="senders.remove",
    description="Serve this person no longer; the owner's identities stay.",
    arguments=SenderArguments,
    returns=SenderRemoved,
    hints=CHANGES,
    roles=OPERATORS,
    routes=(post("/senders/remove", "Serve a person no longer"),),
)
OWNER_CODE: Final = Operation(
    name="senders.owner_code",
    description="The code that makes the chat that sends it the owner's, while the owner has none there.",
    arguments=OwnerCodeArguments,
    returns=OwnerCode,
    hints=READS,
    roles=OPERATORS,
    routes=(get("/senders/owner-code", "The code that makes a chat the owner's", query=(), decides=True),),
)

OPERATIONS: Final = (REFUSED, PAIRINGS, APPROVE, ALLOW, REMOVE, OWNER_CODE)
