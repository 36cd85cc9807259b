"""The only place that asks what time it is.

Decision code takes `now` as an argument; stage code is given a `Clock`. Tests hand in a `ManualClock` and move it.
"""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    """Wall time for records, monotonic time for durations, and waiting."""

    def now(self) -> datetime:
        """The current time, always in UTC."""

    def monotonic(self) -> float:
        """Seconds that never go back; only differences mean anything."""

    async def sleep(self, seconds: float) -> None:
        """Wait."""


class SystemClock:
    """The machine's own clock."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class ManualClock:
    """A clock that stands still until a test moves it; sleepers wake when their time has come."""

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._now = start
        self._elapsed = 0.0
        self._sleepers: list[tuple[float, asyncio.Future[None]]] = []

    def now(self) -> datetime:
        return self._now

    def monotonic(self) -> float:
        return self._elapsed

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleepers.append((self._elapsed + seconds, waiter))
        await waiter

    def advance(self, seconds: float) -> None:
        """Move on, and wake everybody whose time has come, earliest first."""
        self._now += timedelta(seconds=seconds)
        self._elapsed += seconds
        due = sorted((s for s in self._sleepers if s[0] <= self._elapsed), key=lambda s: s[0])
        self._sleepers = [s for s in self._sleepers if s[0] > self._elapsed]
        for _, waiter in due:
            if not waiter.done():
                waiter.set_result(None)
