"""Options that several commands share."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from butlers.channels.registry import listed, outbound_names
from butlers.daemon.settings import Settings, load_settings
from butlers.errors import ConfigurationError

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
