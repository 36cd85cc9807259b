"""A memory on a real database."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from butlers.butler.memory import Memory, migrations
from butlers.butler.memory.consolidation import LocalReader, Reader, Reading
from butlers.butler.memory.episodes import Episode, MemoryPolicy, NewEpisode
from butlers.butler.memory.facts import NewFact
from butlers.clock import ManualClock
from butlers.ids import Uuid7Factory
from butlers.storage.database import Database, Record
from butlers.storage.embedded import EmbeddedPostgres
from tests.database import cloned_database

SCHEMA = "general"


class Unreadable:
    """A reader that fails over some episodes, alone or in company."""

    batches = 50

    def __init__(self, *, poison: str, error: Exception, batch: int = 20) -> None:
        self.batch = batch
        self.sizes: list[int] = []
        self._poison = poison
        self._error = error

    async def read(self, episodes: Sequence[Episode]) -> Reading:
        self.sizes.append(len(episodes))
        if any(self._poison in episode.content for episode in episodes):
            raise self._error
        return await LocalReader().read(episodes)


class MemorySystem:
    """A memory, and hands to use it."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.clock = ManualClock()
        self.policy = MemoryPolicy()
        self.memory = self.another()

    def another(self) -> Memory:
        """The memory of another process on the same database."""
        return Memory.of(
            database=self.database,
            schema=SCHEMA,
            clock=self.clock,
            new_id=Uuid7Factory(self.clock),
            policy=self.policy,
        )

    def pass_time(self, **span: float) -> None:
        self.clock.advance(timedelta(**span).total_seconds())

    async def happened(self, content: str, **more: Any) -> UUID:
        episode = NewEpisode(source="tool:test", content=content, **more)
        stored = await self.memory.episodes.store(episode, now=self.clock.now())
        assert stored is not None
        return stored

    async def is_so(self, subject: str, predicate: str, content: str, **more: Any) -> tuple[UUID, str]:
        now = self.clock.now()
        given: dict[str, Any] = {"origin": "tool", "observed_at": now} | more
        fact = NewFact(subject=subject, predicate=predicate, content=content, **given)
        async with self.database.transaction() as connection:
            return await self.memory.facts.store(connection, fact, now=now)

    async def consolidate(self, reader: Reader | None = None, memory: Memory | None = None) -> dict[str, Any]:
        jobs = (memory or self.memory).jobs(reader or LocalReader())
        return await jobs["memory_consolidation"]({})

    async def clean_up(self) -> dict[str, Any]:
        return await self.memory.jobs(LocalReader())["memory_episode_cleanup"]({})

    async def facts(self) -> dict[tuple[str, str], str]:
        """What is held true."""
        rows = await self.database.fetch(f"SELECT * FROM {SCHEMA}.memory_facts WHERE superseded_at IS NULL")
        return {(row["subject"], row["predicate"]): row["content"] for row in rows}

    async def rules(self) -> dict[str, str]:
        rows = await self.database.fetch(f"SELECT content, maturity FROM {SCHEMA}.memory_rules")
        return {row["content"]: row["maturity"] for row in rows}

    async def episodes(self) -> list[Record]:
        return await self.database.fetch(f"SELECT * FROM {SCHEMA}.memory_episodes ORDER BY created_at, id")

    async def statuses(self) -> list[str]:
        return [row["consolidation_status"] for row in await self.episodes()]


@pytest.fixture
async def system(postgres_server: EmbeddedPostgres) -> AsyncIterator[MemorySystem]:
    async with cloned_database(postgres_server, [migrations(SCHEMA)]) as database:
        yield MemorySystem(database)
