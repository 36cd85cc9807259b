"""What is made of episodes, and the contract of whoever reads them: local rules here, a model in `model.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from butlers.butler.memory.extraction import statements
from butlers.butler.memory.sentences import corrections
from butlers.butler.memory.values import Correction, Episode, NewFact


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What some episodes say."""

    facts: tuple[NewFact, ...] = ()
    corrections: tuple[Correction, ...] = ()


class Reader(Protocol):
    """Raises a retryable `ClassifiedError` when it is away, and anything else when these episodes are unreadable."""

    @property
    def batch(self) -> int:
        """Episodes that are read at once, the first time they are tried."""

    @property
    def batches(self) -> int:
        """Batches of one run at most."""

    async def read(self, episodes: Sequence[Episode]) -> Reading: ...


class LocalReader:
    """Plain sentences by rules: no network, no model."""

    batch = 100
    batches = 50

    async def read(self, episodes: Sequence[Episode]) -> Reading:
        """Only what a person said counts: a butler's own answer would teach it its own guesses."""
        return Reading(
            facts=tuple(fact for episode in episodes for fact in facts_of(episode)),
            corrections=tuple(
                Correction(content=wish, episode_id=episode.id)
                for episode in episodes
                for wish in dict.fromkeys(corrections(episode.content))
            ),
        )


def facts_of(episode: Episode) -> list[NewFact]:
    return [
        NewFact(
            subject=said.subject,
            predicate=said.predicate,
            content=said.content,
            permanence=said.permanence,
            confidence=said.confidence,
            origin="local",
            observed_at=episode.created_at,
            source_episode_id=episode.id,
        )
        for said in statements(episode.content, episode.speaker)
    ]
