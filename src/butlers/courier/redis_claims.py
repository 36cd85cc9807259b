"""The claims of one gateway: messages from Redis for the credit of its subscribers.

A group is claimed for when it may have something ready and a subscriber has credit; one claim at a time, for as many
messages as credit was reserved for. What a gateway holds after a claim that got no answer is unknown to it: when Redis
is back it compares, and what it does not know to hold was never delivered and gets its place again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any

from pydantic_core import from_json, to_json

from butlers.clock import Clock
from butlers.courier.credit import Held, Meter, RemoteGroup, RemoteSubscriber
from butlers.courier.messages import Delivery
from butlers.courier.redis_store import MICROSECONDS, StoreFailed

MOST_CLAIMED = 128  # messages of one claim
Call = Callable[..., Awaitable[Any]]  # the name and the arguments of a call of the store -> its result
Report = Callable[[str, str, str, Mapping[str, Any]], None]  # event, stream, id, details
Lease = tuple[str, str, str]  # group, id, lease


class Claims:
    def __init__(
        self,
        call: Call,
        *,
        clock: Clock,
        report: Report,
        on_lease: Callable[[float], None],  # its length in seconds
        on_failure: Callable[[], None],
    ) -> None:
        self._call = call
        self._clock = clock
        self._report = report
        self._on_lease = on_lease
        self._on_failure = on_failure
        self._groups: dict[str, dict[str, RemoteGroup]] = {}  # by stream and number
        self._meters: dict[str, Meter] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.is_unsure = False  # a claim of unknown outcome may hold messages

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Work that goes on when the one who asked for it goes."""
        task = asyncio.create_task(work, name="courier claim")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def end(self) -> None:
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def meter(self, stream: str) -> Meter:
        return self._meters.get(stream) or self._meters.setdefault(stream, Meter())

    # --- subscribers -------------------------------------------------------------------------------------------------

    def join(self, subscriber: RemoteSubscriber, stream: str, number: str) -> None:
        groups = self._groups.setdefault(stream, {})
        group = groups.get(number) or groups.setdefault(number, RemoteGroup(number, stream, subscriber.group))
        group.members.add(subscriber)
        subscriber.groups[stream] = group
        if subscriber.credit:
            group.notice_credit(subscriber)
            self._claim_when_ready(group)

    def leave(self, subscriber: RemoteSubscriber) -> None:
        for group in subscriber.groups.values():
            group.leave(subscriber)
            if not group.members and (groups := self._groups.get(group.stream)) is not None:
                groups.pop(group.number, None)
                if not groups:
                    del self._groups[group.stream]

    def notice_credit(self, subscriber: RemoteSubscriber) -> None:
        """The subscriber has credit, for any of its streams."""
        if subscriber.credit:
            for group in subscriber.groups.values():
                group.notice_credit(subscriber)
                self._claim_when_ready(group)

    def busy(self, stream: str) -> int:
        """Subscribers of this gateway that are present and not ready for more."""
        members = {member for group in self._groups.get(stream, {}).values() for member in group.members}
        return sum(1 for member in members if not member.granted)

    # --- what may be ready -------------------------------------------------------------------------------------------

    def waiting_groups(self) -> list[str]:
        """Groups whose subscribers have credit, and for which nothing is under way."""
        groups = (group for groups in self._groups.values() for group in groups.values())
        return [group.number for group in groups if group.takers and not group.is_claiming]

    def wake(self, stream: str, numbers: set[str] | None = None) -> None:
        """Something may be ready, in all groups of the stream or in these."""
        for group in self._groups.get(stream, {}).values():
            if numbers is None or group.number in numbers:
                group.may_be_ready = True
                self._claim_when_ready(group)

    def wake_all(self, numbers: set[str] | None = None) -> None:
        for stream in self._groups:
            self.wake(stream, numbers)

    # --- claims ------------------------------------------------------------------------------------------------------

    def _claim_when_ready(self, group: RemoteGroup) -> None:
        if group.may_be_ready and group.takers and not group.is_claiming:
            group.is_claiming = True
            self.start(self._claim(group))

    async def _claim(self, group: RemoteGroup) -> None:
        """Until nothing is ready, or nobody has credit. What fails is tried again when Redis is back."""
        try:
            while group.may_be_ready and (reserved := group.reserve(MOST_CLAIMED)):
                group.may_be_ready = False
                try:
                    ready, lease, claimed = await self._call("claim", group.number, len(reserved))
                except BaseException:
                    group.may_be_ready = self.is_unsure = True
                    group.give_back(reserved)
                    raise
                group.may_be_ready = group.may_be_ready or ready > 0
                self._deliver_claimed(group, reserved, claimed, lease / MICROSECONDS)
        except StoreFailed:
            self._on_failure()
        finally:
            group.is_claiming = False

    def _deliver_claimed(
        self, group: RemoteGroup, reserved: list[RemoteSubscriber], claimed: list[Any], lease_s: float
    ) -> None:
        """Each message to the subscriber whose credit was reserved for it, or to another one when that is gone."""
        unused = reserved[len(claimed) :]
        group.give_back(unused)
        left: list[Lease] = []
        for subscriber, message in zip(reserved, claimed, strict=False):
            taker = subscriber if not subscriber.is_gone else next(iter(group.reserve(1)), None)
            if taker is None:
                left.append((group.number, message[0], message[2]))
            else:
                self._deliver(group, taker, message, lease_s)
        if claimed:
            self._on_lease(lease_s)
        if left:
            self.start(self._put_back(left))
        for subscriber in dict.fromkeys(unused):
            self.notice_credit(subscriber)  # other streams may have had something while its credit was reserved

    def _deliver(self, group: RemoteGroup, taker: RemoteSubscriber, message: Sequence[Any], lease_s: float) -> None:
        id, payload, lease, attempt, latency = message
        now, meter = self._clock.monotonic(), self.meter(group.stream)
        taker.hold(Held(group.stream, group.number, id, lease, now + lease_s))
        meter.count(now, delivered=1)
        if attempt == 1:
            meter.latencies.append(latency / MICROSECONDS)
        self._report("deliver", group.stream, id, {"group": group.name, "attempt": attempt, "subscriber": taker.id})
        taker.deliver(Delivery(group.stream, id, from_json(payload), lease, attempt))

    async def _put_back(self, leases: list[Lease]) -> None:
        try:
            await self._call("put_back", to_json(leases))
        except StoreFailed:
            self.is_unsure = True
            self._on_failure()

    async def return_unknown(self, subscribers: Mapping[str, RemoteSubscriber]) -> None:
        """Give back what Redis thinks this gateway holds, and no subscriber does."""
        stored: Iterable[Lease] = await self._call("held")
        held = {lease for subscriber in subscribers.values() for lease in subscriber.held}
        unknown = [one for one in stored if one[2] not in held]
        for first in range(0, len(unknown), MOST_CLAIMED):
            await self._call("put_back", to_json(unknown[first : first + MOST_CLAIMED]))
        self.is_unsure = False
