"""Options that several commands share."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from butlers.channels.registry import listed, outbound_names
from butlers.daemon.places import Places
from butlers.daemon.settings import Settings, load_settings
from butlers.errors import ConfigurationError
from butlers.roster import load_roster
from butlers.storage.address import database_of, with_database
from butlers.storage.embedded import EmbeddedPostgres

DataDir = Annotated[Path | None, typer.Option("--data-dir", help="Where everything is kept.", show_default=False)]
Config = Annotated[Path | None, typer.Option("--config", help="Settings file (TOML).", show_default=False)]
PortOffset = Annotated[int | None, typer.Option("--port-offset", help="Added to every port.", show_default=False)]
Port = Annotated[
    list[str] | None, typer.Option("--port", help="NAME=NUMBER, instead of the usual port.", show_default=False)
]
Set = Annotated[
    list[str] | None, typer.Option("--set", help="KEY=VALUE of any setting, e.g. llm=on.", show_default=False)
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
Limit = Annotated[int, typer.Option(min=1, max=500)]
Cursor = Annotated[str | None, typer.Option(help="Where an earlier page ended.")]


def moment(text: str | None) -> str | None:
    try:
        whole = text is None or datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        whole = False
    if not whole:
        raise typer.BadParameter("must be a moment with an offset, like 2026-01-31T09:00:00Z")
    return text


Since = Annotated[str | None, typer.Option(help="Moment like 2026-01-31T09:00:00Z, included.", callback=moment)]
Until = Annotated[str | None, typer.Option(help="Moment like 2026-01-31T09:00:00Z, not included.", callback=moment)]
Channel = Annotated[str | None, typer.Option(help=f"{listed(outbound_names())}.")]
Origin = Annotated[str | None, typer.Option(help="Only what this butler asked for.")]
Reason = Annotated[str, typer.Option("--reason", help="Why; it is kept.")]


def settings_from(
    *,
    data_dir: Path | None = None,
    config: Path | None = None,
    port_offset: int | None = None,
    port: list[str] | None = None,
    set_: list[str] | None = None,
) -> Settings:
    flags: dict[str, Any] = dict(_pair(item, "--set") for item in set_ or ())
    if "ports" in flags:
        raise ConfigurationError(
            "cannot be set as a whole", source="command line", key="--set ports", remedy="use --port NAME=NUMBER"
        )
    named = {"data_dir": data_dir, "config": config, "port_offset": port_offset}
    flags |= {key: value for key, value in named.items() if value is not None}
    if port:
        flags["ports"] = dict(_pair(item, "--port") for item in port)
    return load_settings(flags, os.environ)


def _pair(item: str, option: str) -> tuple[str, str]:
    key, separator, value = item.partition("=")
    if not separator or not key:
        raise ConfigurationError(
            "must be NAME=VALUE", source="command line", key=f"{option} {item}", remedy="see --help"
        )
    return key.strip(), value.strip()


def lists_by_itself(app: typer.Typer, command: Callable[..., None]) -> None:
    """Let the group take the listing's options, and nothing that belongs to one of its other commands."""

    def listing(**given: Any) -> None:
        context: typer.Context = given["context"]
        if context.invoked_subcommand is None:
            command(**given)
        elif misplaced := _said(context):
            raise typer.BadParameter(f"{misplaced} belongs behind `{context.invoked_subcommand}`")

    listing.__doc__ = command.__doc__
    listing.__signature__ = inspect.signature(command)  # type: ignore[attr-defined]
    listing.__annotations__ = command.__annotations__
    app.callback(invoke_without_command=True)(listing)


def _said(context: typer.Context) -> str | None:
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if source is not None and source.name == "COMMANDLINE":
            return parameter.opts[0]
    return None


@contextmanager
def database_of_system(settings: Settings) -> Iterator[str]:
    """Its address; an embedded server that nobody uses is started for as long as the block lasts."""
    given = settings.database_url
    if given is not None:
        yield given if database_of(given) is not None else with_database(given, _name(settings))
        return
    server = EmbeddedPostgres(Places(settings.data_dir).root, durable=settings.database_durable)
    if not server.pgdata.exists():
        raise ConfigurationError(
            "there is no system here yet",
            source="--data-dir",
            key=str(settings.data_dir),
            remedy="start it once with `butlers up`, name another --data-dir, or set DATABASE_URL",
        )
    server.start()
    try:
        yield server.uri(_name(settings))
    finally:
        server.stop()


def _name(settings: Settings) -> str:
    # All butlers of a system share one database; a roster that says otherwise does not start.
    return next(config.butler.db.name for config in load_roster(settings.roster_dir).values())
