"""Commands about a whole system: `up`, `run`, `simulate`, `demo`, `status` and `doctor`. They import what is
heavy when they are called.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from butlers.clock import SystemClock
from butlers.daemon.cli.exits import FAILED, OK, Document, plain
from butlers.daemon.cli.options import Config, DataDir, Json, Port, PortOffset, Set, settings_from
from butlers.daemon.client import SystemClient
from butlers.daemon.machine_checks import Check, Status, refused
from butlers.errors import ConfigurationError, TargetUnavailable

if TYPE_CHECKING:
    from butlers.daemon.demo.lines import Line


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


Keep = Annotated[bool, typer.Option("--keep", help="Leave the system running at the end.")]


def demo(as_json: Json = False, keep: Keep = False) -> int:
    """Start everything in a temporary directory, drive real traffic, show what was seen."""
    return asyncio.run(_demo(as_json=as_json, keep=keep))


async def _demo(*, as_json: bool, keep: bool) -> int:
    from butlers.daemon.demo.lines import Demo

    current = asyncio.current_task()
    if current is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, current.cancel)
    folder = Path(tempfile.mkdtemp(prefix="butlers-demo-"))
    shown = Demo(folder, SystemClock(), _progress)
    seen: list[Line] = []
    try:
        async for line in shown.lines(keep=keep):
            seen.append(line)
            print(_demo_line(line), file=sys.stderr if as_json else sys.stdout, flush=True)
    finally:
        if not keep:
            await shown.instance.close()
            if all(line.passed for line in seen):
                shutil.rmtree(folder, ignore_errors=True)
            else:
                print(f"butlers: logs and data of the failed demo stay in {folder}", file=sys.stderr)
    passed = sum(line.passed for line in seen)
    if as_json:
        print(json.dumps({"passed": passed, "total": len(seen), "lines": [line.to_json() for line in seen]}))
    else:
        print(f"{passed} of {len(seen)} lines passed")
    if keep:
        print(f"still running: butlers status --data-dir {folder}", file=sys.stderr)
    return OK if passed == len(seen) else FAILED


def _progress(name: str) -> None:
    print(f"butlers: {name} ...", file=sys.stderr, flush=True)


def _demo_line(line: Line) -> str:
    mark = "pass" if line.passed else "FAIL"
    return f"{mark}  {line.name:<14} {line.shows}\n      {line.detail}  ({line.seconds:.1f} s)"


def status(data_dir: DataDir = None, config: Config = None, as_json: Json = False) -> int:
    """Every door and how its parts are; exit code 1 when something is not well."""
    with SystemClient(settings_from(data_dir=data_dir, config=config)) as client:
        health = {name: client.health(url) for name, url in client.description["doors"].items()}
        if all(state["status"] == "unreachable" for state in health.values()):
            client.get("/api/status")  # says in the words of every command that nobody answers
        document = {
            "doors": {name: {"url": client.description["doors"][name], **state} for name, state in health.items()},
            "simulators": client.description["simulators"],
            "requests": _counts(client),
        }
    if as_json:
        print(json.dumps(document))
    else:
        _print_status(document)
    return OK if all(state["status"] == "ok" for state in health.values()) else FAILED


def _counts(client: SystemClient) -> Document:
    """Nothing while the database is away: then the doors' own words are what matters."""
    try:
        counts: Document = client.get("/api/status")["requests"]
    except TargetUnavailable:
        return {}
    return counts


def _print_status(document: Document) -> None:
    table = Table("door", "status", "address", "runtime")
    for name, door in document["doors"].items():
        table.add_row(name, door["status"], door["url"], str(door.get("runtime", "")))
    Console().print(table)
    for line in _problems(document["doors"]):
        print(plain(line))
    counts = ", ".join(f"{count} {state}" for state, count in document["requests"].items())
    print(f"requests (open, and ended within a day): {counts or 'none'}")


def _problems(doors: Document) -> Iterator[str]:
    """What is not well, and what to do; what several doors say is said once."""
    by_problem: dict[str, list[str]] = {}
    for name, door in doors.items():
        for part in door.get("parts", []):
            if part["state"] != "ok":
                what = " ".join(part[key] for key in ("part", "name") if key in part)
                words = " ".join(part[key] for key in ("sentence", "remedy") if key in part)
                by_problem.setdefault(f"{what} {part['state']}: {words}", []).append(name)
    for problem, names in by_problem.items():
        yield f"{', '.join(names)}: {problem}"


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
    from butlers.daemon.delivery_checks import probe

    try:
        settings = settings_from(data_dir=data_dir, config=config, port_offset=port_offset, port=port, set_=set_)
        checks = (*examine(settings, os.environ), *probe(settings, os.environ))
    except ConfigurationError as error:
        checks = (refused("settings", error),)
    healthy = all(check.status is not Status.FAIL for check in checks)
    if as_json:
        print(json.dumps({"checks": [asdict(check) for check in checks], "ok": healthy}))
    else:
        _print_checks(checks)
    return OK if healthy else FAILED


def _print_checks(checks: Sequence[Check]) -> None:
    # Not a table: it would cut the names, variables and remedies that people copy.
    console = Console(soft_wrap=True)
    for check in checks:
        console.print(Text(f"{check.status.value:<4}", _STYLES[check.status]), Text(f"{check.name:<26} {check.detail}"))
        if check.remedy and check.status is not Status.OK:
            console.print(Text(f"     what to do: {check.remedy}"))
    counts = {status: sum(check.status is status for check in checks) for status in Status}
    print(", ".join(f"{count} {status.value}" for status, count in counts.items()))
