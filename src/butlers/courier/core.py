"""The courier's queues: named streams, subscribers with credit, leases. In memory, synchronous, the clock injected.

    core = QueueCore(clock=clock)
    subscriber = core.subscribe("agents/jen/inbox", deliver=print)
    core.grant(subscriber, 10)
    core.enqueue("agents/jen/inbox", {"id": "e-1", ...})
    core.ack(subscriber, "e-1")

A subscriber gets a message by the call of its `deliver` and holds it until it acks or nacks it, or until its lease
expires. The core never waits: `next_due` is when `run_due` has something to do, and `on_due` is called when that moves
closer. What leaves the process, or comes back after a restart, is the matter of those who call the core.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from butlers.clock import Clock
from butlers.courier.errors import (
    GroupInUse,
    InvalidEnvelope,
    LeaseConflict,
    OverQuota,
    StreamClosed,
    UnknownStream,
)
from butlers.courier.group import DEFAULT_GROUP, NEVER, Group, Nack, Observe, Shared, Subscriber, held
from butlers.courier.messages import CapturedStream, Delivery, Item, StoredMessage, StoredStream, StreamPolicy
from butlers.courier.names import check_pattern, check_stream, compile_pattern
from butlers.courier.rates import percentile_ms

MOST_CREDIT = 1_000_000
MOST_GROUPS = 64  # of one stream: each one has every message
LONGEST_DELAY_S = 7 * 86_400.0
LONGEST_LEASE_S = 86_400.0
PRIORITIES = {"low": -1.0, "normal": 0.0, "high": 1.0, "urgent": 2.0}


class Enqueued(NamedTuple):
    id: str
    duplicate: bool = False  # the id is among the recent ones: the message was taken before


class Stream:
    """A name, and the groups that share what is sent to it."""

    __slots__ = ("draining", "groups", "last_at", "name", "newest", "policy", "recent")

    def __init__(self, name: str, policy: StreamPolicy) -> None:
        self.name = name
        self.policy = policy
        self.groups: dict[str, Group] = {}
        self.recent: set[str] = set()
        self.newest: deque[str] = deque()  # the same ids in their order
        self.draining = False
        self.last_at = ""  # the `ts` of the newest message


class QueueCore:
    def __init__(
        self,
        *,
        clock: Clock,
        policy_of: Callable[[str], StreamPolicy] = lambda _: StreamPolicy(),
        epoch: str = "0",  # tells the leases of this run from those of another one
        most_streams: int = 100_000,
        observe: Observe | None = None,
        on_due: Callable[[float], None] | None = None,
    ) -> None:
        self._now = clock.monotonic
        self._policy_of = policy_of
        self._most_streams = most_streams
        self._on_due = on_due
        self._streams: dict[str, Stream] = {}
        self._subscribers: dict[str, Subscriber] = {}
        self._patterns: list[tuple[Callable[[str], bool], Subscriber]] = []
        self._due: list[tuple[float, int, Group]] = []
        self._shared = Shared(epoch, observe, self._schedule)

    # --- producers ---------------------------------------------------------------------------------------------------

    def enqueue(self, stream: str, envelope: Mapping[str, Any], *, partition: str | None = None) -> Enqueued:
        """Accept a message. Raises `StreamFull`; an id that is among the recent ones is accepted once."""
        found = self._streams.get(stream) or self._create(stream)
        id: str = envelope["id"]
        now, groups, recent = self._now(), found.groups.values(), found.recent
        if id in recent or any([id in group.items or id in group.dead for group in groups]):  # noqa: C419 - three times as quick
            for group in groups:
                group.counts.duplicates += 1
            return Enqueued(id, duplicate=True)
        if found.draining:
            raise StreamClosed(f"the stream {stream} is being drained and takes no messages")
        for group in groups:
            group.check_room(now)
        recent.add(id)
        found.newest.append(id)
        if len(recent) > found.policy.recent_ids:
            recent.discard(found.newest.popleft())
        found.last_at = envelope.get("ts", "")
        if self._shared.observe is not None:
            self._shared.observe("enqueue", stream, id, {"envelope": envelope, "partition": partition})
        headers = envelope.get("headers")
        priority = PRIORITIES.get(headers.get("priority", "normal"), 0.0) if headers else 0.0
        for group in groups:
            group.add(Item(id, envelope, partition, priority, now), now)
        return Enqueued(id)

    # --- subscribers -------------------------------------------------------------------------------------------------

    def subscribe(
        self, pattern: str, *, deliver: Callable[[Delivery], None], id: str | None = None, group: str = DEFAULT_GROUP
    ) -> str:
        """Take messages of a stream, or of all that a pattern with `*` fits, as soon as there is credit. Returns the id
        of the subscriber. The first subscriber of a stream names the group that gets what is queued there.
        """
        check_pattern(pattern)
        subscriber = Subscriber(id=id or f"s{next(self._shared.numbers)}", deliver=deliver, group=group)
        if subscriber.id in self._subscribers:
            raise InvalidEnvelope("there is a subscriber with this id", field="id")
        fits = compile_pattern(pattern) if "*" in pattern else None
        if fits is None:
            streams = [self._streams.get(pattern) or self._create(pattern)]
        else:
            streams = [stream for name, stream in self._streams.items() if fits(name)]
        for stream in streams:
            if group not in stream.groups and len(stream.groups) >= MOST_GROUPS:
                raise too_many_groups(stream.name)
        self._subscribers[subscriber.id] = subscriber
        if fits is not None:
            self._patterns.append((fits, subscriber))
        for stream in streams:
            self._join(stream, subscriber)
        return subscriber.id

    def unsubscribe(self, subscriber_id: str) -> None:
        """The subscriber is gone: what it holds is queued again at once, and counted as a failure."""
        subscriber = self._subscribers.pop(subscriber_id)
        subscriber.credit = 0
        self._patterns = [pair for pair in self._patterns if pair[1] is not subscriber]
        for group in subscriber.groups:
            group.leave(subscriber)
        now = self._now()
        for group, item in list(subscriber.in_flight.values()):
            group.give_back(item, now, counted=True, reason="its subscriber went away", event="lost")

    def grant(self, subscriber_id: str, credit: int) -> int:
        """Let the subscriber have so many messages more; returns its credit before anything is delivered."""
        subscriber = self._subscriber(subscriber_id)
        if type(credit) is not int or credit <= 0:
            raise InvalidEnvelope("must be a whole number above 0", field="credit")
        if subscriber.credit + credit > MOST_CREDIT:
            raise InvalidEnvelope(f"would be more than {MOST_CREDIT}", field="credit")
        subscriber.credit += credit
        granted, now = subscriber.credit, self._now()
        groups = subscriber.groups
        if len(groups) == 1:
            groups[0].notice_credit(subscriber, now)
            return granted
        groups.rotate(-1)  # the streams of a pattern take turns
        for group in list(groups):
            if subscriber.credit:
                group.notice_credit(subscriber, now)
        return granted

    def ack(self, subscriber_id: str, id: str, *, lease: str | None = None, stream: str | None = None) -> None:
        """The message is dealt with. Raises `LeaseConflict`, also when it was acked before."""
        group, item = held(self._subscriber(subscriber_id), id, lease=lease, stream=stream)
        group.ack(item, self._now())

    def nack(
        self,
        subscriber_id: str,
        id: str,
        *,
        meaning: Nack = "failed",
        delay_s: float = 0.0,
        reason: str = "",
        lease: str | None = None,
        stream: str | None = None,
    ) -> None:
        """`release`: given back unused; `failed`: tried in vain, which counts; `poison`: to the dead at once."""
        if not 0.0 <= delay_s <= LONGEST_DELAY_S:
            raise InvalidEnvelope(f"must be between 0 and {LONGEST_DELAY_S * 1000:.0f}", field="delayMs")
        group, item = held(self._subscriber(subscriber_id), id, lease=lease, stream=stream)
        group.counts.nacked += 1
        now = self._now()
        if meaning == "poison":
            group.bury(item, reason or "a subscriber called it poison", now)
        else:
            group.give_back(item, now, counted=meaning == "failed", delay_s=delay_s, reason=reason)

    def extend(
        self,
        subscriber_id: str,
        id: str,
        *,
        lease_s: float | None = None,
        lease: str | None = None,
        stream: str | None = None,
    ) -> float:
        """Hold the message longer, from now on; returns for how many seconds."""
        group, item = held(self._subscriber(subscriber_id), id, lease=lease, stream=stream)
        length_s = group.policy.lease_s if lease_s is None else lease_s
        if not 0.0 < length_s <= LONGEST_LEASE_S:
            raise InvalidEnvelope(f"must be between 1 and {LONGEST_LEASE_S * 1000:.0f}", field="extendMs")
        group.extend(item, length_s, self._now())
        return length_s

    # --- time --------------------------------------------------------------------------------------------------------

    @property
    def next_due(self) -> float | None:
        """When `run_due` has something to do, on the clock's monotonic scale."""
        while self._due and self._due[0][0] != self._due[0][2].due:
            heapq.heappop(self._due)  # moved meanwhile
        return self._due[0][0] if self._due else None

    def run_due(self) -> None:
        """Take back leases that have expired, and queue what was delayed until now."""
        now = self._now()
        while (due := self.next_due) is not None and due <= now:
            heapq.heappop(self._due)[2].expire(now)

    # --- operators ---------------------------------------------------------------------------------------------------

    def streams(self) -> list[str]:
        return sorted(self._streams)

    def pause(self, stream: str) -> None:
        """Deliver nothing; messages are still accepted."""
        for group in self._stream(stream).groups.values():
            group.paused = True

    def resume(self, stream: str) -> None:
        found = self._stream(stream)
        found.draining = False
        for group in found.groups.values():
            group.paused = False
            group.pump(self._now())

    def drain(self, stream: str) -> None:
        """Accept nothing; what is there is still delivered."""
        self._stream(stream).draining = True

    def remove_group(self, stream: str, group: str) -> int:
        """Forget a group that has no subscribers, and what it has not settled; returns how many messages that were."""
        groups = self._stream(stream).groups
        if (gone := groups.get(group)) is None:
            raise UnknownStream(f"{stream} has no group {group!r}; it has: {', '.join(groups)}")
        if gone.members or len(groups) == 1:
            problem = "has subscribers" if gone.members else "is the only one of the stream"
            raise GroupInUse(f"the group {group} {problem}")
        del groups[group]
        gone.due = NEVER
        if self._shared.observe is not None:
            self._shared.observe("group.remove", stream, "", {"group": group, "open": len(gone.items)})
        return len(gone.items) + len(gone.dead)

    def dead(self, stream: str) -> list[tuple[str, StoredMessage]]:
        """The dead messages with their group, the oldest first."""
        found = [(group.name, dead) for group in self._stream(stream).groups.values() for dead in group.dead.values()]
        return sorted(found, key=lambda pair: pair[1].died_at)

    def replay(self, stream: str, ids: Sequence[str] | None = None) -> int:
        """Queue dead messages again, all or those with these ids; returns how many."""
        now = self._now()
        chosen = list(self._chosen_dead(stream, ids))
        for group, dead in chosen:
            group.replay(dead, now)
        return len(chosen)

    def discard(self, stream: str, ids: Sequence[str] | None = None) -> int:
        """Forget dead messages; they stay counted."""
        chosen = list(self._chosen_dead(stream, ids))
        for group, dead in chosen:
            group.discard(dead)
        return len(chosen)

    def audit(self, stream: str) -> dict[str, Any]:
        """Where every accepted message is: queued, delayed, leased, acked, dead, discarded or dropped; by group."""
        groups = {name: group.audit() for name, group in self._stream(stream).groups.items()}
        return {"stream": stream, "balanced": all(group["balanced"] for group in groups.values()), "groups": groups}

    def stats(self, stream: str) -> dict[str, Any]:
        found, now = self._stream(stream), self._now()
        groups = list(found.groups.values())
        rates = [group.rates(now) for group in groups]
        latencies = sorted(latency for group in groups for latency in group.latencies)
        counts = [asdict(group.counts) for group in groups]
        members = [member for group in groups for member in group.members]
        return {
            "stream": stream,
            "depth": max(group.queued + group.delayed for group in groups),
            "delayed": max(group.delayed for group in groups),
            "inflight": sum(group.leased for group in groups),
            "dead": sum(len(group.dead) for group in groups),
            "rateIn": round(max(rate for rate, _ in rates), 3),
            "rateOut": round(sum(rate for _, rate in rates), 3),
            "latP50": percentile_ms(latencies, 0.50),
            "latP95": percentile_ms(latencies, 0.95),
            "lastTs": found.last_at,
            "paused": any(group.paused for group in groups),
            "draining": found.draining,
            "subscribers": len(members),
            "members": {group.name: len(group.members) for group in groups},
            "busy": sum(1 for member in members if not member.credit),  # present, and not ready for more
            "groups": [group.name for group in groups],
            "counts": {name: sum(count[name] for count in counts) for name in counts[0]},
        }

    # --- what outlives a process -------------------------------------------------------------------------------------

    def restore(self, name: str, stored: StoredStream) -> None:
        """Begin a stream with what was open when another run ended; nothing of it counts as a repeat."""
        stream = self._streams.get(name) or self._create(name)
        for id in stored.recent[max(0, len(stored.recent) - stream.policy.recent_ids) :]:
            stream.recent.add(id)
            stream.newest.append(id)
        if stored.groups:
            stream.groups.clear()
        now = self._now()
        for group_name, messages in stored.groups.items():
            group = stream.groups[group_name] = Group(name, group_name, stream.policy, self._shared)
            group.restore(messages, now)

    def open_messages(self) -> int:
        """How many messages are not settled, dead ones among them."""
        groups = (group for stream in self._streams.values() for group in stream.groups.values())
        return sum(len(group.items) + len(group.dead) for group in groups)

    def stored(self) -> Iterator[tuple[str, StoredStream]]:
        """What `restore` would need to begin again with the present state."""
        for stream in self.captured():
            groups = {group.name: group.stored() for group in stream.groups}
            yield stream.name, StoredStream(recent=stream.recent, groups=groups)

    def captured(self) -> list[CapturedStream]:
        """The same, before anything is put in order: to be read later, and by another thread."""
        return [
            CapturedStream(name, list(stream.newest), [group.captured() for group in stream.groups.values()])
            for name, stream in self._streams.items()
        ]

    # --- inside ------------------------------------------------------------------------------------------------------

    def _create(self, name: str) -> Stream:
        check_stream(name)
        if len(self._streams) >= self._most_streams:
            raise StreamClosed(f"there are {self._most_streams} streams, and no more are begun")
        policy = self._policy_of(name)
        stream = self._streams[name] = Stream(name, policy)
        stream.groups[DEFAULT_GROUP] = Group(name, DEFAULT_GROUP, policy, self._shared)
        for fits, subscriber in self._patterns:
            if fits(name):
                self._join(stream, subscriber)
        return stream

    def _join(self, stream: Stream, subscriber: Subscriber) -> None:
        group = stream.groups.get(subscriber.group)
        if group is None:
            default = stream.groups.get(DEFAULT_GROUP)
            untouched = default is not None and not default.counts.delivered and not default.members
            if default is not None and untouched:
                # Nobody takes part in the default group: what is queued there is for the first group that comes.
                group = stream.groups.pop(DEFAULT_GROUP)
                group.name = subscriber.group
            else:
                group = Group(stream.name, subscriber.group, stream.policy, self._shared)
                group.paused = any(other.paused for other in stream.groups.values())
            stream.groups[subscriber.group] = group
            if self._shared.observe is not None:
                details = {"group": group.name, "takes_over": bool(untouched)}
                self._shared.observe("group", stream.name, "", details)
        subscriber.groups.append(group)
        group.members.add(subscriber)
        if subscriber.credit:
            group.notice_credit(subscriber, self._now())

    def _chosen_dead(self, stream: str, ids: Sequence[str] | None) -> Iterator[tuple[Group, StoredMessage]]:
        groups = list(self._stream(stream).groups.values())
        for id in ids or ():
            if not any(id in group.dead for group in groups):
                raise LeaseConflict(id, "is not among the dead messages of this stream")
        for group in groups:
            for id in list(group.dead) if ids is None else [id for id in ids if id in group.dead]:
                yield group, group.dead[id]

    def _stream(self, name: str) -> Stream:
        if (found := self._streams.get(name)) is None:
            raise UnknownStream(f"there is no stream {name!r}: it begins with its first message or subscriber")
        return found

    def _subscriber(self, id: str) -> Subscriber:
        if (found := self._subscribers.get(id)) is None:
            raise LeaseConflict(id, "there is no such subscriber")
        return found

    def _schedule(self, due: float, group: Group) -> None:
        heapq.heappush(self._due, (due, next(self._shared.numbers), group))
        if self._on_due is not None and self._due[0][0] == due:
            self._on_due(due)


def too_many_groups(stream: str) -> OverQuota:
    return OverQuota(f"{stream} has {MOST_GROUPS} groups, and gets no more until an operator removes one")
