"""Finding memories by words: text match times effective confidence times recency, best first.

The database brings what shares the most words (at most `CANDIDATES` of each kind), the ranking is done here. A page is
a cut of that list, so going through it ends after a few hundred memories, whatever is stored.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from butlers.butler.specialist import search_words
from butlers.storage.database import Database, Record
from butlers.storage.queries import Queries

Kind = Literal["episode", "fact", "rule"]
Maturity = Literal["candidate", "established", "proven", "anti_pattern"]

# A memory of a month ago counts for two thirds of a fresh one, and none for less than half: a birthday told years ago
# is still worth finding.
RECENCY_FLOOR, RECENCY_DAYS = 0.5, 30.0

ESTABLISHED, PROVEN, REFUTED = 3, 10, 3  # how often a rule must have helped, or done harm
TOLERATED_HARM = 0.2  # of a proven rule's uses
_LADDER: tuple[Maturity, ...] = ("candidate", "established", "proven")
# A refuted rule ranks high: what not to do is worth knowing.
RULE_CONFIDENCE: Mapping[Maturity, float] = {
    "candidate": 0.4,
    "established": 0.7,
    "proven": 0.95,
    "anti_pattern": 0.8,
}
CANDIDATES = 200  # of each kind
_SHORTEST_PREFIX = 3  # letters; shorter words must match whole


def days_between(since: datetime, now: datetime) -> float:
    """Never negative: another process's clock may be ahead."""
    return max(0.0, (now - since).total_seconds() / 86_400)


def effective_confidence(confidence: float, decay_rate: float, confirmed_at: datetime, now: datetime) -> float:
    """What is left of the confidence: it fades by `decay_rate` a day since it was last confirmed."""
    return confidence * math.exp(-decay_rate * days_between(confirmed_at, now))


def recency(since: datetime, now: datetime) -> float:
    """1 for what is new, and towards the floor with age."""
    return RECENCY_FLOOR + (1 - RECENCY_FLOOR) * math.exp(-days_between(since, now) / RECENCY_DAYS)


def score(*, matched: int, asked: int, confidence: float, since: datetime, now: datetime) -> float:
    """Text match (share of the words that were found) times effective confidence times recency."""
    match = matched / asked if asked else 0.0
    return match * confidence * recency(since, now)


def maturity_after(current: Maturity, helpful: int, harmful: int) -> Maturity:
    """What a rule is after so many uses. It climbs, and only harm takes it down."""
    if harmful >= REFUTED and harmful > helpful:
        return "anti_pattern"
    earned: Maturity = "candidate"
    if helpful >= ESTABLISHED and helpful > harmful:
        earned = "proven" if helpful >= PROVEN and harmful <= TOLERATED_HARM * helpful else "established"
    if current == "anti_pattern":
        return earned if helpful > harmful else current
    return max(current, earned, key=_LADDER.index)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is looked for."""

    text: str
    kinds: Collection[Kind]
    limit: int
    offset: int
    min_confidence: float


def search_terms(text: str) -> list[str]:
    """The words of a question as the full-text search wants them; "birth" also finds "birthday"."""
    return [f"{word}:*" if len(word) >= _SHORTEST_PREFIX else word for word in search_words(text)]


class Recall:
    def __init__(self, *, database: Database, queries: Queries) -> None:
        self._database = database
        self._queries = queries

    async def search(self, question: Question, *, now: datetime) -> dict[str, Any] | None:
        """One page; None when no word of the question can find anything."""
        terms = await self._terms(question.text)
        if not terms:
            return None
        found = [
            memory
            for kind in sorted(question.kinds)
            for memory in self._rank(kind, await self._look(kind, terms, now), len(terms), now)
        ]
        sure = [memory for memory in found if memory["effective_confidence"] >= question.min_confidence]
        ranked = sorted(sure, key=lambda memory: (-memory["score"], str(memory["id"])))
        end = question.offset + question.limit
        return {"memories": ranked[question.offset : end], "next_offset": end if len(ranked) > end else None}

    async def _terms(self, text: str) -> list[str]:
        rows = await self._database.fetch(self._queries.meaningful_terms, search_terms(text))
        return [row["term"] for row in rows]

    async def _look(self, kind: Kind, terms: Sequence[str], now: datetime) -> list[Record]:
        values: tuple[Any, ...] = (terms, " | ".join(terms), CANDIDATES)
        if kind == "fact":
            return await self._database.fetch(self._queries.recall_facts, *values)
        if kind == "rule":
            return await self._database.fetch(self._queries.recall_rules, *values)
        return await self._database.fetch(self._queries.recall_episodes, *values, now)

    def _rank(self, kind: Kind, rows: Sequence[Record], asked: int, now: datetime) -> Iterator[dict[str, Any]]:
        for row in rows:
            sure = confidence_of(kind, row, now)
            value = score(matched=row["matched"], asked=asked, confidence=sure, since=row["since"], now=now)
            columns = {name: row[name] for name in row.keys() if name != "matched"}  # noqa: SIM118 - a record's own keys
            yield {"kind": kind, **columns, "effective_confidence": round(sure, 4), "score": round(value, 6)}


def confidence_of(kind: Kind, row: Record, now: datetime) -> float:
    """How sure a memory is now; an episode is as sure as it is important."""
    if kind == "fact":
        return effective_confidence(row["confidence"], row["decay_rate"], row["since"], now)
    return RULE_CONFIDENCE[row["maturity"]] if kind == "rule" else float(row["importance"])
