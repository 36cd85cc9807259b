"""A subscriber of the system's own: deals with the messages of one stream, as long as the system runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

from butlers.courier.errors import CourierError, LeaseConflict
from butlers.courier.messages import Delivery
from butlers.courier.service import Courier
from butlers.errors import ClassifiedError
from butlers.telemetry import get_logger

GROUP = "switchboard"
CREDIT = 16
RETRY_S = 5.0  # before a message that failed comes again
PAUSE_S = 1.0  # before the reader subscribes again
log = get_logger("butlers.courier")

DealWith = Callable[[str, Mapping[str, Any]], Awaitable[None]]  # butler, envelope


class Poison(Exception):
    """A message that no repeat makes better."""


class StreamReader:
    """`workers` messages are dealt with at a time, one after the other by default; those that `at_once` names do not
    wait for their turn.
    """

    def __init__(
        self,
        courier: Courier,
        stream: str,
        deal_with: DealWith,
        *,
        workers: int = 1,
        at_once: Callable[[Mapping[str, Any]], bool] = lambda _envelope: False,
    ) -> None:
        self._courier = courier
        self._queue = courier.queue
        self._stream = stream
        self._butler = stream.split("/")[1]
        self._deal_with = deal_with
        self._turns = asyncio.Semaphore(workers)
        self._at_once = at_once
        self._work: set[asyncio.Task[None]] = set()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=f"courier {self._stream}")

    async def stop(self) -> None:
        """What is under way is given back."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        """Until cancelled; a store that is away for a while ends nothing."""
        while True:
            try:
                await self._read()
            except CourierError as error:
                log.warning("a stream is read again", butler=self._butler, error=error)
            except Exception as error:
                log.error("a stream is read again", butler=self._butler, error=error)
            await self._courier.clock.sleep(PAUSE_S)

    async def _read(self) -> None:
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def deliver(delivery: Delivery) -> None:
            task = asyncio.create_task(self._settle(me, delivery), name=f"courier {self._stream} {delivery.id}")
            self._work.add(task)
            task.add_done_callback(done)

        def done(task: asyncio.Task[None]) -> None:
            self._work.discard(task)
            if not task.cancelled() and (error := task.exception()) is not None and not ended.done():
                ended.set_exception(error)

        me = await self._queue.subscribe(self._stream, deliver=deliver, group=GROUP)
        try:
            await self._queue.grant(me, CREDIT)
            await ended
        finally:
            for task in list(self._work):
                task.cancel()
            await asyncio.gather(*self._work, return_exceptions=True)
            with suppress(CourierError):
                await self._queue.unsubscribe(me)

    async def _settle(self, me: str, delivery: Delivery) -> None:
        holding = asyncio.create_task(self._hold(me, delivery))
        try:
            if self._at_once(delivery.envelope):
                await self._outcome(me, delivery)
            else:
                async with self._turns:
                    await self._outcome(me, delivery)
        except LeaseConflict as error:  # it is delivered again
            log.warning("a message of a butler is dealt with again", butler=self._butler, error=error)
        finally:
            holding.cancel()
        await self._queue.grant(me, 1)

    async def _outcome(self, me: str, delivery: Delivery) -> None:
        try:
            await self._deal_with(self._butler, delivery.envelope)
        except Poison as error:
            await self._queue.nack(me, delivery.id, meaning="poison", reason=str(error), lease=delivery.lease)
        except Exception as error:
            if not isinstance(error, ClassifiedError | CourierError):
                log.error("a message of a butler failed", butler=self._butler, error=error)
            reason = f"{type(error).__name__}: {error}"[:512]
            await self._queue.nack(me, delivery.id, delay_s=RETRY_S, reason=reason, lease=delivery.lease)
        else:
            await self._queue.ack(me, delivery.id, lease=delivery.lease)

    async def _hold(self, me: str, delivery: Delivery) -> None:
        """Work may take longer than a lease, and wait for its turn."""
        lease_s = PAUSE_S
        while True:
            try:
                lease_s = await self._queue.extend(me, delivery.id, lease=delivery.lease)
            except LeaseConflict:
                return
            except CourierError:  # the store is away; the lease may outlast that
                lease_s = PAUSE_S
            await self._courier.clock.sleep(lease_s / 3)
