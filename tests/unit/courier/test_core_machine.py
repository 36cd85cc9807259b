"""Any order of calls: never more deliveries than credit, one holder at a time, nothing accepted is lost.

The model knows only what a caller can see: which ids were accepted, what was granted and delivered, and what was acked,
called poison or discarded.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import count
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from butlers.clock import ManualClock
from butlers.courier.core import PRIORITIES, QueueCore
from butlers.courier.errors import LeaseConflict, StreamFull
from butlers.courier.messages import Delivery, Item, State, StreamPolicy

STREAMS = ("agents/ann/inbox", "agents/bob/inbox")
LEASE_S, DEPTH, DEATHS = 30.0, 12, 3
LONG_LEASE_S, AGEING_S = 80_000.0, 60.0


class Courier(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        policy = StreamPolicy(lease_s=LEASE_S, max_depth=DEPTH, max_deliveries=DEATHS, recent_ids=5)
        self.core = QueueCore(clock=self.clock, policy_of=lambda _: policy)
        self.accepted: dict[str, set[str]] = {stream: set() for stream in STREAMS}
        self.settled: dict[str, set[str]] = {stream: set() for stream in STREAMS}  # acked, discarded
        self.granted: Counter[str] = Counter()
        self.delivered: Counter[str] = Counter()
        self.holds: dict[str, dict[str, Delivery]] = defaultdict(dict)  # subscriber -> lease -> delivery
        self.partitions: dict[tuple[str, str], str] = {}
        self.next_id = 0

    @initialize()
    def begin(self) -> None:
        for name, pattern in (("ann", STREAMS[0]), ("bob", STREAMS[1]), ("both", "agents/*/inbox")):
            self._subscribe(name, pattern)

    def _subscribe(self, name: str, pattern: str) -> None:
        def take(delivery: Delivery) -> None:
            self.delivered[name] += 1
            assert self.delivered[name] <= self.granted[name], "more than granted"
            for held in self.holds.values():
                for other in held.values():
                    assert (other.stream, other.id) != (delivery.stream, delivery.id), "two hold one message"
                    assert self._partition(other) is None or self._partition(other) != self._partition(delivery)
            assert delivery.id not in self.settled[delivery.stream], "delivered after its end"
            self.holds[name][delivery.lease] = delivery

        self.core.subscribe(pattern, deliver=take, id=name)
        self.pattern = pattern

    def _partition(self, delivery: Delivery) -> tuple[str, str] | None:
        key = self.partitions.get((delivery.stream, delivery.id))
        return None if key is None else (delivery.stream, key)

    def _leased(self) -> list[Item]:
        groups = [group for stream in self.core._streams.values() for group in stream.groups.values()]
        return [item for group in groups for item in group.items.values() if item.state is State.LEASED]

    def _forget_expired(self) -> None:
        """What the core took back is not held any more."""
        live = {item.lease for item in self._leased()}
        for held in self.holds.values():
            for lease in [lease for lease in held if lease not in live]:
                del held[lease]

    # --- what callers do ---------------------------------------------------------------------------------------------

    @rule(
        stream=st.sampled_from(STREAMS),
        partition=st.sampled_from([None, "p", "q"]),
        back=st.sampled_from([0, 0, 0, 1, 9]),
        priority=st.sampled_from([None, None, None, "low", "high", "urgent"]),
    )
    def enqueue(self, stream: str, partition: str | None, back: int, priority: str | None) -> None:
        self.next_id += not back
        id = f"m{max(0, self.next_id - back)}"
        known = id in self.accepted[stream]
        # `deliver` runs within the call: the model must know the message before.
        before, ended = dict(self.partitions), set(self.settled[stream])
        self.settled[stream].discard(id)
        if not known or id in ended:
            self.partitions.pop((stream, id), None)
            if partition is not None:
                self.partitions[stream, id] = partition
        try:
            result = self.core.enqueue(stream, _envelope(id, priority), partition=partition)
        except StreamFull:
            self.partitions, self.settled[stream] = before, ended
            assert len(self.accepted[stream] - self._ended(stream)) >= DEPTH
            return
        if result.duplicate:
            self.partitions, self.settled[stream] = before, ended
            assert known
            return
        assert not known or id in ended, "accepted twice"
        self.accepted[stream].add(id)

    @rule(name=st.sampled_from(["ann", "bob", "both"]), credit=st.integers(1, 5))
    def grant(self, name: str, credit: int) -> None:
        self.granted[name] += credit
        self.core.grant(name, credit)

    @precondition(lambda self: any(self.holds.values()))
    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        name, delivery = self._one_held(data)
        del self.holds[name][delivery.lease]
        self.settled[delivery.stream].add(delivery.id)
        self.core.ack(name, delivery.id, lease=delivery.lease)
        with pytest.raises(LeaseConflict):
            self.core.ack(name, delivery.id, lease=delivery.lease)

    @precondition(lambda self: any(self.holds.values()))
    @rule(data=st.data(), meaning=st.sampled_from(["release", "failed", "poison"]), delay_s=st.sampled_from([0.0, 7.0]))
    def nack(self, data: st.DataObject, meaning: Any, delay_s: float) -> None:
        name, delivery = self._one_held(data)
        del self.holds[name][delivery.lease]
        self.core.nack(name, delivery.id, meaning=meaning, delay_s=delay_s, lease=delivery.lease)

    @precondition(lambda self: any(self.holds.values()))
    @rule(data=st.data())
    def extend(self, data: st.DataObject) -> None:
        name, delivery = self._one_held(data)
        self.core.extend(name, delivery.id, lease=delivery.lease, lease_s=11.0)

    @rule(seconds=st.sampled_from([1.0, 8.0, 31.0]))
    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        # Within the call an expired message goes to its next holder; the one before has lost it by then.
        now = self.clock.monotonic()
        expired = {item.lease for item in self._leased() if item.expires_at <= now}
        for held in self.holds.values():
            for lease in expired & held.keys():
                del held[lease]
        self.core.run_due()

    @rule(stream=st.sampled_from(STREAMS), replay=st.booleans())
    def settle_dead(self, stream: str, replay: bool) -> None:
        if stream not in self.core.streams():
            return
        if replay:
            self.core.replay(stream)
            return
        for _, dead in self.core.dead(stream):
            self.settled[stream].add(dead.id)
        self.core.discard(stream)

    @rule(name=st.sampled_from(["ann", "bob"]))
    def reconnect(self, name: str) -> None:
        self.holds[name].clear()
        self.core.unsubscribe(name)
        self.granted[name] = self.delivered[name] = 0
        self._subscribe(name, STREAMS[0] if name == "ann" else STREAMS[1])

    # --- what always holds -------------------------------------------------------------------------------------------

    @invariant()
    def every_accepted_message_is_somewhere(self) -> None:
        for stream in self.core.streams():
            assert self.core.audit(stream)["balanced"]
            (group,) = self.core._streams[stream].groups.values()
            there = group.items.keys() | group.dead.keys()
            assert there == self.accepted[stream] - self.settled[stream]

    @invariant()
    def credit_is_exact(self) -> None:
        for name in ("ann", "bob", "both"):
            if (subscriber := self.core._subscribers.get(name)) is not None:
                assert subscriber.credit == self.granted[name] - self.delivered[name]

    @invariant()
    def no_message_waits_beside_credit(self) -> None:
        for stream in self.core._streams.values():
            for group in stream.groups.values():
                ready = group._fifo or group._early
                assert not (ready and any(taker.credit for taker in group.takers))

    def teardown(self) -> None:
        """At least once: with credit and time, everything comes to its end."""
        if not self.core._subscribers:
            return
        for _ in range(200):
            self._forget_expired()
            for name, held in list(self.holds.items()):
                for delivery in list(held.values()):
                    held.pop(delivery.lease, None)
                    self.settled[delivery.stream].add(delivery.id)
                    self.core.ack(name, delivery.id, lease=delivery.lease)
            self.grant("both", 5)
            self.pass_time(31.0)
        for stream in self.core.streams():
            audit = self.core.audit(stream)["groups"]["default"]
            assert audit["queued"] == audit["delayed"] == 0

    def _ended(self, stream: str) -> set[str]:
        dead = {one.id for _, one in self.core.dead(stream)} if stream in self.core.streams() else set()
        return self.settled[stream] | dead

    def _one_held(self, data: st.DataObject) -> tuple[str, Delivery]:
        held = [(name, one) for name, leases in sorted(self.holds.items()) for one in leases.values()]
        chosen: tuple[str, Delivery] = data.draw(st.sampled_from(held))
        return chosen


def _envelope(id: str, priority: str | None = None) -> dict[str, Any]:
    envelope = {"id": id, "ts": "2026-01-01T00:00:00Z", "to": "x", "type": "note", "payload": {}}
    return envelope if priority is None else envelope | {"headers": {"priority": priority}}


class Order(RuleBasedStateMachine):
    """Which message comes next: the one that has waited longest, a step of priority being worth `AGEING_S`, of those
    that no earlier message of their partition holds back. What is given back goes to the tail, and keeps its turn in
    its partition.
    """

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        policy = StreamPolicy(lease_s=LONG_LEASE_S, ageing_s=AGEING_S, max_deliveries=1_000)
        self.core = QueueCore(clock=self.clock, policy_of=lambda _: policy)
        self.got: list[Delivery] = []
        self.core.subscribe(STREAMS[0], deliver=self.got.append, id="ann")
        self.partition_of: dict[str, str | None] = {}
        self.priority_of: dict[str, float] = {}
        self.open: dict[str, list[str]] = {"p": [], "q": []}  # by partition, in the order in which they came
        self.ranks: dict[str, tuple[float, int]] = {}  # of those that are queued
        self.held: list[str] = []
        self.numbers = count()

    def _queue(self, id: str) -> None:
        earlier = self.priority_of[id] * AGEING_S
        self.ranks[id] = (self.clock.monotonic() - earlier, next(self.numbers))

    def _expected(self) -> str | None:
        ready = [id for id in self.ranks if (key := self.partition_of[id]) is None or self.open[key][0] == id]
        return min(ready, key=self.ranks.__getitem__, default=None)

    @rule(
        partition=st.sampled_from([None, "p", "q"]),
        priority=st.sampled_from([None, "low", "normal", "high", "urgent", "unheard-of"]),
    )
    def enqueue(self, partition: str | None, priority: str | None) -> None:
        id = f"m{len(self.partition_of)}"
        self.partition_of[id] = partition
        self.priority_of[id] = PRIORITIES.get(priority or "normal", 0.0)
        if partition is not None:
            self.open[partition].append(id)
        self._queue(id)
        self.core.enqueue(STREAMS[0], _envelope(id, priority), partition=partition)

    @precondition(lambda self: self._expected() is not None)
    @rule()
    def take(self) -> None:
        expected = self._expected()
        self.core.grant("ann", 1)
        assert self.got[-1].id == expected
        assert expected is not None
        del self.ranks[expected]
        self.held.append(expected)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), acked=st.booleans())
    def settle(self, data: st.DataObject, acked: bool) -> None:
        id = data.draw(st.sampled_from(self.held))
        self.held.remove(id)
        if not acked:
            self._queue(id)
            self.core.nack("ann", id)
            return
        if (key := self.partition_of[id]) is not None:
            self.open[key].remove(id)
        self.core.ack("ann", id)

    @rule(seconds=st.sampled_from([0.5, 59.0, 61.0, 200.0]))
    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @invariant()
    def nothing_came_unasked(self) -> None:
        assert len(self.got) == self.core.stats(STREAMS[0])["counts"]["delivered"]
        assert self.core.audit(STREAMS[0])["balanced"]


Courier.TestCase.settings = settings(max_examples=80, stateful_step_count=50, deadline=None)
TestCourier = Courier.TestCase
Order.TestCase.settings = settings(max_examples=80, stateful_step_count=50, deadline=None)
TestOrder = Order.TestCase
