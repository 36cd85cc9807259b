"""`butlers senders`: who may write in, who was refused, and how a stranger is let in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer

from butlers.channels.registry import listed, written_names
from butlers.daemon.cli.asking import Document, asking, body
from butlers.daemon.cli.explain import when
from butlers.daemon.cli.hints import Hint
from butlers.daemon.cli.listing import lists_by_itself
from butlers.daemon.cli.options import Cursor, Limit
from butlers.daemon.client import SystemClient

app = typer.Typer(help="Who may write in, who was refused, and how a stranger is let in.")


def _written(name: str) -> str:
    if name not in written_names():
        raise typer.BadParameter(f"{name!r} is not one of {', '.join(map(repr, written_names()))}.")
    return name


_EITHER = f"[{'|'.join(written_names())}]"
OnChannel = Annotated[str, typer.Argument(metavar="CHANNEL", parser=_written, help=f"{listed(written_names())}.")]
Who = Annotated[str, typer.Argument(metavar="IDENTITY", help="A Telegram user's number, or a mail address.")]


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


@app.command("refused")
@asking(_refused, more="butlers senders refused --cursor", none="nobody was refused")
def refused(
    client: SystemClient,
    channel: Annotated[str | None, typer.Option(parser=_written, metavar=_EITHER, help="Only on this channel.")] = None,
    limit: Limit = 20,
    cursor: Cursor = None,
) -> Document:
    """Senders that wrote in and were not served, and why; what they wrote is not kept."""
    return client.get("/api/senders/refused", channel=channel, limit=limit, cursor=cursor)


lists_by_itself(app, refused)


@app.command("pairings")
@asking(_pairings, more="butlers senders pairings --cursor", none="no stranger was given a code")
def pairings(client: SystemClient, limit: Limit = 20, cursor: Cursor = None) -> Document:
    """Strangers that were given a pairing code, newest first."""
    return client.get("/api/senders/pairings", limit=limit, cursor=cursor)


@app.command("approve")
@asking(_let_in)
def approve(
    client: SystemClient, code: Annotated[str, typer.Argument(help="The stranger's code, like K7QF-2M9X.")]
) -> Document:
    """Let the stranger with this code in."""
    return client.post("/api/senders/approve", body({"code": code}))


@app.command("allow")
@asking(_let_in)
def allow(
    client: SystemClient,
    channel: OnChannel,
    identity: Who,
    name: Annotated[str | None, typer.Option(help="The person's name.")] = None,
    owner: Annotated[bool, typer.Option("--owner", help="It is the owner's own.")] = False,
) -> Document:
    """Let a person in without a code, or add an identity of the owner's."""
    given = {"channel": channel, "identity": identity, "name": name, "owner": owner}
    return client.post("/api/senders/allow", body(given))


@app.command("remove")
@asking(_gone)
def remove(client: SystemClient, channel: OnChannel, identity: Who) -> Document:
    """Serve a person no longer."""
    return client.post("/api/senders/remove", body({"channel": channel, "identity": identity}))


@app.command("owner-code")
@asking(_owner_code)
def owner_code(client: SystemClient) -> Document:
    """The code that makes the Telegram chat that sends it the owner's."""
    return client.get("/api/senders/owner-code")
