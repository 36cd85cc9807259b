"""The subscribers of one gateway whose streams lie elsewhere: credit, turns, and who holds what. Pure.

Messages are claimed from the store, which takes time. What a claim may bring is reserved before it is sent, one credit
for each message, and what it does not bring is given back: whatever happens meanwhile, a subscriber never gets more
than it has granted.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from butlers.courier.errors import LeaseConflict
from butlers.courier.messages import Delivery
from butlers.courier.rates import LATENCIES, RateWindow


class Held(NamedTuple):
    """A message in the hands of a subscriber, as this gateway knows it; the store has the last word."""

    stream: str
    group: str  # its number in the store
    id: str
    lease: str
    expires_at: float  # on this gateway's clock, never before the store's


@dataclass(eq=False, slots=True)
class RemoteSubscriber:
    id: str
    pattern: str
    group: str
    deliver: Callable[[Delivery], None]
    credit: int = 0
    reserved: int = 0  # credit for messages that are being claimed
    is_gone: bool = False
    held: dict[str, Held] = field(default_factory=dict)  # by lease
    leases: dict[tuple[str, str], str] = field(default_factory=dict)  # by group and id: the newest lease
    groups: dict[str, RemoteGroup] = field(default_factory=dict)  # by stream

    @property
    def granted(self) -> int:
        """How many messages it may still get."""
        return self.credit + self.reserved

    def hold(self, held: Held) -> None:
        """Use a reserved credit. A message that came here before has a new lease: the old one is worth nothing."""
        self.reserved -= 1
        self.held.pop(self.leases.get((held.group, held.id), ""), None)
        self.held[held.lease] = held
        self.leases[held.group, held.id] = held.lease

    def release(self, held: Held) -> None:
        self.held.pop(held.lease, None)
        if self.leases.get((held.group, held.id)) == held.lease:
            del self.leases[held.group, held.id]

    def extend(self, held: Held, expires_at: float) -> None:
        if held.lease in self.held:
            self.held[held.lease] = held._replace(expires_at=expires_at)

    def forget(self) -> None:
        """The store has nothing of it: neither what it holds nor where it takes part."""
        self.held.clear()
        self.leases.clear()
        self.groups.clear()

    def find(self, id: str, *, lease: str | None, stream: str | None) -> Held:
        """Raises `LeaseConflict` when the subscriber does not hold the message, or does no more."""
        if lease is not None:
            found = self.held.get(lease)
            if found is None or found.id != id:
                raise LeaseConflict(id, "the lease is not held any more: it expired, or the message was settled")
            return found
        groups = [group for name, group in self.groups.items() if stream in (None, name)]
        leases = [lease for group in groups if (lease := self.leases.get((group.number, id))) is not None]
        if len(leases) > 1:
            raise LeaseConflict(id, "several streams have a message with this id: name the stream or the lease")
        if not leases:
            raise LeaseConflict(
                id, "this subscriber holds no lease on it: it was settled, expired or never delivered here"
            )
        return self.held[leases[0]]


@dataclass(eq=False, slots=True)
class RemoteGroup:
    """The subscribers of this gateway in one group of a stream."""

    number: str  # in the store
    stream: str
    name: str
    may_be_ready: bool = True  # False: a claim came back with less than it might have brought
    is_claiming: bool = False
    takers: OrderedDict[RemoteSubscriber, None] = field(default_factory=OrderedDict)  # with credit, the next one first
    members: set[RemoteSubscriber] = field(default_factory=set)

    def notice_credit(self, subscriber: RemoteSubscriber) -> None:
        """The subscriber has credit."""
        self.takers.setdefault(subscriber)

    def leave(self, subscriber: RemoteSubscriber) -> None:
        self.members.discard(subscriber)
        self.takers.pop(subscriber, None)

    def reserve(self, most: int) -> list[RemoteSubscriber]:
        """Take one credit after the other, of each subscriber in turn; returns whose."""
        reserved: list[RemoteSubscriber] = []
        while self.takers and len(reserved) < most:
            subscriber, _ = self.takers.popitem(last=False)
            if subscriber.credit <= 0:
                continue
            subscriber.credit -= 1
            subscriber.reserved += 1
            reserved.append(subscriber)
            if subscriber.credit:
                self.takers[subscriber] = None
        return reserved

    def give_back(self, reserved: list[RemoteSubscriber]) -> None:
        """Credit that a claim did not use; those whose turn it was are the next ones."""
        present = [subscriber for subscriber in reserved if not subscriber.is_gone]
        for subscriber in present:
            subscriber.credit += 1
            subscriber.reserved -= 1
        for subscriber in reversed(dict.fromkeys(present)):
            self.takers[subscriber] = None
            self.takers.move_to_end(subscriber, last=False)


class Meter:
    """What went through this gateway for one stream: rates of the last seconds, and latencies."""

    def __init__(self) -> None:
        self.latencies: deque[float] = deque(maxlen=LATENCIES)  # seconds from the enqueue to the first delivery
        self._accepted = 0
        self._delivered = 0
        self._window = RateWindow()

    def count(self, now: float, *, accepted: int = 0, delivered: int = 0) -> None:
        if now >= self._window.next_mark:
            self._window.mark(now, self._accepted, self._delivered)
        self._accepted += accepted
        self._delivered += delivered

    def rates(self, now: float) -> tuple[float, float]:
        """Messages a second, in and out."""
        return self._window.rates(now, self._accepted, self._delivered)
