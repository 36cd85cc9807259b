"""The streams in Redis, for several gateways that share them.

    subscriber ──grant──> credit here ──claim──> Redis ──> deliver       a script for every change (redis_calls.lua)
    every gateway <── the log of changes <── whatever makes a message ready, at any gateway

Redis has the messages, their leases and their counts. A gateway has its subscribers: who they are, their credit and
their turns (`credit`). It claims as many messages as it has reserved credit for (`redis_claims`), when something may be
ready: after a call of its own, when the log says so, and once a second in any case (`redis_watch`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import count
from typing import Any

from pydantic_core import from_json, to_json

from butlers.clock import Clock
from butlers.courier.config import CourierConfig
from butlers.courier.core import LONGEST_DELAY_S, LONGEST_LEASE_S, MOST_CREDIT, PRIORITIES, Enqueued, too_many_groups
from butlers.courier.credit import RemoteSubscriber
from butlers.courier.errors import (
    CourierError,
    GroupInUse,
    InvalidEnvelope,
    LeaseConflict,
    StreamClosed,
    StreamFull,
    UnknownStream,
)
from butlers.courier.group import DEFAULT_GROUP, Nack, Observe
from butlers.courier.messages import Delivery, StoredMessage
from butlers.courier.names import check_pattern, check_stream, compile_pattern
from butlers.courier.queue import AckOf, Inserted
from butlers.courier.rates import retry_after
from butlers.courier.redis_claims import Claims
from butlers.courier.redis_stats import audit_of, stats_of
from butlers.courier.redis_store import MICROSECONDS, RedisStore, StoreFailed
from butlers.courier.redis_watch import Watch

MOST_GIVEN_BACK = 500  # leases of one call


class RedisQueue:
    """A `Queue` whose messages lie in Redis. Belongs to one event loop; `running` connects it."""

    def __init__(
        self,
        config: CourierConfig,
        *,
        clock: Clock,
        epoch: str,
        inserted: Inserted,
        is_shown: Callable[[str], bool],
        observe: Observe | None = None,
    ) -> None:
        self._config = config.streams
        self._clock = clock
        self._epoch = epoch
        self._is_shown = is_shown
        self._observe = observe
        self._store = RedisStore(config.store or "", prefix=config.store_prefix, gateway=epoch)
        self._watch = Watch(self._store, self, clock=clock, gateway=epoch, inserted=inserted)
        self.claims = Claims(
            self.call,
            clock=clock,
            report=self._report,
            on_lease=self._watch.look_in,
            on_failure=self._watch.report_failure,
        )
        self._numbers = count(1)
        self._subscribers: dict[str, RemoteSubscriber] = {}
        self._patterns: list[tuple[Callable[[str], bool], RemoteSubscriber]] = []
        self._policies: dict[str, str] = {}
        self._owed: list[tuple[Any, ...]] = []  # calls for subscribers that went while Redis was away

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Connected, followed and alive to other gateways, until the block ends."""
        async with self._store.connected(), self._watch.running():
            try:
                yield
            finally:
                await self.claims.end()
                with suppress(CourierError):
                    while (await self._store.call("depart")).result:
                        pass

    # --- producers ---------------------------------------------------------------------------------------------------

    async def enqueue(self, stream: str, envelope: Mapping[str, Any], *, partition: str | None = None) -> Enqueued:
        id: str = envelope["id"]
        priority = PRIORITIES.get((envelope.get("headers") or {}).get("priority", "normal"), 0.0)
        shown = self._is_shown(stream)
        policy, most = self._policy(stream), self._config.most
        ts, payload = envelope.get("ts", ""), to_json(envelope)
        result = await self.call(
            "enqueue", stream, policy, most, id, payload, partition or "", priority, ts, int(shown)
        )
        match result[0]:
            case "duplicate":
                return Enqueued(id, duplicate=True)
            case "closed":
                raise StreamClosed(f"the stream {stream} is being drained and takes no messages")
            case "most":
                raise self._too_many_streams()
            case "full":
                _, out = self.claims.meter(stream).rates(self._clock.monotonic())
                wait = retry_after(self._config.policy_of(stream).max_depth, out)
                raise StreamFull(stream, depth=result[1], retry_after=wait)
        self.claims.meter(stream).count(self._clock.monotonic(), accepted=1)
        self._report("enqueue", stream, id, {"envelope": envelope, "partition": partition})
        if shown:
            self._watch.show(stream, result[1], envelope)
        return Enqueued(id)

    async def durable(self) -> None:
        """What Redis has answered is as safe as its persistence is configured to be."""

    # --- subscribers -------------------------------------------------------------------------------------------------

    async def subscribe(self, pattern: str, *, deliver: Callable[[Delivery], None], group: str = DEFAULT_GROUP) -> str:
        check_pattern(pattern)
        id = f"{self._epoch}-s{next(self._numbers)}"
        subscriber = RemoteSubscriber(id, pattern, group, deliver)
        if "*" in pattern:  # before Redis knows it: no stream begins unseen in between
            self._patterns.append((compile_pattern(pattern), subscriber))
        try:
            await self._enter(subscriber)
        except BaseException:  # Redis may have taken it in, for streams that are not known here
            subscriber.is_gone = True
            self._forget_pattern(subscriber)
            self.claims.start(self._leave("unsubscribe", subscriber.id, "[]", ""))
            raise
        self._subscribers[subscriber.id] = subscriber
        return subscriber.id

    async def unsubscribe(self, subscriber_id: str) -> None:
        subscriber = self._subscribers.pop(subscriber_id)
        subscriber.is_gone, subscriber.credit = True, 0
        self._forget_pattern(subscriber)
        self.claims.leave(subscriber)
        # Also when the task of the socket is cancelled: others wait for what it held.
        await asyncio.shield(self.claims.start(self._give_back(subscriber)))

    async def grant(self, subscriber_id: str, credit: int) -> int:
        subscriber = self._subscriber(subscriber_id)
        if type(credit) is not int or credit <= 0:
            raise InvalidEnvelope("must be a whole number above 0", field="credit")
        if subscriber.granted + credit > MOST_CREDIT:
            raise InvalidEnvelope(f"would be more than {MOST_CREDIT}", field="credit")
        subscriber.credit += credit
        granted = subscriber.granted
        groups = list(subscriber.groups.items())
        if len(groups) > 1:  # the streams of a pattern take turns
            subscriber.groups = dict([*groups[1:], groups[0]])
        self.claims.notice_credit(subscriber)
        return granted

    async def ack(self, subscriber_id: str, id: str, *, lease: str | None = None, stream: str | None = None) -> None:
        await self._settle("ack", self._subscriber(subscriber_id), id, lease, stream)

    async def ack_each(self, subscriber_id: str, acks: Sequence[AckOf]) -> list[CourierError]:
        calls = [self.ack(subscriber_id, one.id, lease=one.lease, stream=one.stream) for one in acks]
        results = await asyncio.gather(*calls, return_exceptions=True)  # they share a pipeline
        unexpected = [one for one in results if one is not None and not isinstance(one, CourierError)]
        if unexpected:
            raise unexpected[0]
        return [one for one in results if isinstance(one, CourierError)]

    async def nack(
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
        if not 0.0 <= delay_s <= LONGEST_DELAY_S:
            raise InvalidEnvelope(f"must be between 0 and {LONGEST_DELAY_S * 1000:.0f}", field="delayMs")
        delay = round(delay_s * MICROSECONDS)
        await self._settle("nack", self._subscriber(subscriber_id), id, lease, stream, meaning, delay, reason)
        if delay:
            self._watch.look_in(delay_s)

    async def extend(
        self,
        subscriber_id: str,
        id: str,
        *,
        lease_s: float | None = None,
        lease: str | None = None,
        stream: str | None = None,
    ) -> float:
        if lease_s is not None and not 0.0 < lease_s <= LONGEST_LEASE_S:
            raise InvalidEnvelope(f"must be between 1 and {LONGEST_LEASE_S * 1000:.0f}", field="extendMs")
        subscriber = self._subscriber(subscriber_id)
        held = subscriber.find(id, lease=lease, stream=stream)
        length = "" if lease_s is None else round(lease_s * MICROSECONDS)
        result = await self.call("extend", held.group, held.id, held.lease, length)
        if result == "conflict":
            subscriber.release(held)
            raise _lost(id)
        length_s: float = result / MICROSECONDS
        subscriber.extend(held, self._clock.monotonic() + length_s)
        self._watch.look_in(length_s)
        return length_s

    # --- operators ---------------------------------------------------------------------------------------------------

    async def streams(self) -> list[str]:
        return sorted(await self.call("streams"))

    async def stats(self, stream: str) -> dict[str, Any]:
        found = await self._known(stream, "stats", stream)
        now, busy = self._clock.monotonic(), self.claims.busy(stream)
        return stats_of(stream, found, self.claims.meter(stream), now=now, busy=busy)

    async def audit(self, stream: str) -> dict[str, Any]:
        return audit_of(stream, await self._known(stream, "stats", stream))

    async def dead(self, stream: str) -> list[tuple[str, StoredMessage]]:
        now, found = self._clock.monotonic(), await self._known(stream, "dead", stream)
        dead = [
            (
                group,
                StoredMessage(
                    id=id,
                    envelope=from_json(payload),
                    partition=partition,
                    priority=priority,
                    reason=reason,
                    attempts=attempts,
                    failures=failures,
                    died_at=now - age / MICROSECONDS,
                ),
            )
            for group, id, payload, partition, priority, reason, attempts, failures, age in found
        ]
        return sorted(dead, key=lambda pair: pair[1].died_at)

    async def replay(self, stream: str, ids: Sequence[str] | None = None) -> int:
        return await self._settle_dead(stream, "replay", ids)

    async def discard(self, stream: str, ids: Sequence[str] | None = None) -> int:
        return await self._settle_dead(stream, "discard", ids)

    async def remove_group(self, stream: str, group: str) -> int:
        removed = await self._known(stream, "remove_group", stream, group)
        if removed == "unknown":
            raise UnknownStream(f"{stream} has no group {group!r}")
        if removed in ("members", "only"):
            problem = "has subscribers" if removed == "members" else "is the only one of the stream"
            raise GroupInUse(f"the group {group} {problem}")
        return int(removed)

    async def pause(self, stream: str) -> None:
        await self._known(stream, "steer", stream, "pause")

    async def resume(self, stream: str) -> None:
        await self._known(stream, "steer", stream, "resume")

    async def drain(self, stream: str) -> None:
        await self._known(stream, "steer", stream, "drain")

    # --- what the watch asks for -------------------------------------------------------------------------------------

    async def notice_stream(self, stream: str) -> None:
        """A stream that may be new: subscribers by pattern take part in it."""
        for fits, subscriber in list(self._patterns):
            if stream not in subscriber.groups and fits(stream) and not subscriber.is_gone:
                joined = await self.call("join", stream, subscriber.group, subscriber.id)
                if joined and subscriber.is_gone:
                    await self._leave("unsubscribe", subscriber.id, "[]", to_json([joined[1]]))
                elif joined:
                    self.claims.join(subscriber, *joined)

    async def recover(self, *, is_new: bool, is_known: bool) -> None:
        """Redis is back. `is_new`: without what it had. Not `is_known`: the others took this gateway for dead. In both
        cases every subscriber takes part anew; what it held is for others.
        """
        if is_new or not is_known:
            self.claims.is_unsure = True
            for subscriber in list(self._subscribers.values()):
                self.claims.leave(subscriber)
                subscriber.forget()
                await self._enter(subscriber)
        while self._owed:
            await self.call(*self._owed[0])
            self._owed.pop(0)
        if self.claims.is_unsure:
            await self.claims.return_unknown(self._subscribers)

    def forget_expired(self, grace_s: float) -> None:
        """What the store has surely given to others is not held here."""
        before = self._clock.monotonic() - grace_s
        for subscriber in self._subscribers.values():
            for held in [held for held in subscriber.held.values() if held.expires_at < before]:
                subscriber.release(held)

    # --- inside ------------------------------------------------------------------------------------------------------

    async def call(self, name: str, *arguments: Any) -> Any:
        reply = await self._store.call(name, *arguments)
        for event, stream, group, id, reason in reply.events:
            self._report(event, stream, id, {"group": group, "reason": reason})
        for stream in reply.touched:
            self.claims.wake(stream)
        return reply.result

    async def _known(self, stream: str, name: str, *arguments: Any) -> Any:
        result = await self.call(name, *arguments)
        if result is None:
            raise UnknownStream(f"there is no stream {stream!r}: it begins with its first message or subscriber")
        return result

    async def _settle(
        self, name: str, subscriber: RemoteSubscriber, id: str, lease: str | None, stream: str | None, *more: Any
    ) -> None:
        held = subscriber.find(id, lease=lease, stream=stream)
        result = await self.call(name, held.group, held.id, held.lease, *more)
        subscriber.release(held)
        if result == "conflict":
            raise _lost(id)
        if name == "ack":
            self._report("ack", held.stream, id, {"group": subscriber.group})

    async def _settle_dead(self, stream: str, what: str, ids: Sequence[str] | None) -> int:
        chosen = "" if ids is None else to_json(list(ids))
        result = await self._known(stream, "settle_dead", stream, what, chosen)
        if isinstance(result, str):
            raise LeaseConflict(result, "is not among the dead messages of this stream")
        settled: int = result
        return settled

    async def _enter(self, subscriber: RemoteSubscriber) -> None:
        policy = "" if "*" in subscriber.pattern else self._policy(subscriber.pattern)
        joined = await self.call(
            "subscribe", subscriber.id, subscriber.pattern, subscriber.group, policy, self._config.most
        )
        if joined == "most":
            raise self._too_many_streams()
        if joined == "groups":
            raise too_many_groups(subscriber.pattern)
        for stream, number in joined:
            self.claims.join(subscriber, stream, number)

    def _forget_pattern(self, subscriber: RemoteSubscriber) -> None:
        self._patterns = [pair for pair in self._patterns if pair[1] is not subscriber]

    async def _give_back(self, subscriber: RemoteSubscriber) -> None:
        leases = [(one.group, one.id, one.lease) for one in subscriber.held.values()]
        for first in range(0, len(leases), MOST_GIVEN_BACK):
            await self._leave("unsubscribe", subscriber.id, to_json(leases[first : first + MOST_GIVEN_BACK]), "[]")
        numbers = to_json([group.number for group in subscriber.groups.values()])
        await self._leave("unsubscribe", subscriber.id, "[]", numbers)

    async def _leave(self, *call: Any) -> None:
        """A call that is owed to Redis when it is away."""
        try:
            await self.call(*call)
        except StoreFailed:
            self._owed.append(call)

    def _subscriber(self, id: str) -> RemoteSubscriber:
        if (found := self._subscribers.get(id)) is None:
            raise LeaseConflict(id, "there is no such subscriber")
        return found

    def _policy(self, stream: str) -> str:
        if stream not in self._policies:
            check_stream(stream)
            policy = self._config.policy_of(stream)
            rules = {
                "lease": round(policy.lease_s * MICROSECONDS),
                "depth": policy.max_depth,
                "deliveries": policy.max_deliveries,
                "overflow": policy.overflow.value,
                "recent": policy.recent_ids,
                "ageing": round(policy.ageing_s * MICROSECONDS),
                "dead": policy.max_dead,
            }
            self._policies[stream] = to_json(rules).decode()
        return self._policies[stream]

    def _too_many_streams(self) -> StreamClosed:
        return StreamClosed(f"there are {self._config.most} streams, and no more are begun")

    def _report(self, event: str, stream: str, id: str, details: Mapping[str, Any]) -> None:
        if self._observe is not None:
            self._observe(event, stream, id, details)


def _lost(id: str) -> LeaseConflict:
    return LeaseConflict(id, "the lease is not held any more: it expired, or the message was settled")
