"""Commands that keep running: `up`, `run` and `simulate`. Their imports wait until they are called."""

from __future__ import annotations

from typing import Annotated

import typer

from butlers.daemon.cli.options import Config, DataDir, Port, PortOffset, Set, settings_from


def up(
    data_dir: DataDir = None,
    config: Config = None,
    port_offset: PortOffset = None,
    port: Port = None,
    set_: Set = None,
) -> int:
    """Start everything; ctrl-C drains and stops."""
    from butlers.daemon.serve import serve_all

    return serve_all(settings_from(data_dir=data_dir, config=config, port_offset=port_offset, port=port, set_=set_))


def run(
    role: Annotated[str, typer.Argument(help="A butler's name, e.g. messenger.")],
    data_dir: DataDir = None,
    config: Config = None,
    port_offset: PortOffset = None,
    port: Port = None,
    set_: Set = None,
) -> int:
    """Start one butler in a process of its own; the others are called over MCP."""
    from butlers.daemon.serve import serve_role

    settings = settings_from(data_dir=data_dir, config=config, port_offset=port_offset, port=port, set_=set_)
    return serve_role(settings, role)


def simulate(
    what: Annotated[list[str] | None, typer.Argument(help="telegram, mail, calendar, webhook; default: all.")] = None,
    data_dir: DataDir = None,
    config: Config = None,
    port_offset: PortOffset = None,
    port: Port = None,
    set_: Set = None,
    with_parent: Annotated[bool, typer.Option("--with-parent", help="End when standard input ends.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Tell a mistake as JSON, as all the rest is.")] = False,
) -> int:
    """Run the simulated providers alone: Telegram, SMTP, IMAP, calendar and an SMS gateway, with their control APIs."""
    del as_json  # looked for before anything is parsed, see exits.py
    from butlers.daemon.serve import serve_simulators

    settings = settings_from(data_dir=data_dir, config=config, port_offset=port_offset, port=port, set_=set_)
    return serve_simulators(settings, what or [], with_parent=with_parent)
