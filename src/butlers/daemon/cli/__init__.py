"""The command line: `butlers COMMAND`. One file per group of commands."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from butlers import __version__
from butlers.daemon.cli import (
    approvals,
    ask,
    backfill,
    connectors,
    dead_letters,
    deliveries,
    demo,
    doctor,
    extractions,
    mailbox,
    pipeline,
    registry,
    requests,
    route,
    senders,
    service_levels,
    token,
    up,
    why,
)
from butlers.daemon.cli.exits import asks_for_json, exiting, run_guarded

app = typer.Typer(
    name="butlers",
    help="One door in and one door out for a team of agents.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"butlers {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    _version: Annotated[
        bool,
        typer.Option("--version", help="Show the version and exit.", is_eager=True, callback=_show_version),
    ] = False,
) -> None:
    """Nothing to do before a command."""


app.command("up")(exiting(up.up))
app.command("run")(exiting(up.run))
app.command("simulate")(exiting(up.simulate))
app.command("demo")(exiting(demo.demo))
app.command("status")(exiting(ask.status))
app.command("ingest")(ask.ingest)
app.command("trace")(ask.trace)
app.command("doctor")(exiting(doctor.doctor))
app.command("why")(why.why)
app.command("route")(exiting(route.route))
app.command("extractions")(extractions.extractions)
app.command("service-levels")(service_levels.service_levels)
app.add_typer(requests.app, name="requests")
app.add_typer(registry.app, name="registry")
app.add_typer(connectors.app, name="connectors")
app.add_typer(backfill.app, name="backfill")
app.add_typer(deliveries.app, name="deliveries")
app.add_typer(dead_letters.app, name="dead-letters")
app.add_typer(mailbox.app, name="mailbox")
app.add_typer(approvals.app, name="approvals")
app.add_typer(pipeline.app, name="pipeline")
app.add_typer(senders.app, name="senders")
app.add_typer(token.app, name="token")


def main() -> None:
    as_json = asks_for_json(sys.argv[1:])
    # On its own typer prints a mistake in the command line in colours and ends the process.
    sys.exit(run_guarded(lambda: app(standalone_mode=not as_json), as_json=as_json))
