"""People: who may write in, who was refused and has a code, and who is not written to. An operator decides about both.

Codes are shown to a person with an operator's token only: whoever knows the owner's can become the owner.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Annotated, Final
from uuid import UUID

from pydantic import Field

from butlers.channels.registry import listed, outbound_names, pairing_names, written_names
from butlers.contracts.envelope import MAX_IDENTITY, Channel, Identity, OneOf, Value
from butlers.operations import delivery_lines as lines
from butlers.operations import operation as op

WrittenChannel = Annotated[str, OneOf(written_names)]
PairingChannel = Annotated[str, OneOf(pairing_names)]
_SENDER = (
    op.Option("channel", f"{listed(written_names())}.", positional=True, metavar="CHANNEL", choices=written_names),
    op.Option("identity", "A Telegram user's number, or a mail address.", positional=True, metavar="IDENTITY"),
)


class PairingsArguments(Value):
    cursor: UUID | None = Field(default=None, description="next_cursor of the page before; absent: the first page")
    limit: int = Field(default=op.PAGE, ge=1, le=op.LONGEST_PAGE, description="at most so many, on one page")


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
    person: Identity | None = Field(
        default=None, description="a contact whose identity it is, too: its id, channel:address or whole name"
    )


class OwnerCodeArguments(Value):
    channel: PairingChannel = Field(default=pairing_names()[0], description="the channel that the owner writes by")


class RefusedSenders(op.Page):
    senders: list[op.Row] = Field(description="the senders: channel, identity, why, how often and when last")


class Pairings(op.Page):
    pairings: list[op.Row] = Field(description="the strangers: channel, identity, code and until when it counts")


class SenderAllowed(op.Result):
    channel: str = Field(description="the channel that the person writes by")
    identity: str = Field(description="who it is there")
    contact_id: str = Field(description="the contact that the person is now")


class SenderRemoved(op.Result):
    channel: str = Field(description="the channel that the person wrote by")
    identity: str = Field(description="who it is there")
    removed: bool = Field(description="true")


class OwnerCode(op.Result):
    channel: str = Field(description="the channel that the owner writes by")
    code: str | None = Field(description="the code to send; null: the owner is known there, or pairing is off")
    expires_at: str | None = Field(description="until when the code counts")


def _refused(document: op.Document) -> Iterator[str]:
    for row in document["senders"]:
        name = f" ({row['display_name']})" if row["display_name"] not in (None, row["sender"]) else ""
        number = f"{row['messages']} message{'' if row['messages'] == 1 else 's'}"
        yield (
            f"{row['channel']}:{row['sender']}{name}  {row['reason']}  {number}"
            f"  first {op.when(row['first_at'])}  last {op.when(row['last_at'])}"
        )
    if document["senders"]:
        yield op.Hint("let one in with: butlers senders allow CHANNEL IDENTITY")


def _pairings(document: op.Document) -> Iterator[str]:
    for row in document["pairings"]:
        who = f"{row['channel']}:{row['sender']} ({row['display_name']})"
        yield f"{row['code']}  {row['state']:<8}  {who}  asked {op.when(row['created_at'])}"


def _let_in(document: op.Document) -> Iterator[str]:
    yield f"{document['name']} ({document['channel']} {document['identity']}) may write in from now on"


def _gone(document: op.Document) -> Iterator[str]:
    yield f"{document['channel']} {document['identity']} is served no longer"


def _owner_code(document: op.Document) -> Iterator[str]:
    if document["code"] is None:
        yield f"no code is needed: the owner is known on {document['channel']}, or everybody may write in there"
        return
    yield document["code"]
    yield op.Hint(
        f"send it to the bot: the chat that sends it becomes the owner's; good until {document['expires_at']}"
    )


_acts = partial(op.Operation, hints=op.ACTS, roles=op.OPERATORS)

REFUSED: Final = op.Operation(
    name="senders.refused",
    description="Senders that wrote in and were not served, and why; what they wrote is not kept.",
    arguments=RefusedArguments,
    returns=RefusedSenders,
    hints=op.READS,
    routes=(op.get("/senders/refused", "Senders that were not served, and why"),),
    commands=(
        op.Command(
            "senders refused",
            "Senders that wrote in and were not served, and why; what they wrote is not kept.",
            _refused,
            (op.Option("channel", "Only on this channel.", choices=written_names), op.LIMIT, op.CURSOR),
            none="nobody was refused",
            alone=True,
        ),
    ),
)
PAIRINGS: Final = op.Operation(
    name="senders.pairings",
    description="Strangers that were given a pairing code, newest first.",
    arguments=PairingsArguments,
    returns=Pairings,
    hints=op.READS,
    roles=op.OPERATORS,
    routes=(op.get("/senders/pairings", "Strangers that were given a pairing code", decides=True),),
    commands=(
        op.Command(
            "senders pairings",
            "Strangers that were given a pairing code, newest first.",
            _pairings,
            (op.LIMIT, op.CURSOR),
            none="no stranger was given a code",
        ),
    ),
)
APPROVE: Final = _acts(
    name="senders.approve",
    description="Let the stranger with this pairing code in: it becomes a contact and is served.",
    arguments=ApproveArguments,
    returns=SenderAllowed,
    routes=(op.post("/senders/approve", "Let the stranger with a pairing code in"),),
    commands=(
        op.Command(
            "senders approve",
            "Let the stranger with this code in.",
            _let_in,
            (op.Option("code", "The stranger's code, like K7QF-2M9X.", positional=True),),
        ),
    ),
)
ALLOW: Final = op.Operation(
    name="senders.allow",
    description="Let a person in without a code, or add an identity of the owner's.",
    arguments=AllowArguments,
    returns=SenderAllowed,
    hints=op.CHANGES,
    roles=op.OPERATORS,
    routes=(op.post("/senders/allow", "Let a person in without a code"),),
    commands=(
        op.Command(
            "senders allow",
            "Let a person in without a code, or add an identity of the owner's.",
            _let_in,
            (
                *_SENDER,
                op.Option("name", "The person's name."),
                op.Option("owner", "It is the owner's own.", "--owner"),
                op.Option("person", "A contact whose identity it is, too: id, channel:address or name.", "--of"),
            ),
        ),
    ),
)
REMOVE: Final = op.Operation(
    name="senders.remove",
    description="Serve this person no longer; the owner's identities stay.",
    arguments=SenderArguments,
    returns=SenderRemoved,
    hints=op.CHANGES,
    roles=op.OPERATORS,
    routes=(op.post("/senders/remove", "Serve a person no longer"),),
    commands=(op.Command("senders remove", "Serve a person no longer.", _gone, (*_SENDER,)),),
)
OWNER_CODE: Final = op.Operation(
    name="senders.owner_code",
    description="The code that makes the chat that sends it the owner's, while the owner has none there.",
    arguments=OwnerCodeArguments,
    returns=OwnerCode,
    hints=op.READS,
    roles=op.OPERATORS,
    routes=(op.get("/senders/owner-code", "The code that makes a chat the owner's", query=(), decides=True),),
    commands=(
        op.Command(
            "senders owner-code", "The code that makes the Telegram chat that sends it the owner's.", _owner_code
        ),
    ),
)

_NAMED = (
    op.Option("channel", f"{listed(outbound_names())}.", positional=True, metavar="CHANNEL"),
    op.Option("target", "The recipient's address on that channel.", positional=True),
)
_UNSUPPRESS = op.Command(
    words="deliveries unsuppress",
    help="Write to a recipient again.",
    prints=lines.released,
    options=_NAMED,
    route=1,
    takes_dashes=True,
)


class RecipientListArguments(Value):
    channel: Channel | None = Field(default=None, description="only this channel")
    limit: int = Field(default=op.PAGE, ge=1, le=op.LONGEST_PAGE, description="at most so many, on one page")
    cursor: str | None = Field(
        default=None, max_length=2 * MAX_IDENTITY, description="next_cursor of the page before; absent: the first page"
    )


class SuppressArguments(op.DecidedArguments):
    channel: Channel = Field(description="the channel of the address")
    target: Identity = Field(description="the address")
    reason: Identity = Field(description="why, for the record")


class ReleaseArguments(op.DecidedArguments):
    channel: Channel = Field(description="the channel of the address")
    target: Identity = Field(description="the address")


class RecipientList(op.Page):
    recipients: list[op.Row] = Field(description="channel, address, rule, reason and since when")


class RecipientResult(op.Result):
    recipient: op.Row = Field(description="the rule that holds now")


class RecipientReleased(op.Result):
    released: op.Row = Field(description="the rule that held until now")
    released_by: str = Field(description="who decided it")


LIST: Final = op.Operation(
    name="messenger_recipient_list",
    description="Recipients that are suppressed or have moved, by channel and address.",
    arguments=RecipientListArguments,
    returns=RecipientList,
    hints=op.READS,
    butler=op.MESSENGER,
    routes=(op.get("/recipients", "Who is not written to, or has moved"),),
    commands=(
        op.Command(
            "deliveries recipients",
            "Who is not written to, or has moved.",
            lines.recipients,
            (op.CHANNEL, op.Option("limit"), op.CURSOR),
            none="nobody is held back",
        ),
    ),
)
SUPPRESS: Final = op.Operation(
    name="messenger_recipient_suppress",
    description="From now on send nothing to this recipient.",
    arguments=SuppressArguments,
    returns=RecipientResult,
    hints=op.CHANGES,
    owner=op.SWITCHBOARD,
    butler=op.MESSENGER,
    routes=(op.post("/recipients", "Write to somebody no more"),),
    commands=(
        op.Command(
            "deliveries suppress",
            "Write to a recipient no more.",
            lines.suppressed,
            (*_NAMED, op.REASON),
            takes_dashes=True,
        ),
    ),
)
RELEASE: Final = op.Operation(
    name="messenger_recipient_release",
    description="This recipient may be written to again.",
    arguments=ReleaseArguments,
    returns=RecipientReleased,
    hints=op.ACTS,
    owner=op.SWITCHBOARD,
    butler=op.MESSENGER,
    routes=(
        op.Route(method="DELETE", path="/recipients", summary="Write to somebody again"),
        op.post("/recipients/release", "The same, for clients that only post"),
    ),
    commands=(_UNSUPPRESS, replace(_UNSUPPRESS, words="deliveries release", hidden=True)),  # its older name
)

OPERATIONS: Final = (REFUSED, PAIRINGS, APPROVE, ALLOW, REMOVE, OWNER_CODE, LIST, SUPPRESS, RELEASE)
