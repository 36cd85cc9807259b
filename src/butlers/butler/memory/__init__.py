"""What a butler remembers.

    sessions, memory_store_episode          memory_store_fact, memory_store_rule
                │                                        │
                v                                        v
            episodes ──── memory_consolidation ───> facts, rules ────> memory_recall
                │            (rules, or a model)
                └── memory_episode_cleanup: gone after their TTL

An episode is what happened and is forgotten after a week. A fact is what is so: it fades with time, at a rate that
depends on how lasting it is, until somebody confirms it; a newer one takes its place. A rule is how to act, and ripens
by use.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self
from uuid import UUID

from butlers.butler.memory.consolidation import Consolidation, Reader
from butlers.butler.memory.episodes import EpisodeCleanup, EpisodeRecorder, Episodes, MemoryPolicy
from butlers.butler.memory.facts import Facts, Rules
from butlers.butler.memory.recall import Recall
from butlers.butler.schedules import Job
from butlers.clock import Clock
from butlers.storage.database import Database, Record
from butlers.storage.migrations import MigrationSet
from butlers.storage.queries import Queries

PACKAGE = "butlers.butler.memory"


def migrations(schema: str) -> MigrationSet:
    return MigrationSet(schema=schema, package=PACKAGE, component="memory")


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    database: Database
    queries: Queries
    episodes: Episodes
    facts: Facts
    rules: Rules
    recall: Recall
    clock: Clock

    @classmethod
    def of(
        cls,
        *,
        database: Database,
        schema: str,
        clock: Clock,
        new_id: Callable[[], UUID],
        policy: MemoryPolicy,
        worker: str = "consolidation",  # this process, in the claims on episodes
    ) -> Self:
        queries = Queries.load(PACKAGE, schema=schema)
        return cls(
            database=database,
            queries=queries,
            episodes=Episodes(
                database=database,
                schema=schema,
                clock=clock,
                new_id=new_id,
                policy=policy,
                queries=queries,
                worker=worker,
            ),
            facts=Facts(database=database, queries=queries, new_id=new_id),
            rules=Rules(database=database, queries=queries, new_id=new_id),
            recall=Recall(database=database, queries=queries),
            clock=clock,
        )

    def jobs(self, reader: Reader) -> dict[str, Job]:
        """The native jobs, under the names that schedules call them by."""
        consolidation = Consolidation(
            database=self.database,
            episodes=self.episodes,
            facts=self.facts,
            rules=self.rules,
            reader=reader,
            clock=self.clock,
        )
        cleanup = EpisodeCleanup(episodes=self.episodes, clock=self.clock)
        return {"memory_consolidation": consolidation.run, "memory_episode_cleanup": cleanup.run}

    def recorder(self) -> EpisodeRecorder:
        return EpisodeRecorder(episodes=self.episodes, clock=self.clock)

    async def stats(self) -> dict[str, Any]:
        episodes = await self.database.fetch(self.queries.count_episodes)
        facts = _counts(await self.database.fetch(self.queries.count_facts))
        rules = _counts(await self.database.fetch(self.queries.count_rules))
        waiting = [row["oldest"] for row in episodes if row["name"] in ("pending", "processing")]
        return {
            "episodes": _counts(episodes) | {"oldest_unread_at": min(waiting, default=None)},
            "facts": facts,
            "rules": rules,
        }


def _counts(rows: list[Record]) -> dict[str, Any]:
    return {"by": {row["name"]: row["count"] for row in rows}, "total": sum(row["count"] for row in rows)}
