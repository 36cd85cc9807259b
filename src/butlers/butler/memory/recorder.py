"""Sessions become episodes: what was said and what was answered, cut to a length that can be read again."""

from __future__ import annotations

from butlers.butler.memory.episodes import Episodes
from butlers.butler.memory.extraction import statements
from butlers.butler.memory.sentences import corrections
from butlers.butler.memory.values import MAX_NAME, NewEpisode, shortened
from butlers.butler.sessions import EndedSession
from butlers.clock import Clock

OF_ITSELF = "memory:"  # the memory's own sessions; remembering them would feed it its own words
SCHEDULED, TOLD, CORRECTED = 0.3, 0.5, 0.7  # importance


def importance_of(session: EndedSession) -> float:
    """Routine is worth little, a correction much, and a statement as much as it is sure."""
    usual = SCHEDULED if session.trigger_source.startswith("schedule:") else TOLD
    return importance(session.said, session.speaker, usual=usual)


def importance(said: str, speaker: str, *, usual: float = TOLD) -> float:
    """Of something that somebody said."""
    told = [statement.confidence for statement in statements(said, speaker)]
    return max(usual, CORRECTED if corrections(said) else 0.0, *told, 0.0)


def is_worth_keeping(session: EndedSession) -> bool:
    """Without a model nobody carries a schedule's prompt out: nothing happened."""
    if session.trigger_source.startswith(OF_ITSELF) or not session.said.strip():
        return False
    return session.runtime != "local" or not session.trigger_source.startswith("schedule:")


class EpisodeRecorder:
    def __init__(self, *, episodes: Episodes, clock: Clock) -> None:
        self._episodes = episodes
        self._clock = clock

    async def record(self, session: EndedSession) -> None:
        if not is_worth_keeping(session):
            return
        episode = NewEpisode(
            source=session.trigger_source,
            content=shortened(session.said),
            speaker=shortened(session.speaker, MAX_NAME),
            answer=shortened(session.answered) or None,
            importance=importance_of(session),
            session_id=session.session_id,
            request_id=session.request_id,
        )
        await self._episodes.store(episode, now=self._clock.now())
