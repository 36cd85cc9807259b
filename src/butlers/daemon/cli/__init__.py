"""The command line: `butlers COMMAND`. One file per group of commands."""

from __future__ import annotations

import sys

import typer

from butlers.daemon.cli import ask, demo, doctor, token, up
from butlers.daemon.cli.exits import run_guarded

app = typer.Typer(
    name="butlers",
    help="One door in and one door out for a team of agents.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("up")(up.up)
app.command("run")(up.run)
app.command("simulate")(up.simulate)
app.command("demo")(demo.demo)
app.command("status")(ask.status)
app.command("ingest")(ask.ingest)
app.command("trace")(ask.trace)
app.command("requests")(ask.requests)
app.command("doctor")(doctor.doctor)
app.add_typer(token.app, name="token")


def main() -> None:
    sys.exit(run_guarded(app))
