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
from butlers.outbound.documents import MessageDocument, parse_document
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
    digest_id: UUID | None = None  # the digest that carries it
    is_digest: bool = False
    waits_for: str = ""  # quiet, throttle; "": it waits for its schedule, a retry or nothing
    repeats: int = 0
    acknowledged_at: datetime | None = None
    ended_at: datetime | None = None

    @property
    def is_ended(self) -> bool:
        return self.state in ENDED


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

    async def mark_queued(self, keys: Sequence[str], *, now: datetime) -> None:
        """The queue has entries for them."""

    async def load(self, keys: Sequence[str]) -> dict[str, Work]: ...

    async def sent_times(self, recipient_id: str, channel: str, *, since: datetime) -> list[datetime]:
        """When attempts were started, sorted."""

    async def throttled_times(self, work: Work, channel: str) -> list[datetime]:
        """For when other messages to the recipient were put off by the throttle."""

    async def begin_attempt(
        self, work: Work, channel: str, throttling: Throttling, *, now: datetime
    ) -> Work | datetime | None:
        """The work with its next attempt started; the moment at which there is room; None: it is not open any more.
        Attempts for one recipient are started one after another, in all processes.
        """

    async def end_attempt(self, work: Work, end: AttemptEnd, *, now: datetime) -> None: ...

    async def move(self, work: Work, to: MessageState, *, now: datetime, **changes: Any) -> Work | None:
        """The work in its new state, with its history; None: it has left the state that `work` says."""

    async def stored_message(self, message_id: UUID) -> MessageDocument | None:
        """The message as it was accepted, without its recipients."""

    async def join_digest(self, work: Work, digest: MessageDocument, *, due: datetime, now: datetime) -> bool:
        """Let the digest, made when there is none, carry the work, if that is open. False: the digest is closed."""

    async def members(self, digest_id: UUID) -> list[Work]:
        """What a digest carries, oldest first."""

    async def held(self, recipient_id: str, *, now: datetime) -> list[str]:
        """The keys of what waits in the queue for the end of quiet hours or of a mute."""

    async def acknowledge(
        self, recipient_id: str, message_id: UUID | None, *, now: datetime, before: datetime | None = None
    ) -> list[str]:
        """The recipient has seen a message, or all that was accepted before a moment and delivered; the keys of what
        was not acknowledged yet.
        """


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
            waits_for="quiet" if outcome.scheduled_at > now and not is_paced(document) else "",
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
        moment = attempt_moment(sent, now)
        free = throttling.next_free(sent, moment)
        if free > moment:
            return free
        changes = {"channel": channel, "sends": work.sends + 1, "waits_for": ""}
        moved = await self.move(work, MessageState.SENDING, now=now, **changes)
        if moved is not None:
            insort(sent, moment)
            del sent[: sum(1 for at in sent if at <= moment - LONGEST)]
            self.attempts[work.key].append((channel, moment, None))
        return moved

    async def throttled_times(self, work: Work, channel: str) -> list[datetime]:
        return sorted(
            other.scheduled_at
            for other in self.work.values()
            if (other.recipient_id, other.channel, other.waits_for) == (work.recipient_id, channel, "throttle")
            and other.state is MessageState.QUEUED
            and other.key != work.key
        )

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

    async def stored_message(self, message_id: UUID) -> MessageDocument | None:
        text = self.messages.get(message_id)
        return parse_document(MessageDocument, text, kind="message") if text is not None else None

    async def join_digest(self, work: Work, digest: MessageDocument, *, due: datetime, now: datetime) -> bool:
        key = dedupe_key(digest.id, work.recipient_id)
        if self._read(work.key).state is not work.state:
            return True
        if key not in self.work:
            self.messages[digest.id] = stored_form(digest)
            outcome = Queued(recipient_id=work.recipient_id, channel=work.channel, scheduled_at=due, detail="digest")
            self._plan(digest, key, outcome, now)
            self.work[key] = replace(self.work[key], is_digest=True, waits_for="")
        if self.work[key].state is not MessageState.QUEUED:
            return False
        await self.move(work, MessageState.DIGESTED, now=now, digest_id=digest.id, detail=f"digest {digest.id}")
        return True

    async def members(self, digest_id: UUID) -> list[Work]:
        carried = (work for work in self.work.values() if work.digest_id == digest_id)
        found = [work for work in carried if work.state is MessageState.DIGESTED]
        return sorted(found, key=lambda work: (work.created_at, work.key))

    async def held(self, recipient_id: str, *, now: datetime) -> list[str]:
        return [
            work.key
            for work in self.work.values()
            if work.recipient_id == recipient_id
            and work.state is MessageState.QUEUED
            and work.waits_for == "quiet"
            and work.scheduled_at > now
        ]

    async def acknowledge(
        self, recipient_id: str, message_id: UUID | None, *, now: datetime, before: datetime | None = None
    ) -> list[str]:
        keys = [
            work.key
            for work in self.work.values()
            if work.recipient_id == recipient_id
            and message_id in (None, work.message_id)
            and work.acknowledged_at is None
            and (before is None or work.created_at <= before)
            and (work.state is MessageState.DELIVERED or work.repeats)
        ]
        for key in keys:
            self.work[key] = replace(self.work[key], acknowledged_at=now)
        return keys


def stored_form(document: MessageDocument) -> str:
    """A message as it is kept: the same whether its recipients came with it or from a file."""
    # With what is null: a limit that is null is no limit, and one that is absent has its default.
    return document.model_dump_json(by_alias=True, exclude={"recipient_ids"})


def is_paced(document: MessageDocument) -> bool:
    """Whether limits of the sender may put a message off."""
    return any(value is not None for value in document.delivery_policy.pacing.model_dump().values())


def attempt_moment(sent: Sequence[datetime], now: datetime) -> datetime:
    """When an attempt begins. Another process may have begun one meanwhile: attempts for a recipient have an order."""
    return max(now, sent[-1]) if sent else now
