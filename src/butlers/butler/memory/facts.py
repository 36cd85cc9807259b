"""Facts as rows. About one subject in one respect one fact is held true; a newer one takes its place."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from butlers.butler.memory.confidence import effective_confidence
from butlers.butler.memory.values import DECAY_RATES, NewFact, folded
from butlers.storage.database import Database, Executor, Record
from butlers.storage.queries import Queries

Settled = Literal["stored", "repeated", "superseded", "outdated"]
HISTORY = 20  # versions that one fact shows


def settle(fact: NewFact, *, known_content: str | None, known_since: datetime | None) -> Settled:
    """What becomes of a fact beside the one that is held true (None: there is none)."""
    if known_content is None or known_since is None:
        return "stored"
    if known_content == folded(fact.content):
        return "repeated"
    return "outdated" if fact.observed_at < known_since else "superseded"


class Facts:
    def __init__(self, *, database: Database, queries: Queries, new_id: Callable[[], UUID]) -> None:
        self._database = database
        self._queries = queries
        self._new_id = new_id

    async def store(self, connection: Executor, fact: NewFact, *, now: datetime) -> tuple[UUID, Settled]:
        """In the caller's transaction; the id of the fact that is held true now."""
        await connection.execute(self._queries.lock_facts)
        known = await connection.fetchrow(self._queries.active_fact, folded(fact.subject), folded(fact.predicate))
        outcome = settle(
            fact,
            known_content=known["content_key"] if known else None,
            known_since=known["observed_at"] if known else None,
        )
        if known is not None and outcome == "repeated":
            await self._repeat(connection, fact, known)
        if known is not None and outcome in ("repeated", "outdated"):
            return known["id"], outcome
        fact_id = self._new_id()
        if known is not None:
            await connection.execute(self._queries.supersede_fact, known["id"], fact_id, now)
        await self._insert(connection, fact_id, fact, now)
        return fact_id, outcome

    async def _repeat(self, connection: Executor, fact: NewFact, known: Record) -> None:
        # Only somebody who says so on purpose changes how lasting a fact is.
        permanence = fact.permanence if fact.origin == "tool" else known["permanence"]
        rate = DECAY_RATES[permanence]
        await connection.execute(
            self._queries.repeat_fact, known["id"], fact.confidence, permanence, rate, fact.observed_at
        )

    async def _insert(self, connection: Executor, fact_id: UUID, fact: NewFact, now: datetime) -> None:
        await connection.execute(
            self._queries.insert_fact,
            fact_id,
            fact.subject,
            fact.predicate,
            fact.content,
            folded(fact.subject),
            folded(fact.predicate),
            folded(fact.content),
            fact.permanence,
            fact.decay_rate,
            fact.confidence,
            fact.origin,
            fact.source_episode_id,
            fact.observed_at,
            now,
        )

    async def get(self, fact_id: UUID, *, now: datetime) -> dict[str, Any] | None:
        """One fact with its other versions."""
        row = await self._database.fetchrow(self._queries.get_fact, fact_id)
        if row is None:
            return None
        fact = dict(row)
        keys = fact.pop("subject_key"), fact.pop("predicate_key")
        versions = await self._database.fetch(self._queries.history_of_fact, *keys, fact_id, HISTORY)
        sure = effective_confidence(row["confidence"], row["decay_rate"], row["confirmed_at"], now)
        return fact | {"effective_confidence": round(sure, 4), "versions": [dict(version) for version in versions]}

    async def confirm(self, fact_id: UUID, *, now: datetime) -> bool:
        return await self._database.fetchval(self._queries.confirm_fact, fact_id, now) is not None

    async def forget(self, fact_id: UUID) -> int:
        """How many versions are gone."""
        return len(await self._database.fetch(self._queries.forget_fact, fact_id))
