"""Waiting that ends early when the simulator stops, so that a call held up on purpose is still answered."""

from __future__ import annotations

import asyncio

from butlers.clock import Clock


class Pauses:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: set[asyncio.Task[None]] = set()
        self._closed = False

    async def sleep(self, seconds: float) -> None:
        if self._closed:
            return
        timer = asyncio.ensure_future(self._clock.sleep(seconds))
        self._waiting.add(timer)
        try:
            await asyncio.wait({timer})
        finally:
            self._waiting.discard(timer)
            timer.cancel()

    def close(self) -> None:
        """End every pause, and let none begin."""
        self._closed = True
        for timer in self._waiting:
            timer.cancel()
