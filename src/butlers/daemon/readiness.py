"""The checks behind `/readyz` that every process has: its database, its disk, and the loops that fail."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

from butlers.butler.health import Check, Finding, Findings
from butlers.daemon.machine_checks import ENOUGH_FREE
from butlers.daemon.services import Services
from butlers.errors import TargetUnavailable
from butlers.storage.database import Database
from butlers.storage.server_watch import ServerState, ServerWatch

STOPS_BELOW = 64 * 2**20  # bytes free: the database's next write-ahead segments do not fit any more
_DISK_REMEDY = "Free some space, or start with another --data-dir."
_EMBEDDED_REMEDY = "Its own log is in the data directory, in postgres/log; what was accepted is stored and goes on."
_DATABASE_REMEDY = "See `butlers doctor`; what was accepted is stored and goes on when the database is back."


def database_check(database: Database, watch: ServerWatch | None = None) -> Check:
    """Whether it answers; of the embedded one also how often it was started again, and why it is not."""

    async def check() -> Finding:
        state = watch.state if watch is not None else ServerState()
        if not state.is_up:
            return _down(state)
        try:
            await database.fetchval("SELECT 1")
        except TargetUnavailable as error:
            return Finding.failing(f"The database does not answer: {error.message}.", remedy=_DATABASE_REMEDY)
        return Finding(figures={"restarts": state.restarts} if state.restarts else {})

    return check


def _down(state: ServerState) -> Finding:
    died = (
        f"The embedded database died {state.deaths} times in a row"
        if state.deaths > 1
        else "The embedded database died"
    )
    again = f"and is started again in {state.pause_s:g} s" if state.pause_s else "and is being started again"
    why = f": {type(state.problem).__name__}" if state.problem is not None else ""
    return Finding.failing(f"{died} {again}{why}.", remedy=_EMBEDDED_REMEDY, deaths=state.deaths)


def disk_check(root: Path, free_bytes: Callable[[Path], int] = lambda path: shutil.disk_usage(path).free) -> Check:
    async def check() -> Finding:
        return disk_finding(await asyncio.to_thread(free_bytes, root))

    return check


def disk_finding(free: int) -> Finding:
    words = f"{free // 2**20} MiB are free where the data directory is"
    if free < STOPS_BELOW:
        return Finding.failing(f"Only {words}: nothing new can be stored.", remedy=_DISK_REMEDY, free_bytes=free)
    if free < ENOUGH_FREE:
        return Finding.degraded(f"Only {words}.", remedy=_DISK_REMEDY, free_bytes=free)
    return Finding(figures={"free_bytes": free})


def services_check(services: Services) -> Check:
    """The loops that failed within the last minute, each with its error."""

    async def check() -> Findings:
        remedy = "It is started again by itself; the log names every failure."
        return {
            name: Finding.degraded(f"{name} failed {ago:.0f} s ago: {problem}.", remedy=remedy)
            for name, (ago, problem) in services.failures().items()
        }

    return check
