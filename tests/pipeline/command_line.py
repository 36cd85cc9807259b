"""The command line, in this process; and `butlers pipeline run` in one of its own, as an operator starts it."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

from butlers.daemon.cli import app
from butlers.daemon.cli.exits import run_guarded


def butlers(*words: str) -> int:
    """The exit code of a command that runs here."""
    try:
        return run_guarded(lambda: app(list(words), standalone_mode=False), as_json="--json" in words)
    except SystemExit as ended:
        return int(ended.code or 0)


async def run_job(
    job: str, start: datetime, end: datetime, *, dsn: str, folder: Path, **arguments: str
) -> tuple[int, dict[str, Any]]:
    """The exit code, and what was printed."""
    words = ["pipeline", "run", job, "--json", "--master", "local[2]", "--data-dir", str(folder)]
    if job != "lake-stream":  # which goes on where it ended
        words += ["--from", start.isoformat(), "--to", end.isoformat()]
    words += [word for name, value in arguments.items() for word in ("--set", f"{name}={value}")]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "butlers.daemon.cli", *words),
        env=_environment() | {"DATABASE_URL": dsn},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    said, complained = await process.communicate()
    assert process.returncode is not None
    assert said, (job, complained.decode()[-2000:])
    return process.returncode, json.loads(said)


def _environment() -> dict[str, str]:
    """Without the folder that a Spark of our own has been given."""
    return {name: value for name, value in os.environ.items() if name != "SPARK_LOCAL_DIRS"}
