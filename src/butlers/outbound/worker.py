"""Takes messages from the queue when they are due, and brings each one step further (`delivery.py`).

A worker may die at any moment: what it held comes back when its lease runs out. Any number of workers in any number
of processes share one queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from weakref import WeakValueDictionary

from butlers.clock import Clock
from butlers.contracts.message_state import MessageState
from butlers.errors import LeaseLost, ValidationError
from butlers.outbound.delivery import Dead, Done, Later, MessageDelivery, Ports, Step, dead_letter
from butlers.outbound.postgres_records import PostgresRecords
from butlers.outbound.queue import LeasedMessage, QueueAdapter
from butlers.outbound.records import Records, Work
from butlers.outbound.service import queue_message
from butlers.telemetry import get_logger

log = get_logger("butlers.outbound")

MOST_EXPIRATIONS = 5  # workers that died over one message
SLOTS = 32  # messages that one worker has in hand
AHEAD = timedelta(minutes=10)  # planned messages are in the queue so long before they are due
LOST_AFTER = timedelta(minutes=15)  # that a message stays untouched in the queue although it is due
_LOOK_AGAIN_S = 1.0  # between looks at the queue when nothing wakes the worker
_BATCH = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Feeder:
    """Puts into the queue what is stored and not there: rows of an audience plan, and what a crash left behind."""

    records: Records
    queue: QueueAdapter
    clock: Clock

    async def run_once(self) -> int:
        """How many entries are new in the queue."""
        now, added = self.clock.now(), 0
        while planned := await self.records.planned(before=now + AHEAD, limit=_BATCH):
            added += await self._enqueue(planned)
        return added + await self._enqueue(await self.records.overdue(untouched_since=now - LOST_AFTER, limit=_BATCH))

    async def refill(self, records: PostgresRecords) -> None:
        """Put everything that is open into a queue that forgot it when its process ended."""
        last = ""
        while found := await records.in_queue(after=last, limit=_BATCH):
            await self._enqueue(found)
            last = found[-1].key

    async def feed(self, keys: Sequence[str]) -> None:
        """Put these into the queue, if they are planned."""
        found = (await self.records.load(keys)).values()
        await self._enqueue([work for work in found if work.state is MessageState.PLANNED])

    async def _enqueue(self, works: Sequence[Work]) -> int:
        if not works:
            return 0
        try:
            new = await self.queue.enqueue([queue_message(work) for work in works])
        except ValidationError as error:
            if len(works) > 1:  # one of them must not hold up the others
                return sum([await self._enqueue([work]) for work in works])
            log.error("queue refused a message for good", error=error, dedupe_key=works[0].key)
            changes = {"reason": "queue-error", "detail": error.message}
            await self.records.move(works[0], MessageState.DEAD_LETTERED, now=self.clock.now(), **changes)
            return 0
        await self.records.mark_queued([work.key for work in works], now=self.clock.now())
        return len(new)


class Worker:
    """Works on what one queue has; any number of them in any number of processes."""

    def __init__(self, *, queue: QueueAdapter, ports: Ports, name: str) -> None:
        self._queue = queue
        self._ports = ports
        self._clock = ports.clock
        self._name = name
        self._awake = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closing = False
        self._lines: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # by recipient

    def wake(self) -> None:
        self._awake.set()

    async def run(self) -> None:
        """Work until cancelled."""
        try:
            while True:
                self._awake.clear()
                if self._is_closing or not await self._start_due():
                    await self._wait()
        finally:
            for task in self._tasks:
                task.cancel()

    async def close(self, grace_s: float) -> None:
        """Take nothing more, and finish what is in hand if that does not take longer."""
        self._is_closing = True
        self._awake.set()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=grace_s)

    async def run_once(self) -> int:
        """Bring everything that is due one step further; how many that were."""
        leased = await self._queue.dequeue(now=self._clock.now(), limit=SLOTS, worker=self._name)
        await asyncio.gather(*(self._work_on(entry) for entry in leased))
        return len(leased)

    async def _start_due(self) -> bool:
        """Whether there may be more at once."""
        room = SLOTS - len(self._tasks)
        if room <= 0:
            await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
            return True
        leased = await self._queue.dequeue(now=self._clock.now(), limit=room, worker=self._name)
        for entry in leased:
            task = asyncio.create_task(self._work_on(entry), name=f"outbound {entry.message.key}")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return len(leased) == room

    async def _wait(self) -> None:
        sleeping = asyncio.create_task(self._clock.sleep(_LOOK_AGAIN_S))
        waking = asyncio.create_task(self._awake.wait())
        try:
            await asyncio.wait({sleeping, waking}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            sleeping.cancel()
            waking.cancel()

    async def _work_on(self, leased: LeasedMessage) -> None:
        """One after another for each recipient, in the order in which the queue handed them out."""
        recipient = str(leased.message.payload["recipient_id"])
        async with self._lines.setdefault(recipient, asyncio.Lock()):
            await self._work_alone(leased)

    async def _work_alone(self, leased: LeasedMessage) -> None:
        try:
            await self._settle(leased, await self._step(leased))
        except LeaseLost:
            log.warning("outbound lease was lost", dedupe_key=leased.message.key)
        except Exception as error:
            # The lease runs out, and the entry comes back; after several times it is a dead letter.
            log.error("outbound message failed unexpectedly", error=error, dedupe_key=leased.message.key)

    async def _settle(self, leased: LeasedMessage, step: Step) -> None:
        now = self._clock.now()
        match step:
            case Done():
                await self._queue.ack(leased)
            case Later(at=at, is_failure=is_failure):
                await self._queue.nack(leased, now=now, scheduled_at=max(at, now), counted=is_failure)
            case Dead(reason=reason):
                await self._queue.dead_letter(leased, reason)

    async def _step(self, leased: LeasedMessage) -> Step:
        work = (await self._ports.records.load([leased.message.key])).get(leased.message.key)
        if work is None or work.is_ended:
            return Done()
        if work.state is MessageState.PLANNED:  # its service has not come to it yet
            await self._ports.records.mark_queued([work.key], now=self._clock.now())
            return Later(self._clock.now())
        if leased.expirations >= MOST_EXPIRATIONS:
            return await dead_letter(self._ports, work, "quarantined", f"{leased.expirations} workers died over it")
        return await MessageDelivery(self._ports, work, leased.message.payload).take_step()
