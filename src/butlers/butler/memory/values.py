"""What the memory speaks of."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal
from uuid import UUID

from butlers.butler.sessions import OWNER

Kind = Literal["episode", "fact", "rule"]
Origin = Literal["tool", "local", "model"]
Permanence = Literal["permanent", "stable", "standard", "volatile", "ephemeral"]
Maturity = Literal["candidate", "established", "proven", "anti_pattern"]

# How much of its confidence a fact loses, per day.
DECAY_RATES: Mapping[Permanence, float] = {
    "permanent": 0.0,
    "stable": 0.002,
    "standard": 0.008,
    "volatile": 0.03,
    "ephemeral": 0.1,
}

MAX_CONTENT = 2_000  # characters of one memory
MAX_NAME = 200  # characters of a subject or a predicate


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPolicy:
    """How long what is remembered, and how episodes are claimed."""

    episode_ttl: timedelta = timedelta(days=7)
    important_from: float = 0.7  # unread episodes from here on outlive their TTL ...
    important_ttl: timedelta = timedelta(days=30)  # ... up to this age
    correction_ttl: timedelta = timedelta(days=90)
    lease: timedelta = timedelta(seconds=300)
    max_attempts: int = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class NewEpisode:
    """Something that happened."""

    source: str
    content: str
    speaker: str = OWNER
    answer: str | None = None
    importance: float = 0.5
    session_id: UUID | None = None
    request_id: UUID | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """Something that happened, claimed to be read."""

    id: UUID
    speaker: str
    content: str
    answer: str | None
    created_at: datetime
    attempts: int


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


def shortened(text: str, limit: int = MAX_CONTENT) -> str:
    """No longer than the limit; a cut is shown."""
    clean = text.replace("\x00", "").strip()
    return clean if len(clean) <= limit else f"{clean[: limit - 1]}…"
