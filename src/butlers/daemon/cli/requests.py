"""`butlers requests`: what came in, what became of it, and what a person can do about it."""

from __future__ import annotations

from typing import Annotated

import typer

from butlers.daemon.cli import ask, why
from butlers.daemon.cli.asking import Document, an_id, asking
from butlers.daemon.cli.declared import add_commands
from butlers.daemon.cli.options import lists_by_itself
from butlers.daemon.client import SystemClient
from butlers.operations import requests

app = typer.Typer(help="Recent requests, newest first, and what can be done about them.")

RequestId = Annotated[str, typer.Argument(help="A request's id, as `requests list` prints it.")]

app.command("list")(ask.requests)
lists_by_itself(app, ask.requests)


@app.command("show")
@asking(why.print_trace)
def show(client: SystemClient, request_id: RequestId) -> Document:
    """One request, every hop."""
    return client.get(f"/api/requests/{an_id(request_id)}")


add_commands(app, "requests", *requests.OPERATIONS)
