"""`butlers backfill`: messages of the past that connectors fetch when asked to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer

from butlers.daemon.cli.asking import Document, an_id, asking, body
from butlers.daemon.cli.declared import add_commands
from butlers.daemon.client import SystemClient
from butlers.operations import backfill
from butlers.operations.operation import Hint

app = typer.Typer(help="Messages of the past that connectors fetch when asked to.", no_args_is_help=True)

JobId = Annotated[str, typer.Argument(help="A job's id, as `backfill list` prints it.")]
Type = Annotated[str, typer.Argument(metavar="TYPE", help="A connector's type, as `butlers connectors` prints it.")]
Endpoint = Annotated[str, typer.Argument(metavar="ENDPOINT", help="Which end of the source, as printed there.")]


def _stands(document: Document) -> Iterator[str]:
    yield f"{document['job_id']}: {document['status']}"


def _created(document: Document) -> Iterator[str]:
    yield from _stands(document)
    yield Hint("follow it with: butlers backfill list")


add_commands(app, "backfill", backfill.LIST)


@app.command()
@asking(_created)
def create(
    client: SystemClient,
    connector_type: Type,
    endpoint: Endpoint,
    category: Annotated[list[str], typer.Option("--category", help="What to fetch; may be given again.")],
    date_from: Annotated[str, typer.Option("--from", help="First day, like 2026-01-31.")],
    date_to: Annotated[str, typer.Option("--to", help="Last day, included.")],
    rate_limit: Annotated[int | None, typer.Option(help="Messages an hour; default 100.")] = None,
    daily_cost_cap: Annotated[int | None, typer.Option(help="Cents a day (UTC); default 500.")] = None,
) -> Document:
    """Ask a connector that is online to fetch messages of the past."""
    wanted = {
        "connector_type": connector_type,
        "endpoint_identity": endpoint,
        "target_categories": category,
        "date_from": date_from,
        "date_to": date_to,
        "rate_limit_per_hour": rate_limit,
        "daily_cost_cap_cents": daily_cost_cap,
    }
    return client.post("/api/backfill", body(wanted))


@app.command()
@asking(_stands)
def pause(client: SystemClient, job_id: JobId) -> Document:
    """Let a job rest until it is resumed."""
    return client.post(f"/api/backfill/{an_id(job_id)}/pause", b"{}")


@app.command()
@asking(_stands)
def cancel(client: SystemClient, job_id: JobId) -> Document:
    """End a job for good."""
    return client.post(f"/api/backfill/{an_id(job_id)}/cancel", b"{}")


@app.command()
@asking(_stands)
def resume(client: SystemClient, job_id: JobId) -> Document:
    """Queue a job again that was paused or reached its cost cap."""
    return client.post(f"/api/backfill/{an_id(job_id)}/resume", b"{}")
