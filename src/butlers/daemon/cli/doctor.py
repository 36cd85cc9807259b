"""`butlers doctor`: what would keep the system from starting, and what to do about it."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict

from rich.console import Console
from rich.text import Text

from butlers.daemon.cli.exits import FAILED, OK
from butlers.daemon.cli.options import Config, DataDir, Json, Port, PortOffset, Set, settings_from
from butlers.daemon.machine_checks import Check, Status, refused
from butlers.errors import ConfigurationError

_STYLES = {Status.OK: "green", Status.WARN: "yellow", Status.FAIL: "bold red"}


def doctor(
    data_dir: DataDir = None,
    config: Config = None,
    port_offset: PortOffset = None,
    port: Port = None,
    set_: Set = None,
    as_json: Json = False,
) -> int:
    """Check the machine and the configuration; exit code 1 when something stops a start."""
    from butlers.daemon.checks import examine
    from butlers.daemon.probes import probe

    try:
        settings = settings_from(data_dir=data_dir, config=config, port_offset=port_offset, port=port, set_=set_)
        checks = (*examine(settings, os.environ), *probe(settings, os.environ))
    except ConfigurationError as error:
        checks = (refused("settings", error),)
    healthy = all(check.status is not Status.FAIL for check in checks)
    if as_json:
        print(json.dumps({"checks": [asdict(check) for check in checks], "ok": healthy}))
    else:
        _print_lines(checks)
    return OK if healthy else FAILED


def _print_lines(checks: Sequence[Check]) -> None:
    # Not a table: it would cut the names, variables and remedies that people copy.
    console = Console(soft_wrap=True)
    for check in checks:
        console.print(Text(f"{check.status.value:<4}", _STYLES[check.status]), Text(f"{check.name:<26} {check.detail}"))
        if check.remedy and check.status is not Status.OK:
            console.print(Text(f"     what to do: {check.remedy}"))
    counts = {status: sum(check.status is status for check in checks) for status in Status}
    print(", ".join(f"{count} {status.value}" for status, count in counts.items()))
