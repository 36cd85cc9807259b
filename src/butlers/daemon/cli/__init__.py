"""The command line: `butlers COMMAND`. One file per group of commands."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from butlers import __version__
from butlers.daemon.cli import courier, pipeline, route, system, token
from butlers.daemon.cli.declared import add_commands
from butlers.daemon.cli.exits import asks_for_json, exiting, run_guarded
from butlers.operations import (
    approvals,
    connector_statistics,
    connectors,
    dead_letters,
    deliveries,
    entitlements,
    messages,
    operators,
    people,
    preferences,
    requests,
    routing,
    templates,
    webhooks,
)
from butlers.operations.operation import Operation

app = typer.Typer(
    name="butlers",
    help="One door in and one door out for a team of agents.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _show_version(requested: bool) -> None:
    if requested:
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


def _group(words: str, about: str, *operations: Operation) -> typer.Typer:
    """The commands of these operations that begin with the words."""
    commands = [command for operation in operations for command in operation.commands]
    lists = any(command.alone and command.words.startswith(f"{words} ") for command in commands)
    group = typer.Typer(name=words.rpartition(" ")[2], help=about, no_args_is_help=not lists)
    add_commands(group, words, *operations)
    return group


app.command("up")(exiting(system.up))
app.command("run")(exiting(system.run))
app.command("simulate")(exiting(system.simulate))
app.command("demo")(exiting(system.demo))
app.command("status")(exiting(system.status))
add_commands(app, "", requests.INGEST, messages.SEND, requests.TRACE)
app.command("doctor")(exiting(system.doctor))
add_commands(app, "", deliveries.WHY)
app.command("route")(exiting(route.route))
add_commands(app, "", *routing.OPERATIONS)

_approvals = _group("approvals", "What waits for a person's approval.", *approvals.OPERATIONS)
_approvals.add_typer(_group("approvals rules", "Rules that let calls pass without asking.", *approvals.OPERATIONS))
_requests = (*requests.OPERATIONS, *operators.OPERATIONS)
_connectors = (*connectors.OPERATIONS, *connector_statistics.OPERATIONS)
_deliveries = (*deliveries.OPERATIONS, *people.OPERATIONS)
for _commands in (
    _group("requests", "Recent requests, newest first, and what can be done about them.", *_requests),
    _group("registry", "Who can take work.", *routing.OPERATIONS),
    _group("connectors", "Who brings messages in, and whether it is there.", *_connectors),
    _group("backfill", "Messages of the past that connectors fetch when asked to.", *connectors.OPERATIONS),
    _group("deliveries", "What was sent, what waits, and how the way out is doing.", *_deliveries),
    _group("messages", "Messages to people: what was sent to whom, and what became of it.", *messages.OPERATIONS),
    _group("dead-letters", "Deliveries that were set aside.", *dead_letters.OPERATIONS),
    _group("mailbox", "Mails that could not be handled.", *dead_letters.OPERATIONS),
    _approvals,
    pipeline.app,
    _group("senders", "Who may write in, who was refused, and how a stranger is let in.", *people.OPERATIONS),
    _group("preferences", "What people want to be told, how, and when not.", *preferences.OPERATIONS),
    _group("entitlements", "Who may send and receive by which channel.", *entitlements.OPERATIONS),
    _group("templates", "Templates of messages, in versions.", *templates.OPERATIONS),
    _group("webhooks", "Addresses that are told what becomes of requests and deliveries.", *webhooks.OPERATIONS),
    token.app,
    courier.app,
):
    app.add_typer(_commands)


def main() -> None:
    as_json = asks_for_json(sys.argv[1:])
    # On its own typer prints a mistake in the command line in colours and ends the process.
    sys.exit(run_guarded(lambda: app(standalone_mode=not as_json), as_json=as_json))
