"""How long the door took, kept for later without a row per message.

Times are counted in memory, by minute and channel, and added to the table every few seconds; a process that dies loses
the counts of those seconds and nothing else. Below 100 ms a time is kept to the millisecond, above that to two digits,
always rounded up: a percentile is never better than it was.
"""

from __future__ import annotations

import math
from collections import Counter
from datetime import datetime, timedelta
from typing import Final

from butlers.clock import Clock
from butlers.storage.database import Database
from butlers.storage.queries import Queries
from butlers.telemetry import get_logger

log = get_logger("butlers.service_levels")

FLUSH_EVERY_S: Final = 5.0
KEPT: Final = timedelta(days=32)  # a little longer than the longest window

_Key = tuple[datetime, str, int]  # minute, channel, milliseconds


class AcceptTimes:
    def __init__(self, *, database: Database, schema: str, clock: Clock) -> None:
        self._database = database
        self._queries = Queries.load("butlers.switchboard.service_levels", schema=schema)
        self._clock = clock
        self._counts: Counter[_Key] = Counter()

    def note(self, received_at: datetime, channel: str, elapsed_ms: float) -> None:
        """One message was accepted; on the hot path, so it only counts."""
        self._counts[received_at.replace(second=0, microsecond=0), channel, rounded_up(elapsed_ms)] += 1

    async def flush(self) -> None:
        """Put the counts on record; those that could not be written come with the next."""
        counts, self._counts = self._counts, Counter()
        if not counts:
            return
        minutes, channels, times = zip(*counts, strict=True)
        values = (list(minutes), list(channels), list(times), [*counts.values()])
        try:
            await self._database.execute(self._queries.add_accept_times, *values)
        except Exception as error:
            self._counts.update(counts)
            log.warning("accept times were not written", error=error)

    async def run(self) -> None:
        """Flush until cancelled, and forget what is too old."""
        forget_at = self._clock.now()
        while True:
            await self._clock.sleep(FLUSH_EVERY_S)
            await self.flush()
            if self._clock.now() >= forget_at:
                forget_at = self._clock.now() + timedelta(hours=1)
                await self._forget()

    async def _forget(self) -> None:
        try:
            await self._database.execute(self._queries.forget_accept_times, self._clock.now() - KEPT)
        except Exception as error:
            log.warning("old accept times were not removed", error=error)


def rounded_up(milliseconds: float) -> int:
    """Whole milliseconds, at most two digits of them."""
    whole = max(0, math.ceil(milliseconds))
    step: int = 10 ** max(0, len(str(whole)) - 2)
    return -(-whole // step) * step
