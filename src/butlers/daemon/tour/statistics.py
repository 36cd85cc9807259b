"""What Spark makes of the record, asked for as an operator would: by the command line, while the system runs."""

from __future__ import annotations

import asyncio
import json
import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from butlers.daemon.tour.instance import clean_environment
from butlers.errors import ButlersError

_DAY = timedelta(days=1)
_PATIENCE_S = 120.0


async def answers_delivered(data_dir: Path, since: datetime) -> int:
    """How many answers reached somebody, by the job `delivery-stats`; reactions are none."""
    run = await _run_job("delivery-stats", data_dir, since, "group_by=intent")
    groups = [group for group in run["details"]["stats"] if group["grouping"] == "intent"]
    return sum(group["delivered"] for group in groups if json.loads(group["group_values"])["intent"] != "react")


async def _run_job(job: str, data_dir: Path, since: datetime, argument: str) -> dict[str, Any]:
    window = ("--from", since.isoformat(), "--to", (since + _DAY).isoformat())
    words = ("pipeline", "run", job, *window, "--set", argument, "--json", "--data-dir", str(data_dir))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "butlers.daemon.cli", *words),
        env=clean_environment(),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(_PATIENCE_S):
            said, complained = await process.communicate()
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()
    if process.returncode != 0:
        last = (said or complained).decode(errors="replace").strip().splitlines()
        raise ButlersError(f"{job} ended with exit code {process.returncode}: {last[-1:]}")
    document: dict[str, Any] = json.loads(said)
    return document
