"""What is stored of a message to a person: its state, its attempts, its history.

    accept ──> planned ──> queued ──> sending ──> an end          `contracts/message_state.py`

The service writes what was decided, the worker what came of it. `MemoryRecords` is for tests, benchmarks and
simulations; a system stores them in PostgreSQL (`postgres_records.py`).
"""

from __future__ import annotations

from bisect import insort
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Protocol
from uuid import NAMESPACE_URL, UUID, uuid5

from butlers.contracts.envelope import invalid
from butlers.contracts.message_state import ENDED, TRANSITIONS, MessageState
from butlers.outbound.documents import MessageDocument
from butlers.outbound.throttle import LONGEST, Throttling
from butlers.outbound.values import Outcome, Queued, dedupe_key, dedupe_keys

# Decides for some recipients, given what the sender has scheduled in each minute.
Decide = Callable[[Sequence[str], Mapping[datetime, int]], Sequence[Outcome]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One message to one person, as stored."""

    key: str
    message_id: UUID
    recipient_id: str
    channel: str
    scheduled_at: datetime
    state: MessageState
    document: MessageDocument
    created_at: datetime
    detail: str = ""
    reason: str | None = None
    attempts: int = 0  # failed ones on this channel
    sends: int = 0  # attempts on all channels
    failed_channels: tuple[str, ...] = ()
    delivery_id: UUID | None = None
    digest_id: UUID | None = None
    repeats: int = 0
    acknowledged_at: datetime | None = None
    ended_at: datetime | None = None

    @property
    def is_ended(self) -> bool:
        return self.state in ENDED

    @property
    def is_digest(self) -> bool:
        return "digest" in self.document.metadata


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptEnd:
    """How an attempt ended."""

    outcome: str  # delivered, failed
    error_class: str | None = None
    error: str | None = None
    delivery_id: UUID | None = None


class Records(Protocol):
    async def accept(
        self, document: MessageDocument, ids: Sequence[str], decide: Decide, *, now: datetime
    ) -> dict[str, Outcome]:
        """Store the message and what `decide` says; who was decided for before keeps that. An id that stands for
        another message is refused.
        """

    async def booked(self, document: MessageDocument, *, now: datetime) -> Mapping[datetime, int]:
        """How many messages the sender has scheduled in each minute from today on, as far as a limit asks."""

    async def planned(self, *, before: datetime, limit: int) -> list[Work]:
        """What is not in the queue although its time comes before `before`, oldest first."""

    async def overdue(self, *, untouched_since: datetime, limit: int) -> list[Work]:
        """What should be in the queue and was not touched for long: the queue may have lost it."""

    async def mark_queued(self, keys: Sequence[str], *, now: datetime) -> None: ...

    async def load(self, keys: Sequence[str]) -> dict[str, Work]: ...

    async def sent_times(self, recipient_id: str, channel: str, *, since: datetime) -> list[datetime]:
        """When attempts were started, sorted."""

    async def begin_attempt(
        self, work: Work, channel: str, throttling: Throttling, *, now: datetime
    ) -> Work | datetime | None:
        """The work with its next attempt started; the moment at which there is room; None: it is not open any more.
        Attempts for one recipient are started one after another, in all processes.
        """

    async def end_attempt(self, work: Work, end: AttemptEnd, *, now: datetime) -> None: ...

    async def move(self, work: Work, to: MessageState, *, now: datetime, **changes: Any) -> Work | None:
        """The work in its new state, with its history; None: it has left the state that `work` says."""

    async def join_digest(self, work: Work, digest: MessageDocument, *, due: datetime, now: datetime) -> bool:
        """Let the digest, made when there is none, carry the work. False: that digest is closed."""

    async def members(self, digest_id: UUID) -> list[Work]:
        """What a digest carries, oldest first."""

    async def held(self, recipient_id: str, *, now: datetime) -> list[str]:
        """The keys of what waits in the queue for a later time, and not for a retry."""

    async def acknowledge(self, recipient_id: str, message_id: UUID | None, *, now: datetime) -> list[str]:
        """The recipient has seen a message, or everything that was delivered; the keys of what was not acknowledged."""


def digest_id(recipient_id: str, event: str, due: datetime) -> UUID:
    """Names the digest of a person, an event type and a window."""
    return uuid5(NAMESPACE_URL, f"butlers:digest:{recipient_id}:{event}:{due.isoformat()}")


def check_transition(work: Work, to: MessageState) -> None:
    if to is not work.state and to not in TRANSITIONS[work.state]:
        raise ValueError(f"{work.key}: {work.state} is not followed by {to}")


@dataclass(slots=True)
class MemoryRecords:
    """Everything in this process; nothing survives it."""

    messages: dict[UUID, str] = field(default_factory=dict)
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    work: dict[str, Work] = field(default_factory=dict)
    history: dict[str, list[tuple[datetime, MessageState, str, str]]] = field(default_factory=lambda: defaultdict(list))
    attempts: dict[str, list[tuple[str, datetime, AttemptEnd | None]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    _sent: dict[tuple[str, str], list[datetime]] = field(default_factory=lambda: defaultdict(list))
    _booked: dict[str, dict[datetime, int]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(int)))
    _planned: dict[str, None] = field(default_factory=dict)

    async def accept(
        self, document: MessageDocument, ids: Sequence[str], decide: Decide, *, now: datetime
    ) -> dict[str, Outcome]:
        text = stored_form(document)
        if self.messages.setdefault(document.id, text) != text:
            raise invalid("id", "was used for another message")
        keys = dedupe_keys(document.id, ids)
        undecided = [one for one in ids if keys[one] not in self.outcomes]
        booked = self._booked[document.sender_id]
        for outcome in decide(undecided, booked) if undecided else ():
            self.outcomes[keys[outcome.recipient_id]] = outcome
            if isinstance(outcome, Queued):
                self._plan(document, keys[outcome.recipient_id], outcome, now)
                booked[outcome.scheduled_at.replace(second=0, microsecond=0)] += 1
        return {one: self.outcomes[keys[one]] for one in ids}

    async def booked(self, document: MessageDocument, *, now: datetime) -> Mapping[datetime, int]:
        return self._booked[document.sender_id]

    def _plan(self, document: MessageDocument, key: str, outcome: Queued, now: datetime) -> None:
        self._planned[key] = None  # `_read` shows it as planned until it is queued
        self.work[key] = Work(
            key=key,
            message_id=document.id,
            recipient_id=outcome.recipient_id,
            channel=outcome.channel,
            scheduled_at=outcome.scheduled_at,
            state=MessageState.QUEUED,
            document=document,
            created_at=now,
            detail=outcome.detail,
        )

    async def planned(self, *, before: datetime, limit: int) -> list[Work]:
        found = [self._read(key) for key in self._planned if self.work[key].scheduled_at < before]
        return sorted(found, key=lambda work: work.scheduled_at)[:limit]

    async def overdue(self, *, untouched_since: datetime, limit: int) -> list[Work]:
        return []  # the queue of this process loses nothing that its records outlive

    async def mark_queued(self, keys: Sequence[str], *, now: datetime) -> None:
        for key in keys:
            self._planned.pop(key, None)

    async def load(self, keys: Sequence[str]) -> dict[str, Work]:
        return {key: self._read(key) for key in keys if key in self.work}

    def _read(self, key: str) -> Work:
        work = self.work[key]
        return replace(work, state=MessageState.PLANNED) if key in self._planned else work

    async def sent_times(self, recipient_id: str, channel: str, *, since: datetime) -> list[datetime]:
        return [at for at in self._sent.get((recipient_id, channel), ()) if at > since]

    async def begin_attempt(
        self, work: Work, channel: str, throttling: Throttling, *, now: datetime
    ) -> Work | datetime | None:
        sent = self._sent[work.recipient_id, channel]
        free = throttling.next_free(sent, now)
        if free > now:
            return free
        moved = await self.move(work, MessageState.SENDING, now=now, channel=channel, sends=work.sends + 1)
        if moved is not None:
            insort(sent, now)
            del sent[: sum(1 for at in sent if at <= now - LONGEST)]
            self.attempts[work.key].append((channel, now, None))
        return moved

    async def end_attempt(self, work: Work, end: AttemptEnd, *, now: datetime) -> None:
        channel, started, _ = self.attempts[work.key][-1]
        self.attempts[work.key][-1] = (channel, started, end)

    async def move(self, work: Work, to: MessageState, *, now: datetime, **changes: Any) -> Work | None:
        check_transition(work, to)
        if self._read(work.key).state is not work.state:
            return None
        self._planned.pop(work.key, None)
        ended = now if to in ENDED else None
        moved = replace(self.work[work.key], state=to, ended_at=ended, **changes)
        self.work[work.key] = moved
        self.history[work.key].append((now, to, moved.channel, moved.detail))
        return moved

    async def join_digest(self, work: Work, digest: MessageDocument, *, due: datetime, now: datetime) -> bool:
        key = dedupe_key(digest.id, work.recipient_id)
        if key not in self.work:
            self.messages[digest.id] = stored_form(digest)
            outcome = Queued(recipient_id=work.recipient_id, channel=work.channel, scheduled_at=due, detail="digest")
            self._plan(digest, key, outcome, now)
        if self.work[key].state not in (MessageState.PLANNED, MessageState.QUEUED):
            return False
        moved = await self.move(work, MessageState.DIGESTED, now=now, digest_id=digest.id, detail=f"digest {digest.id}")
        return moved is not None

    async def members(self, digest_id: UUID) -> list[Work]:
        found = [work for work in self.work.values() if work.digest_id == digest_id]
        return sorted(found, key=lambda work: (work.created_at, work.key))

    async def held(self, recipient_id: str, *, now: datetime) -> list[str]:
        return [
            work.key
            for work in self.work.values()
            if work.recipient_id == recipient_id
            and work.state is MessageState.QUEUED
            and not (work.attempts or work.repeats)
            and work.scheduled_at > now
        ]

    async def acknowledge(self, recipient_id: str, message_id: UUID | None, *, now: datetime) -> list[str]:
        keys = [
            work.key
            for work in self.work.values()
            if work.recipient_id == recipient_id
            and message_id in (None, work.message_id)
            and work.acknowledged_at is None
            and (work.state is MessageState.DELIVERED or work.repeats)
        ]
        for key in keys:
            self.work[key] = replace(self.work[key], acknowledged_at=now)
        return keys


def stored_form(document: MessageDocument) -> str:
    """A message as it is kept: the same whether its recipients came with it or from a file."""
    return document.model_dump_json(by_alias=True, exclude_none=True, exclude={"recipient_ids"})
