"""`butlers status`: every door and how its parts are."""

from __future__ import annotations

import json
from collections.abc import Iterator

from rich.console import Console
from rich.table import Table

from butlers.daemon.cli.exits import FAILED, OK, Document, plain
from butlers.daemon.cli.options import Config, DataDir, Json, settings_from
from butlers.daemon.client import SystemClient
from butlers.errors import TargetUnavailable


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
        _print_lines(document)
    return OK if all(state["status"] == "ok" for state in health.values()) else FAILED


def _counts(client: SystemClient) -> Document:
    """Nothing while the database is away: then the doors' own words are what matters."""
    try:
        counts: Document = client.get("/api/status")["requests"]
    except TargetUnavailable:
        return {}
    return counts


def _print_lines(document: Document) -> None:
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
    said: dict[str, list[str]] = {}
    for name, door in doors.items():
        for part in door.get("parts", []):
            if part["state"] != "ok":
                what = " ".join(part[key] for key in ("part", "name") if key in part)
                words = " ".join(part[key] for key in ("sentence", "remedy") if key in part)
                said.setdefault(f"{what} {part['state']}: {words}", []).append(name)
    for problem, names in said.items():
        yield f"{', '.join(names)}: {problem}"
