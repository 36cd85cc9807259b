"""Background loops under supervision: a loop that fails is logged and started again, never silently gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager

from butlers.clock import Clock
from butlers.errors import ClassifiedError
from butlers.telemetry import get_logger

log = get_logger("butlers.services")

RESTART_S = 1.0
SETTLED_S = 30.0  # a loop that failed and then ran this long runs again
REMEMBERED_S = 60.0  # how long a failure shows in the health of its butler
Loop = Callable[[], Awaitable[None]]


class Services:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._failures: dict[str, tuple[float, str]] = {}  # when, and what
        self._in_a_row: dict[str, int] = {}  # failures of a loop that has not run for a while since

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
        service = name.replace(" ", "_")  # in one word: what holds a blank is withheld from the log
        while True:
            try:
                async with self._watched(name, service):
                    await loop()
            except Exception as error:
                self._in_a_row[name] = failures = self._in_a_row.get(name, 0) + 1
                self._failures[name] = (self._clock.monotonic(), _problem(error))
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
