"""Background loops under supervision: a loop that fails is logged and started again, never silently gone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from butlers.clock import Clock
from butlers.telemetry import get_logger

log = get_logger("butlers.services")

RESTART_S = 1.0
Loop = Callable[[], Awaitable[None]]


class Services:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._failing: set[str] = set()

    def start(self, name: str, loop: Loop) -> None:
        self._tasks[name] = asyncio.create_task(self._supervise(name, loop), name=name)

    def every(self, name: str, seconds: float, action: Callable[[], Awaitable[object]]) -> None:
        self.start(name, repeated(self._clock, seconds, action))

    async def stop(self, *names: str) -> None:
        """Cancel some loops, or all."""
        chosen = [self._tasks.pop(name) for name in (names or tuple(self._tasks)) if name in self._tasks]
        for task in chosen:
            task.cancel()
        await asyncio.gather(*chosen, return_exceptions=True)

    @property
    def failing(self) -> list[str]:
        """Loops that failed and have not run well since."""
        return sorted(self._failing)

    async def _supervise(self, name: str, loop: Loop) -> None:
        while True:
            try:
                await loop()
            except Exception as error:
                self._failing.add(name)
                log.error("service failed, starting it again", error=error, job_name=name)
            else:
                log.warning("service ended, starting it again", job_name=name)
            await self._clock.sleep(RESTART_S)
            self._failing.discard(name)


def repeated(clock: Clock, seconds: float, action: Callable[[], Awaitable[object]]) -> Loop:
    """A loop that does something regularly; the first time after one pause."""

    async def loop() -> None:
        while True:
            await clock.sleep(seconds)
            await action()

    return loop
