"""The job `memory_consolidation`: episodes are claimed, read, and become facts and rules.

    bury what kills its readers -> claim a batch -> read -> facts, rules and "consolidated" in one transaction
                                        ^             │
                                        └─────────────┴─ unreadable: back with one attempt more, dead after the fifth

- Two processes never read one episode at the same time (claims skip what another locks, and a lease lasts 300 s), and
  a late one writes nothing: its token is no longer the one in the row.
- Facts and their episodes' new status commit together, so a crash repeats a reading and never half of one.
- The more often an episode was tried, the smaller its batch: one that cannot be read ends up alone.
- A run tries each episode once. A reader that is away ends the run, and nobody's attempt is counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal
from uuid import UUID

from butlers.butler.memory.episodes import Episodes
from butlers.butler.memory.facts import Facts
from butlers.butler.memory.reading import Reader, Reading
from butlers.butler.memory.rules import Rules
from butlers.butler.memory.values import Episode
from butlers.clock import Clock
from butlers.errors import ClassifiedError
from butlers.storage.database import Database
from butlers.telemetry import get_logger

log = get_logger("butlers.memory")

Outcome = Literal["read", "unreadable", "reader away"]


def batch_size(first: int, attempts: int) -> int:
    """A quarter for every attempt that failed."""
    return max(1, first >> 2 * attempts)


class Consolidation:
    def __init__(
        self, *, database: Database, episodes: Episodes, facts: Facts, rules: Rules, reader: Reader, clock: Clock
    ) -> None:
        self._database = database
        self._episodes = episodes
        self._facts = facts
        self._rules = rules
        self._reader = reader
        self._clock = clock

    async def run(self, _arguments: Mapping[str, Any]) -> dict[str, Any]:
        """One run; how many episodes were read, given back and given up, and what came of them."""
        started = self._clock.now()
        tally: Counter[str] = Counter(dead=await self._episodes.bury())
        for _ in range(self._reader.batches):
            token, batch = await self._episodes.claim(
                run_started=started,
                now=self._clock.now(),
                size=lambda attempts: batch_size(self._reader.batch, attempts),
            )
            if not batch or await self._read(token, batch, tally) == "reader away":
                break
        names = ("claimed", "consolidated", "returned", "dead", "facts", "rules")
        return {name: tally[name] for name in names}

    async def _read(self, token: UUID, batch: Sequence[Episode], tally: Counter[str]) -> Outcome:
        tally["claimed"] += len(batch)
        try:
            reading = await self._reader.read(batch)
        except ClassifiedError as error:
            log.warning("episodes not read", error=error, error_class=error.error_class, count=len(batch))
            return await self._give_back(token, batch, tally, problem=error.message, excused=error.retryable)
        except Exception as error:
            log.error("episodes not read", error=error, count=len(batch))
            return await self._give_back(token, batch, tally, problem=type(error).__name__, excused=False)
        await self._write(token, batch, reading, tally)
        return "read"

    async def _give_back(
        self, token: UUID, batch: Sequence[Episode], tally: Counter[str], *, problem: str, excused: bool
    ) -> Outcome:
        statuses = await self._episodes.release(batch, token, problem=problem, excused=excused)
        tally["returned"] += statuses.count("pending")
        tally["dead"] += statuses.count("dead")
        return "reader away" if excused else "unreadable"

    async def _write(self, token: UUID, batch: Sequence[Episode], reading: Reading, tally: Counter[str]) -> None:
        now = self._clock.now()
        async with self._database.transaction() as connection:
            ours = await self._episodes.finish(connection, batch, token, now=now)
            facts = [fact for fact in reading.facts if fact.source_episode_id in ours]
            for fact in facts:
                await self._facts.store(connection, fact, now=now)
            wishes = [wish for wish in reading.corrections if wish.episode_id in ours]
            made = [await self._rules.note(connection, wish, now=now) for wish in wishes]
        tally.update(consolidated=len(ours), facts=len(facts), rules=sum(made))
