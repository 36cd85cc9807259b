"""What a butler is made of at run time: services, the supervisor of their loops, and the checks of the process."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from butlers.butler.health import Check, Finding, Findings
from butlers.clock import Clock
from butlers.daemon.machine_checks import ENOUGH_FREE
from butlers.errors import ClassifiedError, TargetUnavailable
from butlers.storage.database import Database
from butlers.storage.server_process import ServerState, ServerWatch
from butlers.telemetry import get_logger

log = get_logger("butlers.services")

RESTART_S = 1.0
SETTLED_S = 30.0  # a loop that failed and then ran this long runs again
REMEMBERED_S = 60.0  # how long a failure shows in the health of its butler
STOPS_BELOW = 64 * 2**20  # bytes free: the database's next write-ahead segments do not fit any more
_DISK_REMEDY = "Free some space, or start with another --data-dir."
_EMBEDDED_REMEDY = "Its own log is in the data directory, in postgres/log; what was accepted is stored and goes on."
_DATABASE_REMEDY = "See `butlers doctor`; what was accepted is stored and goes on when the database is back."

Action = Callable[[], Awaitable[object]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A part of a butler that starts, runs, drains, stops and reports its health.

    The system starts the services of a butler in their order, those with `before_doors` first. It drains them in
    reverse while the doors are open, closes the doors, ends every loop, and stops the services in reverse.
    """

    name: str
    before_doors: bool = False  # needs no other butler; the others start when all butlers are registered
    start: Action | None = None  # once, before it runs: what it recovers or prepares
    run: Action | None = None  # under supervision: a loop, or with `every_s` an action
    every_s: float = 0.0  # seconds before each action; 0: `run` is a loop
    drain: Action | None = None  # finishes what is in hand
    stop: Action | None = None  # lets go of what it holds
    health: Check | None = None  # reported under its name


class Supervisor:
    """Runs loops. A loop that fails is logged and started again, never silently gone."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._failures: dict[str, tuple[float, str]] = {}  # when, and what
        self._in_a_row: dict[str, int] = {}  # failures of a loop that has not run for a while since

    def start(self, name: str, run: Action, every_s: float = 0.0) -> None:
        """`every_s`: seconds before each call of `run`, which is then an action and not a loop."""

        async def repeat() -> None:
            while True:
                await self._clock.sleep(every_s)
                await run()

        self._tasks[name] = asyncio.create_task(self._supervise(name, repeat if every_s else run), name=name)

    async def stop(self, *names: str) -> None:
        """Cancel these loops, or all."""
        chosen = [self._tasks.pop(name) for name in names or tuple(self._tasks) if name in self._tasks]
        for task in chosen:
            task.cancel()
        await asyncio.gather(*chosen, return_exceptions=True)

    def failures(self) -> dict[str, tuple[float, str]]:
        """Loops that failed within the last minute: the seconds since then, and what was wrong."""
        now = self._clock.monotonic()
        ages = {name: (now - failed_at, problem) for name, (failed_at, problem) in self._failures.items()}
        return {name: failure for name, failure in sorted(ages.items()) if failure[0] < REMEMBERED_S}

    async def check(self) -> Findings:
        remedy = "It is started again by itself; the log names every failure."
        return {
            name: Finding.degraded(f"{name} failed {ago:.0f} s ago: {problem}.", remedy=remedy)
            for name, (ago, problem) in self.failures().items()
        }

    async def _supervise(self, name: str, loop: Action) -> None:
        service = name.replace(" ", "_")  # in one word: what holds a blank is withheld from the log
        while True:
            try:
                async with self._watched(name, service):
                    await loop()
            except Exception as error:
                self._in_a_row[name] = failures = self._in_a_row.get(name, 0) + 1
                # What may be shown are our own words: those of a library may hold what people wrote.
                problem = error.message if isinstance(error, ClassifiedError) else type(error).__name__
                self._failures[name] = (self._clock.monotonic(), problem)
                log.error("service failed, starting it again", error=error, job_name=service, attempts=failures)
            else:
                log.warning("service ended, starting it again", job_name=service)
            await self._clock.sleep(RESTART_S)

    @asynccontextmanager
    async def _watched(self, name: str, service: str) -> AsyncIterator[None]:
        """Say that a service that failed runs again, when it has done so for a while."""

        async def say() -> None:
            await self._clock.sleep(SETTLED_S)
            log.info("service runs again", job_name=service, attempts=self._in_a_row.pop(name))

        saying = asyncio.create_task(say()) if name in self._in_a_row else None
        try:
            yield
        finally:
            if saying is not None:
                saying.cancel()


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
