"""Options that several commands share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

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
