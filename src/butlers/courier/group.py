"""One group of subscribers of a stream: what is queued, who holds what, and until when.

Pure: the time is an argument.

    accepted ──> queued ──> leased ──> acked
                  ^  ^        │
                  │  └────────┤ given back; failed, expired or its subscriber is gone (counted)
               delayed <──────┤ the same with a delay
                              └──> dead (failed too often, or poison) ──> replayed (queued again) or discarded

A stream has one group of subscribers or several: every group gets every message, and one subscriber of the group does.
An `Item` is a message in one group. `audit` holds at any time: accepted = queued + delayed + leased + acked + dead +
discarded + dropped.

Order. A message of priority p counts as if it had come p * `ageing_s` earlier: within a priority the stream is a FIFO,
and nothing waits for ever. What is delivered again goes to the tail. Messages with one partition key are delivered one
after the other: the next one waits until the one before is acked or dead, also while that one is delayed.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Literal

from butlers.courier.errors import LeaseConflict, StreamFull
from butlers.courier.messages import (
    CapturedGroup,
    Counts,
    Delivery,
    Item,
    Overflow,
    State,
    StoredGroup,
    StoredMessage,
    StreamPolicy,
    stored_message,
)
from butlers.courier.rates import LATENCIES, RateWindow, retry_after

DEFAULT_GROUP = "default"
NEVER = float("inf")


@dataclass(eq=False, slots=True)
class Subscriber:
    """Who takes messages, and how many more."""

    id: str
    deliver: Callable[[Delivery], None]
    group: str = DEFAULT_GROUP
    credit: int = 0
    in_flight: dict[str, tuple[Group, Item]] = field(default_factory=dict)  # by lease
    groups: deque[Group] = field(default_factory=deque)  # of the streams that it subscribes to
    credited_groups: set[Group] = field(default_factory=set)  # groups that know of its credit


Observe = Callable[[str, str, str, Mapping[str, Any]], None]  # event, stream, id, details


class Group:
    """The subscribers that share the messages of a stream, and what they have not settled."""

    def __init__(self, stream: str, name: str, policy: StreamPolicy, shared: Shared) -> None:
        self.stream = stream
        self.name = name
        self.policy = policy
        self.items: dict[str, Item] = {}
        self.dead: OrderedDict[str, StoredMessage] = OrderedDict()
        self.counts = Counts()
        self.paused = False
        self.members: set[Subscriber] = set()
        self.takers: deque[Subscriber] = deque()  # those with credit, the next one first
        self.leased = 0
        self.due = NEVER  # when `expire` is called the next time
        self._shared = shared
        self._fifo: deque[Item] = deque()
        self._early: list[tuple[float, int, Item]] = []  # a heap of those that go before the end of the fifo
        self._lanes: dict[str, deque[Item]] = {}  # by partition key: what waits for the one that goes first
        self._delayed: list[tuple[float, int, Item]] = []
        self._leases: dict[float, OrderedDict[str, Item]] = {}  # by length, so that each is in the order of expiry
        self._pumping = False
        self.latencies: deque[float] = deque(maxlen=LATENCIES)
        self._window = RateWindow()

    # --- in ----------------------------------------------------------------------------------------------------------

    def check_room(self, now: float) -> None:
        """Raises `StreamFull` where the policy rejects, or where everything is in the hands of subscribers."""
        if len(self.items) < self.policy.max_depth:
            return
        if self.policy.overflow is Overflow.REJECT or not (self._fifo or self._early):
            self.counts.rejected += 1
            wait = retry_after(self.policy.max_depth, self.rates(now)[1])
            raise StreamFull(self.stream, depth=len(self.items), retry_after=wait)

    def _make_room(self, now: float) -> None:
        """Let the oldest message go as the policy says."""
        oldest = self._pop()
        if self.policy.overflow is Overflow.DROP_OLDEST:
            self._settle(oldest)
            self.counts.dropped += 1
            self._observe("drop", oldest, reason="the stream is full")
        else:
            self._bury(oldest, "the stream was full", now)

    def add(self, item: Item, now: float) -> None:
        """Take a message, after `check_room`."""
        if len(self.items) >= self.policy.max_depth:
            self._make_room(now)
        if now >= self._window.next_mark:
            self._window.mark(now, self.counts.accepted, self.counts.delivered)
        self.items[item.id] = item
        self.counts.accepted += 1
        self._queue(item, now)
        if self.takers:
            self.pump(now)

    # --- out ---------------------------------------------------------------------------------------------------------

    def notice_credit(self, subscriber: Subscriber, now: float) -> None:
        """The subscriber has credit."""
        if self not in subscriber.credited_groups:
            subscriber.credited_groups.add(self)
            self.takers.append(subscriber)
        self.pump(now)

    def leave(self, subscriber: Subscriber) -> None:
        self.members.discard(subscriber)
        subscriber.credited_groups.discard(self)
        if subscriber in self.takers:
            self.takers.remove(subscriber)

    def pump(self, now: float) -> None:
        """Deliver what is queued, one message to each subscriber in turn, as long as there is credit."""
        if self._pumping or self.paused:
            return  # a subscriber that acks at once is served by the loop below
        self._pumping = True
        try:
            takers = self.takers
            while takers and (self._fifo or self._early):
                subscriber = takers.popleft()
                if subscriber.credit <= 0:
                    subscriber.credited_groups.discard(self)
                    continue
                subscriber.credit -= 1
                if subscriber.credit:
                    takers.append(subscriber)
                else:
                    subscriber.credited_groups.discard(self)
                self._deliver(self._pop(), subscriber, now)
        finally:
            self._pumping = False

    def _deliver(self, item: Item, subscriber: Subscriber, now: float) -> None:
        item.state = State.LEASED
        item.subscriber = subscriber
        self._lease(item, self.policy.lease_s, now)
        # Unlike every other one, also of another run of the program.
        lease = item.lease = f"{self._shared.epoch}-{next(self._shared.numbers)}"
        subscriber.in_flight[lease] = (self, item)
        item.attempts += 1
        counts = self.counts
        if now >= self._window.next_mark:
            self._window.mark(now, self.counts.accepted, self.counts.delivered)
        counts.delivered += 1
        if item.attempts == 1:
            self.latencies.append(now - item.accepted_at)
        else:
            counts.redelivered += 1
        if self._shared.observe is not None:
            self._observe("deliver", item, attempt=item.attempts, subscriber=subscriber.id)
        subscriber.deliver(Delivery(self.stream, item.id, item.envelope, lease, item.attempts))

    # --- settling ----------------------------------------------------------------------------------------------------

    def ack(self, item: Item, now: float) -> None:
        self._release(item)
        self._settle(item)
        self.counts.acked += 1
        if self._shared.observe is not None:
            self._observe("ack", item, attempt=item.attempts)
        if item.partition is not None:
            self.pump(now)

    def give_back(
        self, item: Item, now: float, *, counted: bool, delay_s: float = 0.0, reason: str = "", event: str = "nack"
    ) -> None:
        """Queue a leased message again, at the tail and after the delay; dead when it has failed too often."""
        self._release(item)
        item.failures += counted
        self._observe(event, item, reason=reason, counted=counted)
        if counted and item.failures >= self.policy.max_deliveries:
            self._bury(item, reason or "failed too often", now)
        elif delay_s > 0:
            item.state = State.DELAYED
            heapq.heappush(self._delayed, (now + delay_s, next(self._shared.numbers), item))
            self._is_due(now + delay_s)
        else:
            self._queue(item, now)
        self.pump(now)

    def bury(self, item: Item, reason: str, now: float) -> None:
        """Poison: to the dead at once."""
        self._release(item)
        self._bury(item, reason, now)
        self.pump(now)

    def extend(self, item: Item, lease_s: float, now: float) -> float:
        """Returns when the lease expires now."""
        self._drop_lease(item)
        self._lease(item, lease_s, now)
        return item.expires_at

    def expire(self, now: float) -> None:
        """Queue again what was held for too long, and what has waited for its delay."""
        self.due = NEVER
        for bucket in list(self._leases.values()):
            while bucket and (item := next(iter(bucket.values()))).expires_at <= now:
                self.counts.expired += 1
                self.give_back(item, now, counted=True, reason="the lease expired", event="timeout")
        while self._delayed and self._delayed[0][0] <= now:
            _, _, item = heapq.heappop(self._delayed)
            self._queue(item, now)
        heads = [next(iter(bucket.values())).expires_at for bucket in self._leases.values() if bucket]
        self._is_due(min([*heads, *(due for due, _, _ in self._delayed[:1])], default=NEVER))
        self.pump(now)

    # --- the dead ----------------------------------------------------------------------------------------------------

    def replay(self, dead: StoredMessage, now: float) -> None:
        """Queue a dead message again, as if it were new."""
        del self.dead[dead.id]
        item = Item(dead.id, dead.envelope, dead.partition, dead.priority, now)
        self.items[item.id] = item
        self.counts.replayed += 1
        self._observe("replay", item)
        self._queue(item, now)
        self.pump(now)

    def discard(self, dead: StoredMessage) -> None:
        del self.dead[dead.id]
        self.counts.discarded += 1
        if self._shared.observe is not None:
            self._shared.observe("discard", self.stream, dead.id, {"group": self.name})

    # --- what is shown -----------------------------------------------------------------------------------------------

    @property
    def queued(self) -> int:
        return len(self.items) - self.leased - len(self._delayed)

    @property
    def delayed(self) -> int:
        return len(self._delayed)

    def audit(self) -> dict[str, int | bool]:
        """Where every accepted message is, counted from the messages themselves."""
        states = [item.state for item in self.items.values()]
        found = {state.value: states.count(state) for state in State}
        found |= {
            "acked": self.counts.acked,
            "dead": len(self.dead),
            "discarded": self.counts.discarded,
            "dropped": self.counts.dropped,
        }
        balanced = sum(found.values()) == self.counts.accepted and self._is_consistent()
        return {"accepted": self.counts.accepted, **found, "balanced": balanced}

    def rates(self, now: float) -> tuple[float, float]:
        """Messages a second, in and out, of the last seconds."""
        return self._window.rates(now, self.counts.accepted, self.counts.delivered)

    def _is_consistent(self) -> bool:
        lanes = sum(len(lane) for lane in self._lanes.values())
        held = sum(len(bucket) for bucket in self._leases.values())
        return len(self._fifo) + len(self._early) + lanes == self.queued and held == self.leased

    # --- what outlives a process -------------------------------------------------------------------------------------

    def captured(self) -> CapturedGroup:
        return CapturedGroup(self.name, self.items.values(), self.dead.values())

    def restore(self, stored: StoredGroup, now: float) -> None:
        self.dead.update(stored.dead)
        for one in stored.items.values():
            item = Item(one.id, one.envelope, one.partition, one.priority, now)
            item.attempts, item.failures = one.attempts, one.failures
            self.items[item.id] = item
            self._queue(item, now)
        self.counts.accepted += len(stored.items) + len(stored.dead)

    # --- order -------------------------------------------------------------------------------------------------------

    def _queue(self, item: Item, now: float) -> None:
        item.state = State.QUEUED
        item.order = now - item.priority * self.policy.ageing_s
        item.number = next(self._shared.numbers)
        if item.partition is not None and not item.goes_first:
            lane = self._lanes.get(item.partition)
            if lane is not None:
                lane.append(item)
                return
            self._lanes[item.partition] = deque()
            item.goes_first = True
        self._make_ready(item)

    def _make_ready(self, item: Item) -> None:
        fifo = self._fifo
        if (
            not fifo
            or (last := fifo[-1]).order < item.order
            or (last.order == item.order and last.number < item.number)
        ):
            fifo.append(item)
        else:
            heapq.heappush(self._early, (item.order, item.number, item))

    def _pop(self) -> Item:
        fifo, early = self._fifo, self._early
        if early and (not fifo or early[0][:2] < (fifo[0].order, fifo[0].number)):
            return heapq.heappop(early)[2]
        return fifo.popleft()

    def _settle(self, item: Item) -> None:
        """The message leaves the group; the next one of its partition goes first."""
        del self.items[item.id]
        if item.partition is not None and item.goes_first:
            lane = self._lanes[item.partition]
            if lane:
                lane[0].goes_first = True
                self._make_ready(lane.popleft())
            else:
                del self._lanes[item.partition]

    def _bury(self, item: Item, reason: str, now: float) -> None:
        self._settle(item)
        self.counts.died += 1
        self.dead[item.id] = stored_message(item, reason, now)
        self._observe("dead", item, reason=reason)
        if len(self.dead) > self.policy.max_dead:
            oldest, _ = self.dead.popitem(last=False)
            self.counts.dropped += 1
            if self._shared.observe is not None:
                self._shared.observe(
                    "drop", self.stream, oldest, {"group": self.name, "reason": "too many dead messages"}
                )

    # --- leases ------------------------------------------------------------------------------------------------------

    def _lease(self, item: Item, lease_s: float, now: float) -> None:
        item.lease_s = lease_s
        item.expires_at = now + lease_s
        bucket = self._leases.get(lease_s)
        if bucket is None:
            bucket = self._leases[lease_s] = OrderedDict()
        bucket[item.id] = item
        self.leased += 1
        if item.expires_at < self.due:
            self._is_due(item.expires_at)

    def _drop_lease(self, item: Item) -> None:
        bucket = self._leases[item.lease_s]
        del bucket[item.id]
        if not bucket and item.lease_s != self.policy.lease_s:
            del self._leases[item.lease_s]
        self.leased -= 1

    def _release(self, item: Item) -> None:
        self._drop_lease(item)
        if item.subscriber is not None:
            item.subscriber.in_flight.pop(item.lease, None)
            item.subscriber = None

    def _is_due(self, due: float) -> None:
        if due < self.due:
            self.due = due
            self._shared.schedule(due, self)

    def _observe(self, event: str, item: Item, **details: Any) -> None:
        if self._shared.observe is not None:
            self._shared.observe(event, self.stream, item.id, {"group": self.name, **details})


class Shared:
    """What all streams of a core have in common: numbers, the hook of the event log, and the due times."""

    def __init__(self, epoch: str, observe: Observe | None, schedule: Callable[[float, Group], None]) -> None:
        self.observe = observe
        self.schedule = schedule
        self.epoch = epoch
        self.numbers = count(1)


Nack = Literal["release", "failed", "poison"]


def held(subscriber: Subscriber, id: str, *, lease: str | None, stream: str | None) -> tuple[Group, Item]:
    """The message that the subscriber holds. Raises `LeaseConflict` when it does not, or does no more."""
    if lease is not None:
        found = subscriber.in_flight.get(lease)
        if found is None or found[1].id != id:
            raise LeaseConflict(id, "the lease is not held any more: it expired, or the message was settled")
        return found
    groups = subscriber.groups
    if len(groups) == 1:
        item = groups[0].items.get(id)
        if item is not None and item.subscriber is subscriber:
            return groups[0], item
        raise LeaseConflict(id, "this subscriber holds no lease on it: it was settled, expired or never delivered here")
    candidates = [
        (group, item)
        for group, item in subscriber.in_flight.values()
        if item.id == id and stream in (None, group.stream)
    ]
    if len(candidates) != 1:
        problem = "several streams have a message with this id: name the stream or the lease" if candidates else ""
        raise LeaseConflict(id, problem or "this subscriber holds no lease on it")
    return candidates[0]
