"""The job `memory_episode_cleanup`: what is past its time is forgotten, in small batches.

An episode that was read, or given up, goes when its TTL is over. One that nobody has read yet goes too, unless it is
important: then it stays until it is read, 30 days at most.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from butlers.butler.memory.episodes import Episodes
from butlers.clock import Clock

BATCH, BATCHES = 500, 40  # rows of one statement, statements of one run


class EpisodeCleanup:
    def __init__(self, *, episodes: Episodes, clock: Clock) -> None:
        self._episodes = episodes
        self._clock = clock

    async def run(self, _arguments: Mapping[str, Any]) -> dict[str, Any]:
        """How many were removed, and how many past their time stay: unread important ones, or the next run's."""
        now, removed = self._clock.now(), 0
        for _ in range(BATCHES):
            gone = await self._episodes.remove_expired(now=now, limit=BATCH)
            removed += gone
            if gone < BATCH:
                break
        await self._episodes.remove_corrections(now=now)
        return {"removed": removed, "kept": await self._episodes.overdue(now=now)}
