"""Many small writes, few transactions.

A commit costs one flush to the disk whether it holds one row or five hundred. Writers that come while a commit is
under way therefore wait for it together, and become the next commit together:

    submit(a) ─┐
    submit(b) ─┼─> queue ──> commit([a, b, c]) ──> a, b and c get their results
    submit(c) ─┘

There is no timer: a lone writer is committed at once, and batches grow only because the disk is busy.

What holds:
- `submit` returns after the transaction that holds the item has committed, with the item's own result.
- Batches are handed over in the order of submission; with one lane they are also committed in that order.
- A submitter that goes away while its item still waits takes the item with it. Once the commit has begun, the item is
  written all the same. Nobody else notices either way.
- When a batch fails because of what is in it, its items are committed one by one, so only the bad ones fail. When it
  fails because the database is away, all fail at once. An item may thus be handed to `commit` twice, and a connection
  lost during COMMIT leaves it open whether the first time counted: writes must be idempotent (they carry keys).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass
from typing import Generic, TypeVar

from butlers.errors import InternalError, OverloadRejected, TargetUnavailable
from butlers.storage.database import is_away

_RETRY_AFTER_S = 1.0  # the hint for those that are refused
T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)  # two equal items are still two
class _Waiting(Generic[T, R]):
    item: T
    outcome: asyncio.Future[R]


class GroupCommitter(Generic[T, R]):
    """Turns concurrent submissions into batches."""

    def __init__(
        self,
        commit: Callable[[Sequence[T]], Awaitable[Sequence[R]]],  # one transaction; a result per item, in order
        *,
        max_batch: int = 500,  # items in one commit
        max_waiting: int = 10_000,  # items in the queue; more are refused
        lanes: int = 1,  # commits under way at the same time
    ) -> None:
        self._commit = commit
        self._max_batch = max_batch
        self._max_waiting = max_waiting
        self._max_lanes = lanes
        self._queue: deque[_Waiting[T, R]] = deque()
        self._lanes: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def waiting(self) -> int:
        """Items that no commit has taken yet."""
        return len(self._queue)

    async def submit(self, item: T) -> R:
        """Have an item committed; returns its result, or raises why it was not committed."""
        if self._closed:
            raise TargetUnavailable("no more writes are taken: the system is stopping")
        if len(self._queue) >= self._max_waiting:
            raise OverloadRejected(f"{self._max_waiting} writes are waiting already", retry_after=_RETRY_AFTER_S)
        outcome: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        waiting = _Waiting(item=item, outcome=outcome)
        self._queue.append(waiting)
        if len(self._lanes) < self._max_lanes:
            # A context of its own: the lane works for many submitters and must not carry the trace of the first.
            self._lanes.add(asyncio.get_running_loop().create_task(self._work(), context=Context()))
        try:
            return await outcome
        except asyncio.CancelledError:
            with suppress(ValueError):  # its commit has begun
                self._queue.remove(waiting)
            raise

    async def drain(self) -> None:
        """Wait until everything submitted so far, and meanwhile, is settled."""
        while self._lanes:
            await asyncio.wait(self._lanes)

    async def close(self) -> None:
        """Take no more items and settle the ones there are."""
        self._closed = True
        await self.drain()

    async def _work(self) -> None:
        lane = asyncio.current_task()
        batch: list[_Waiting[T, R]] = []
        try:
            while self._queue:
                batch = [self._queue.popleft() for _ in range(min(self._max_batch, len(self._queue)))]
                await self._settle(batch)
        except asyncio.CancelledError:
            for waiting in batch:
                waiting.outcome.cancel()
            raise
        finally:
            # In the same step in which the queue was found empty: a callback would come too late for a submitter
            # that runs in between, counts this lane as open, and then waits for ever.
            self._lanes = {other for other in self._lanes if other is not lane}

    async def _settle(self, batch: Sequence[_Waiting[T, R]]) -> None:
        try:
            results = await self._commit([waiting.item for waiting in batch])
            if len(results) != len(batch):
                raise InternalError(f"{len(results)} results came back for {len(batch)} items")
        except Exception as error:
            await self._settle_failure(batch, error)
        else:
            for waiting, result in zip(batch, results, strict=True):
                if not waiting.outcome.done():
                    waiting.outcome.set_result(result)

    async def _settle_failure(self, batch: Sequence[_Waiting[T, R]], error: Exception) -> None:
        blames_an_item = not (is_away(error) or isinstance(error, InternalError | TargetUnavailable))
        if len(batch) > 1 and blames_an_item:
            for waiting in batch:
                await self._settle([waiting])
            return
        for waiting in batch:
            if not waiting.outcome.done():
                waiting.outcome.set_exception(error)
