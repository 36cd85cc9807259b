"""What a stream is made of: its policy, its messages while they are open, and what is stored of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from butlers.courier.group import Subscriber


class Overflow(StrEnum):
    REJECT = "reject"  # the producer is told to come back
    DROP_OLDEST = "dropOldest"  # counted
    DEAD_LETTER_OLDEST = "deadLetterOldest"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPolicy:
    lease_s: float = 30.0
    max_depth: int = 100_000  # messages of a group that are not settled, so that what is given back has its place
    max_deliveries: int = 5  # counted failures; then dead
    overflow: Overflow = Overflow.REJECT
    recent_ids: int = 10_000  # ids in which a repeat is noticed
    ageing_s: float = 60.0  # what one step of priority is worth
    max_dead: int = 10_000  # the oldest is dropped, and counted


class State(StrEnum):
    QUEUED = "queued"  # also behind another message of its partition
    DELAYED = "delayed"
    LEASED = "leased"


class Delivery(NamedTuple):
    """What a subscriber gets."""

    stream: str
    id: str
    envelope: Any
    lease: str  # fences the ack: an earlier holder has another one
    attempt: int


class Item:
    """A message in one group, until it is settled."""

    __slots__ = (
        "accepted_at", "attempts", "envelope", "expires_at", "failures", "goes_first", "id", "lease", "lease_s",
        "number", "order", "partition", "priority", "state", "subscriber",
    )  # fmt: skip

    def __init__(self, id: str, envelope: Any, partition: str | None, priority: float, now: float) -> None:
        self.id = id
        self.envelope = envelope
        self.partition = partition
        self.priority = priority
        self.accepted_at = now
        self.attempts = 0  # deliveries
        self.failures = 0  # deliveries that count
        self.goes_first = False  # of its partition
        self.state = State.QUEUED
        self.order = now
        self.number = 0
        self.lease = ""
        self.lease_s = 0.0
        self.expires_at = 0.0
        self.subscriber: Subscriber | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMessage:
    """A message with its history: one that is delivered no more until an operator replays it, or one that is stored."""

    id: str
    envelope: Any
    partition: str | None
    priority: float
    reason: str
    attempts: int
    failures: int
    died_at: float


class CapturedGroup:
    """The messages of a group at one moment. Taking them copies references and numbers only, as 100,000 messages must
    not hold up the event loop; `messages` may be read later, and by another thread.
    """

    def __init__(self, name: str, items: Iterable[Item], dead: Iterable[StoredMessage]) -> None:
        self.name = name
        self._items = list(items)
        self._orders = [item.order for item in self._items]
        self._numbers = [item.number for item in self._items]
        self._histories = [item.attempts for item in self._items], [item.failures for item in self._items]
        self.dead = list(dead)

    def messages(self) -> Iterator[StoredMessage]:
        """Those that are open, in their order; what was leased or delayed is queued when it comes back."""
        attempts, failures = self._histories
        by_number = sorted(range(len(self._items)), key=self._numbers.__getitem__)
        for at in sorted(by_number, key=self._orders.__getitem__):
            item = self._items[at]
            yield StoredMessage(
                id=item.id,
                envelope=item.envelope,
                partition=item.partition,
                priority=item.priority,
                reason="",
                attempts=attempts[at],
                failures=failures[at],
                died_at=0.0,
            )

    def stored(self) -> StoredGroup:
        return StoredGroup(items={one.id: one for one in self.messages()}, dead={one.id: one for one in self.dead})


@dataclass(slots=True)
class CapturedStream:
    name: str
    recent: list[str]
    groups: list[CapturedGroup]


@dataclass(slots=True)
class StoredGroup:
    """The open messages of a group in their order, and its dead ones."""

    items: dict[str, StoredMessage] = field(default_factory=dict)
    dead: dict[str, StoredMessage] = field(default_factory=dict)


@dataclass(slots=True)
class StoredStream:
    recent: list[str] = field(default_factory=list)  # ids, the newest last
    groups: dict[str, StoredGroup] = field(default_factory=dict)


@dataclass(slots=True)
class Counts:
    """Since the start, of one stream; `accepted` and what follows from it count once for each group."""

    accepted: int = 0
    delivered: int = 0
    acked: int = 0
    nacked: int = 0
    redelivered: int = 0
    expired: int = 0
    duplicates: int = 0
    rejected: int = 0
    dropped: int = 0
    died: int = 0
    replayed: int = 0
    discarded: int = 0


def stored_message(item: Item, reason: str, now: float) -> StoredMessage:
    return StoredMessage(
        id=item.id,
        envelope=item.envelope,
        partition=item.partition,
        priority=item.priority,
        reason=reason,
        attempts=item.attempts,
        failures=item.failures,
        died_at=now,
    )
