"""The streams behind the gateway, wherever they lie: `MemoryQueue` has them in this process, with a journal or without.

A gateway awaits every call, so that a queue may ask a server. `MemoryQueue` never waits but for its journal: between
two of its calls nothing else happens.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, NamedTuple, ParamSpec, Protocol

from butlers.clock import Clock
from butlers.courier.config import CourierConfig
from butlers.courier.core import Enqueued, QueueCore
from butlers.courier.errors import CourierError
from butlers.courier.group import DEFAULT_GROUP, Nack, Observe
from butlers.courier.journal import Journal
from butlers.courier.messages import Delivery, StoredMessage
from butlers.telemetry import get_logger

Inserted = Callable[[str, Mapping[str, Any]], None]  # stream, envelope
P = ParamSpec("P")
log = get_logger(__name__)


class AckOf(NamedTuple):
    """One message of an ack that names several."""

    id: str
    lease: str | None = None
    stream: str | None = None


class Queue(Protocol):
    """What `QueueCore` promises, each call awaited. Raises `CourierError`."""

    def running(self) -> AbstractAsyncContextManager[None]:
        """With what was there before, and with leases that expire, until the block ends."""

    async def enqueue(self, stream: str, envelope: Mapping[str, Any], *, partition: str | None = None) -> Enqueued: ...

    async def durable(self) -> None:
        """Returns when everything that was accepted before the call survives a crash of this process, if anything
        does. Raises `CourierError` when it does not.
        """

    async def subscribe(
        self, pattern: str, *, deliver: Callable[[Delivery], None], group: str = DEFAULT_GROUP
    ) -> str: ...

    async def unsubscribe(self, subscriber_id: str) -> None: ...

    async def grant(self, subscriber_id: str, credit: int) -> int: ...

    async def ack(
        self, subscriber_id: str, id: str, *, lease: str | None = None, stream: str | None = None
    ) -> None: ...

    async def ack_each(self, subscriber_id: str, acks: Sequence[AckOf]) -> list[CourierError]:
        """Ack as many as can be; returns why the others cannot."""

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
    ) -> None: ...

    async def extend(
        self,
        subscriber_id: str,
        id: str,
        *,
        lease_s: float | None = None,
        lease: str | None = None,
        stream: str | None = None,
    ) -> float: ...

    async def streams(self) -> list[str]: ...

    async def stats(self, stream: str) -> dict[str, Any]: ...

    async def audit(self, stream: str) -> dict[str, Any]: ...

    async def dead(self, stream: str) -> list[tuple[str, StoredMessage]]: ...

    async def replay(self, stream: str, ids: Sequence[str] | None = None) -> int: ...

    async def discard(self, stream: str, ids: Sequence[str] | None = None) -> int: ...

    async def remove_group(self, stream: str, group: str) -> int: ...

    async def pause(self, stream: str) -> None: ...

    async def resume(self, stream: str) -> None: ...

    async def drain(self, stream: str) -> None: ...


class MemoryQueue:
    """A `QueueCore` with its timers, and a journal where one is configured."""

    def __init__(
        self,
        config: CourierConfig,
        *,
        clock: Clock,
        epoch: str,
        inserted: Inserted,
        observe: Observe | None = None,
        journal: Journal | None = None,
    ) -> None:
        self._clock = clock
        self._inserted = inserted
        self._journal = journal
        self._sooner = asyncio.Event()
        self.core = QueueCore(
            clock=clock,
            policy_of=config.streams.policy_of,
            epoch=epoch,
            most_streams=config.streams.most,
            observe=both(observe, journal.observe if journal is not None else None),
            on_due=lambda _due: self._sooner.set(),
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """With what the journal has, and with leases that expire, until the block ends."""
        tasks = [asyncio.create_task(self._run_timers(), name="courier timers")]
        try:
            if self._journal is not None:
                log.info("the courier's journal was read", count=await self._journal.restore(self.core))
                tasks.append(asyncio.create_task(self._journal.run(self.core, self._clock), name="courier journal"))
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if self._journal is not None:
                await self._journal.close()

    async def _run_timers(self) -> None:
        while True:
            self.core.run_due()
            self._sooner.clear()
            due = self.core.next_due
            if due is None:
                await self._sooner.wait()
                continue
            woken = asyncio.create_task(self._sooner.wait())
            timer = asyncio.create_task(self._clock.sleep(max(0.0, due - self._clock.monotonic())))
            try:
                await asyncio.wait([woken, timer], return_when=asyncio.FIRST_COMPLETED)
            finally:
                woken.cancel()
                timer.cancel()

    async def enqueue(self, stream: str, envelope: Mapping[str, Any], *, partition: str | None = None) -> Enqueued:
        accepted = self.core.enqueue(stream, envelope, partition=partition)
        if not accepted.duplicate:
            self._inserted(stream, envelope)
        return accepted

    async def durable(self) -> None:
        if self._journal is not None:
            await self._journal.flush()

    async def subscribe(self, pattern: str, *, deliver: Callable[[Delivery], None], group: str = DEFAULT_GROUP) -> str:
        return self.core.subscribe(pattern, deliver=deliver, group=group)

    async def unsubscribe(self, subscriber_id: str) -> None:
        self.core.unsubscribe(subscriber_id)

    async def grant(self, subscriber_id: str, credit: int) -> int:
        return self.core.grant(subscriber_id, credit)

    async def ack(self, subscriber_id: str, id: str, *, lease: str | None = None, stream: str | None = None) -> None:
        self.core.ack(subscriber_id, id, lease=lease, stream=stream)

    async def ack_each(self, subscriber_id: str, acks: Sequence[AckOf]) -> list[CourierError]:
        refused: list[CourierError] = []
        for one in acks:
            try:
                self.core.ack(subscriber_id, one.id, lease=one.lease, stream=one.stream)
            except CourierError as error:
                refused.append(error)
        return refused

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
        self.core.nack(subscriber_id, id, meaning=meaning, delay_s=delay_s, reason=reason, lease=lease, stream=stream)

    async def extend(
        self,
        subscriber_id: str,
        id: str,
        *,
        lease_s: float | None = None,
        lease: str | None = None,
        stream: str | None = None,
    ) -> float:
        return self.core.extend(subscriber_id, id, lease_s=lease_s, lease=lease, stream=stream)

    async def streams(self) -> list[str]:
        return self.core.streams()

    async def stats(self, stream: str) -> dict[str, Any]:
        return self.core.stats(stream)

    async def audit(self, stream: str) -> dict[str, Any]:
        return self.core.audit(stream)

    async def dead(self, stream: str) -> list[tuple[str, StoredMessage]]:
        return self.core.dead(stream)

    async def replay(self, stream: str, ids: Sequence[str] | None = None) -> int:
        return self.core.replay(stream, ids)

    async def discard(self, stream: str, ids: Sequence[str] | None = None) -> int:
        return self.core.discard(stream, ids)

    async def remove_group(self, stream: str, group: str) -> int:
        return self.core.remove_group(stream, group)

    async def pause(self, stream: str) -> None:
        self.core.pause(stream)

    async def resume(self, stream: str) -> None:
        self.core.resume(stream)

    async def drain(self, stream: str) -> None:
        self.core.drain(stream)


def both(one: Callable[P, None] | None, other: Callable[P, None] | None) -> Any:
    """One that calls both, where there are two."""
    if one is None or other is None:
        return one or other

    def call(*values: P.args, **named: P.kwargs) -> None:
        one(*values, **named)
        other(*values, **named)

    return call
