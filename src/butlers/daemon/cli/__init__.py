"""The command line: `butlers COMMAND`. One file per group of commands."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from butlers import __version__
from butlers.daemon.cli import (
    ask,
    connectors,
    deliveries,
    demo,
    doctor,
    pipeline,
    registry,
    requests,
    route,
    token,
    up,
    why,
)
from butlers.daemon.cli.declared import add_commands
from butlers.daemon.cli.exits import asks_for_json, exiting, run_guarded
from butlers.operations import approvals, backfill, dead_letters, mailbox, routing, senders

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


approvals_app = typer.Typer(help="What waits for a person's approval.", no_args_is_help=True)
_rules = typer.Typer(help="Rules that let calls pass without asking.", no_args_is_help=True)
approvals_app.add_typer(_rules, name="rules")
_backfill = typer.Typer(help="Messages of the past that connectors fetch when asked to.", no_args_is_help=True)
_dead_letters = typer.Typer(help="Deliveries that were set aside.", no_args_is_help=True)
_mailbox = typer.Typer(help="Mails that could not be handled.", no_args_is_help=True)
_senders = typer.Typer(help="Who may write in, who was refused, and how a stranger is let in.")
add_commands(approvals_app, "approvals", *approvals.OPERATIONS)
add_commands(_rules, "approvals rules", *approvals.OPERATIONS)
add_commands(_backfill, "backfill", backfill.LIST, backfill.CREATE, backfill.PAUSE)
add_commands(_dead_letters, "dead-letters", *dead_letters.OPERATIONS)
add_commands(_mailbox, "mailbox", *mailbox.OPERATIONS)
add_commands(_senders, "senders", *senders.OPERATIONS)

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
add_commands(app, "", routing.EXTRACTIONS, routing.SERVICE_LEVELS)
app.add_typer(requests.app, name="requests")
app.add_typer(registry.app, name="registry")
app.add_typer(connectors.app, name="connectors")
app.add_typer(_backfill, name="backfill")
app.add_typer(deliveries.app, name="deliveries")
app.add_typer(_dead_letters, name="dead-letters")
app.add_typer(_mailbox, name="mailbox")
app.add_typer(approvals_app, name="approvals")
app.add_typer(pipeline.app, name="pipeline")
app.add_typer(_senders, name="senders")
app.add_typer(token.app, name="token")


def main() -> None:
    as_json = asks_for_json(sys.argv[1:])
    # On its own typer prints a mistake in the command line in colours and ends the process.
    sys.exit(run_guarded(lambda: app(standalone_mode=not as_json), as_json=as_json))
