"""Episodes as rows: stored, claimed to be read, read or given back, and forgotten when their time is over.

    pending ──claim──> processing ──read──> consolidated
       ^                  │ │
       └──could not be────┘ └──5th attempt──> dead
          read, or the lease ran out

`butlers.storage.claims` does the claiming: a worker that comes back after its lease ran out writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from butlers.butler.memory.extraction import MAX_CONTENT, MAX_NAME, corrections, statements
from butlers.butler.sessions import OWNER, EndedSession
from butlers.clock import Clock
from butlers.storage.claims import Claim, Claims, ClaimTable
from butlers.storage.database import Database, Executor
from butlers.storage.queries import Queries

EPISODE_CLAIMS = ClaimTable(
    name="memory_episodes",
    key={"id": "uuid"},
    state="consolidation_status",
    held="processing",
    waiting="work.consolidation_status = 'pending'",
    on_claim={"claimed_at": "$1"},
    given_back="'pending'",
    quarantined="dead",
    updated=None,
)
OF_ITSELF = "memory:"  # the memory's own sessions; remembering them would feed it its own words


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


def shortened(text: str, limit: int = MAX_CONTENT) -> str:
    """No longer than the limit; a cut is shown."""
    clean = text.replace("\x00", "").strip()
    return clean if len(clean) <= limit else f"{clean[: limit - 1]}…"


class Episodes:
    def __init__(
        self,
        *,
        database: Database,
        schema: str,
        clock: Clock,
        new_id: Callable[[], UUID],
        policy: MemoryPolicy,
        queries: Queries,
        worker: str,
    ) -> None:
        self._database = database
        self._queries = queries
        self._new_id = new_id
        self._policy = policy
        self._worker = worker
        self._claims = Claims(
            EPISODE_CLAIMS, database=database, schema=schema, clock=clock, new_id=new_id, limit=policy.max_attempts
        )

    async def store(self, episode: NewEpisode, *, now: datetime) -> UUID | None:
        """The new episode's id; None when its session has left one already."""
        stored: UUID | None = await self._database.fetchval(
            self._queries.store_episode,
            self._new_id(),
            episode.session_id,
            episode.request_id,
            episode.source,
            episode.speaker,
            episode.content,
            episode.answer,
            episode.importance,
            now,
            now + self._policy.episode_ttl,
        )
        return stored

    async def claim(
        self, *, run_started: datetime, now: datetime, size: Callable[[int], int]
    ) -> tuple[UUID, list[Episode]]:
        """A token and at most `size(attempts so far)` episodes that this run has not tried yet, oldest first."""
        next_attempts = self._claims.fill(self._queries.next_attempts)
        tried = await self._database.fetchval(next_attempts, now, self._policy.max_attempts, run_started)
        if tried is None:
            return self._new_id(), []
        token, rows = await self._claims.run(
            self._claims.fill(self._queries.claim_episodes),
            *(tried, run_started, size(tried)),
            worker=self._worker,
            lease_s=self._policy.lease.total_seconds(),
        )
        return token, sorted((Episode(**dict(row)) for row in rows), key=lambda e: (e.created_at, e.id))

    async def finish(
        self, connection: Executor, episodes: Sequence[Episode], token: UUID, *, now: datetime
    ) -> Collection[UUID]:
        """Which of them are still ours, and now read."""
        read = {"consolidation_status": "consolidated", "consolidated_at": now, "last_error": None}
        settled = await self._claims.settle_all(_claims_on(episodes, token), read, connection=connection)
        return {episode_id for (episode_id,) in settled}

    async def release(self, episodes: Sequence[Episode], token: UUID, *, problem: str, excused: bool) -> list[str]:
        """Give them back; the statuses they have now. `excused`: it was not their fault, the attempt does not count."""
        claims = _claims_on(episodes, token)
        rows = await self._claims.give_back(claims, counted=not excused, values={"last_error": problem})
        return [row["state"] for row in rows]

    async def bury(self) -> int:
        """Give up what killed its reader time after time."""
        return await self._claims.quarantine_abandoned({"last_error": "the process ended while it was read"})

    async def remove_expired(self, *, now: datetime, limit: int) -> int:
        policy = self._policy
        rows = await self._database.fetch(
            self._queries.remove_expired, now, policy.important_from, now - policy.important_ttl, limit
        )
        return len(rows)

    async def overdue(self, *, now: datetime) -> int:
        count: int = await self._database.fetchval(self._queries.count_overdue, now)
        return count

    async def remove_corrections(self, *, now: datetime) -> None:
        await self._database.execute(self._queries.remove_corrections, now - self._policy.correction_ttl)

    async def get(self, episode_id: UUID) -> dict[str, Any] | None:
        row = await self._database.fetchrow(self._queries.get_episode, episode_id)
        return dict(row) if row else None

    async def forget(self, episode_id: UUID) -> int:
        return 1 if await self._database.fetchval(self._queries.forget_episode, episode_id) else 0


def _claims_on(episodes: Sequence[Episode], token: UUID) -> list[Claim]:
    return [Claim(key=(episode.id,), token=token) for episode in episodes]


SCHEDULED, STATED, CORRECTED = 0.3, 0.5, 0.7  # importance


def importance_of(session: EndedSession) -> float:
    """Routine is worth little, a correction much, and a statement as much as it is sure."""
    usual = SCHEDULED if session.trigger_source.startswith("schedule:") else STATED
    return importance(session.text, session.speaker, usual=usual)


def importance(text: str, speaker: str, *, usual: float = STATED) -> float:
    """Of something that somebody said."""
    confidences = [statement.confidence for statement in statements(text, speaker)]
    return max(usual, CORRECTED if corrections(text) else 0.0, *confidences, 0.0)


def is_worth_keeping(session: EndedSession) -> bool:
    """Without a model nobody carries a schedule's prompt out: nothing happened."""
    if session.trigger_source.startswith(OF_ITSELF) or not session.text.strip():
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
            content=shortened(session.text),
            speaker=shortened(session.speaker, MAX_NAME),
            answer=shortened(session.answered) or None,
            importance=importance_of(session),
            session_id=session.session_id,
            request_id=session.request_id,
        )
        await self._episodes.store(episode, now=self._clock.now())


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
