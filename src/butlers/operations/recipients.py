"""Recipients that are not written to, and how to change that."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from pydantic import Field

from butlers.channels.registry import listed, outbound_names
from butlers.contracts.envelope import MAX_IDENTITY, Channel, Identity, Value
from butlers.operations import delivery_lines as lines
from butlers.operations.operation import (
    ACTS,
    CHANGES,
    CHANNEL,
    CURSOR,
    LONGEST_PAGE,
    MESSENGER,
    PAGE,
    READS,
    REASON,
    SWITCHBOARD,
    Command,
    DecidedArguments,
    Operation,
    Option,
    Page,
    Result,
    Route,
    Row,
    get,
    post,
)

_NAMED = (
    Option("channel", f"{listed(outbound_names())}.", positional=True, metavar="CHANNEL"),
    Option("target", "The recipient's address on that channel.", positional=True),
)
_UNSUPPRESS = Command(
    words="deliveries unsuppress",
    help="Write to a recipient again.",
    prints=lines.released,
    options=_NAMED,
    route=1,
    takes_dashes=True,
)


class RecipientListArguments(Value):
    channel: Channel | None = Field(default=None, description="only this channel")
    limit: int = Field(default=PAGE, ge=1, le=LONGEST_PAGE, description="at most so many, on one page")
    cursor: str | None = Field(
        default=None, max_length=2 * MAX_IDENTITY, description="next_cursor of the page before; absent: the first page"
    )


class SuppressArguments(DecidedArguments):
    channel: Channel = Field(description="the channel of the address")
    target: Identity = Field(description="the address")
    reason: Identity = Field(description="why, for the record")


class ReleaseArguments(DecidedArguments):
    channel: Channel = Field(description="the channel of the address")
    target: Identity = Field(description="the address")


class RecipientList(Page):
    recipients: list[Row] = Field(description="channel, address, rule, reason and since when")


class RecipientResult(Result):
    recipient: Row = Field(description="the rule that holds now")


class RecipientReleased(Result):
    released: Row = Field(description="the rule that held until now")
    released_by: str = Field(description="who decided it")


LIST: Final = Operation(
    name="messenger_recipient_list",
    description="Recipients that are suppressed or have moved, by channel and address.",
    arguments=RecipientListArguments,
    returns=RecipientList,
    hints=READS,
    butler=MESSENGER,
    routes=(get("/recipients", "Who is not written to, or has moved"),),
    commands=(
        Command(
            "deliveries recipients",
            "Who is not written to, or has moved.",
            lines.recipients,
            (CHANNEL, Option("limit"), CURSOR),
            none="nobody is held back",
        ),
    ),
)
SUPPRESS: Final = Operation(
    name="messenger_recipient_suppress",
    description="From now on send nothing to this recipient.",
    arguments=SuppressArguments,
    returns=RecipientResult,
    hints=CHANGES,
    owner=SWITCHBOARD,
    butler=MESSENGER,
    routes=(post("/recipients", "Write to somebody no more"),),
    commands=(
        Command(
            "deliveries suppress",
            "Write to a recipient no more.",
            lines.suppressed,
            (*_NAMED, REASON),
            takes_dashes=True,
        ),
    ),
)
RELEASE: Final = Operation(
    name="messenger_recipient_release",
    description="This recipient may be written to again.",
    arguments=ReleaseArguments,
    returns=RecipientReleased,
    hints=ACTS,
    owner=SWITCHBOARD,
    butler=MESSENGER,
    routes=(
        Route(method="DELETE", path="/recipients", summary="Write to somebody again"),
        post("/recipients/release", "The same, for clients that only post"),
    ),
    commands=(_UNSUPPRESS, replace(_UNSUPPRESS, words="deliveries release", hidden=True)),  # its older name
)

OPERATIONS: Final = (LIST, SUPPRESS, RELEASE)
