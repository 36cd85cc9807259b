"""`butlers mailbox`: mails that could not be handled, and what to do with them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated
from urllib.parse import quote

import typer

from butlers.daemon.cli.asking import Document, asking
from butlers.daemon.cli.explain import when
from butlers.daemon.cli.hints import Hint
from butlers.daemon.cli.options import Cursor, Limit
from butlers.daemon.client import SystemClient

app = typer.Typer(help="Mails that could not be handled.", no_args_is_help=True)

MailName = Annotated[str, typer.Argument(metavar="MAIL", help="A mail, as `mailbox quarantined` prints it.")]


def _quarantined(document: Document) -> Iterator[str]:
    for row in document["mails"]:
        yield f"{row['mail']}  {when(row['quarantined_at'])}  {row['attempts']} attempts  {row['size_bytes']} bytes"
        yield f"    {row['reason']}"
        yield Hint(f"    try it again: butlers mailbox retry {row['mail']}")


def _retried(document: Document) -> Iterator[str]:
    if document["handled"]:
        yield f"mail {document['mail']} was handled"
    else:
        yield f"mail {document['mail']} stays quarantined"
        yield Hint("see why: butlers mailbox quarantined")


@app.command("quarantined")
@asking(_quarantined, more="butlers mailbox quarantined --cursor", none="no mail is quarantined")
def quarantined(client: SystemClient, limit: Limit = 20, cursor: Cursor = None) -> Document:
    """Mails that are quarantined after three attempts, newest first, each with the reason."""
    return client.get("/api/mailbox/quarantine", limit=limit, cursor=cursor)


@app.command("retry")
@asking(_retried, failed=lambda answer: not answer["handled"])
def retry(client: SystemClient, mail: MailName) -> Document:
    """Try a quarantined mail again; exit code 1 when it stays quarantined."""
    return client.post(f"/api/mailbox/quarantine/{quote(mail, safe='')}/retry", b"{}")
