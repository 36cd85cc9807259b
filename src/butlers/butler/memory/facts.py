"""Facts and rules as rows. About one subject in one respect one fact is held true; a newer one takes its place."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from butlers.butler.memory.extraction import Permanence
from butlers.butler.memory.recall import REFUTED, Maturity, effective_confidence, maturity_after
from butlers.storage.database import Database, Executor, Record
from butlers.storage.queries import Queries

Origin = Literal["tool", "local", "model"]
Settled = Literal["stored", "repeated", "superseded", "outdated"]
HISTORY = 20  # versions that one fact shows
# How much of its confidence a fact loses, per day.
DECAY_RATES: Mapping[Permanence, float] = {
    "permanent": 0.0,
    "stable": 0.002,
    "standard": 0.008,
    "volatile": 0.03,
    "ephemeral": 0.1,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class NewFact:
    """Something that is said to be so."""

    subject: str
    predicate: str
    content: str
    permanence: Permanence = "standard"
    confidence: float = 0.8
    origin: Origin
    observed_at: datetime
    source_episode_id: UUID | None = None

    @property
    def decay_rate(self) -> float:
        return DECAY_RATES[self.permanence]


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """A wish about how to act; said twice, it becomes a rule."""

    content: str
    episode_id: UUID


def folded(text: str) -> str:
    """The same text for the same words, however they are written: case, width, spaces and end marks do not count."""
    plain = unicodedata.normalize("NFKC", text).casefold().replace("’", "'")
    return " ".join(plain.split()).strip(" .,;:!?\"'")


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


class Rules:
    def __init__(self, *, database: Database, queries: Queries, new_id: Callable[[], UUID]) -> None:
        self._database = database
        self._queries = queries
        self._new_id = new_id

    async def store(
        self, connection: Executor, content: str, *, origin: Origin, now: datetime, maturity: Maturity = "candidate"
    ) -> tuple[UUID, Maturity]:
        """In the caller's transaction. A rule that is known gains by being said again."""
        # What is stored as an anti-pattern has done its harm already, and must earn its way back.
        harmful = REFUTED if maturity == "anti_pattern" else 0
        row = await connection.fetchrow(
            self._queries.store_rule,
            self._new_id(),
            content,
            folded(content),
            maturity,
            0,
            harmful,
            origin,
            now,
        )
        assert row is not None  # an insert or an update returns a row
        return row["id"], await self._mature(connection, row)

    async def note(self, connection: Executor, correction: Correction, *, now: datetime) -> bool:
        """Remember that an episode corrected the butler; the second one makes it a rule."""
        await connection.execute(self._queries.lock_facts)  # two who say the same at once see each other
        repeated: bool = await connection.fetchval(
            self._queries.note_correction, folded(correction.content), correction.episode_id, now
        )
        if repeated:
            await self.store(connection, correction.content, origin="local", now=now)
        return repeated

    async def used(self, rule_id: UUID, *, helped: bool, now: datetime) -> Maturity | None:
        """What the rule is after one more use; None when there is no such rule."""
        async with self._database.transaction() as connection:
            row = await connection.fetchrow(
                self._queries.use_rule, rule_id, 1 if helped else 0, 0 if helped else 1, now
            )
            return await self._mature(connection, row) if row is not None else None

    async def _mature(self, connection: Executor, row: Record) -> Maturity:
        current: Maturity = row["maturity"]
        reached = maturity_after(current, row["helpful_count"], row["harmful_count"])
        if reached != current:
            await connection.execute(self._queries.set_maturity, row["id"], reached)
        return reached

    async def get(self, rule_id: UUID) -> dict[str, Any] | None:
        row = await self._database.fetchrow(self._queries.get_rule, rule_id)
        return dict(row) if row else None

    async def forget(self, rule_id: UUID) -> int:
        return 1 if await self._database.fetchval(self._queries.forget_rule, rule_id) else 0
