"""Background loops under supervision: a loop that fails is logged and started again, never silently gone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from butlers.clock import Clock
from butlers.errors import ClassifiedError
from butlers.telemetry import get_logger

log = get_logger("butlers.services")

RESTART_S = 1.0
REMEMBERED_S = 60.0  # how long a failure shows in the health of its butler
Loop = Callable[[], Awaitable[None]]


class Services:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._failures: dict[str, tuple[float, str]] = {}  # when, and what

    def start(self, name: str, loop: Loop) -> None:
        self._tasks[name] = asyncio.create_task(self._supervise(name, loop), name=name)

    def every(self, name: str, seconds: float, action: Callable[[], Awaitable[object]]) -> None:
        self.start(name, repeated(self._clock, seconds, action))

    async def stop(self, names: Iterable[str]) -> None:
        """Cancel these loops and nothing else."""
        chosen = [self._tasks.pop(name) for name in names if name in self._tasks]
        for task in chosen:
            task.cancel()
        await asyncio.gather(*chosen, return_exceptions=True)

    async def stop_all(self) -> None:
        await self.stop(tuple(self._tasks))

    @property
    def failing(self) -> list[str]:
        """Loops that failed within the last minute."""
        return sorted(self.failures())

    def failures(self) -> dict[str, tuple[float, str]]:
        """The same, with the seconds since then and what was wrong."""
        now = self._clock.monotonic()
        ages = {name: (now - failed_at, problem) for name, (failed_at, problem) in self._failures.items()}
        return {name: failure for name, failure in ages.items() if failure[0] < REMEMBERED_S}

    async def _supervise(self, name: str, loop: Loop) -> None:
        while True:
            try:
                await loop()
            except Exception as error:
                self._failures[name] = (self._clock.monotonic(), _problem(error))
                log.error("service failed, starting it again", error=error, job_name=name)
            else:
                log.warning("service ended, starting it again", job_name=name)
            await self._clock.sleep(RESTART_S)


def _problem(error: Exception) -> str:
    """What may be shown: our own words. Those of a library may hold what people wrote."""
    return error.message if isinstance(error, ClassifiedError) else type(error).__name__


def repeated(clock: Clock, seconds: float, action: Callable[[], Awaitable[object]]) -> Loop:
    """A loop that does something regularly; the first time after one pause."""

    async def loop() -> None:
        while True:
            await clock.sleep(seconds)
            await action()

    return loop
