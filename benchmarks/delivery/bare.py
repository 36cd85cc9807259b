"""The smallest honest durable loop: insert, claim, send nothing, complete; each step a transaction of its own.

It validates nothing, knows no recipient, no order, no retry and no doubt: the floor that any delivery plane on the
same database stands on.
"""

from __future__ import annotations

import asyncio

from butlers.storage.database import Database

CREATE = """
CREATE TABLE IF NOT EXISTS bare_queue (
    id bigserial PRIMARY KEY, target text NOT NULL, message text NOT NULL, status text NOT NULL DEFAULT 'pending',
    created_at timestamptz NOT NULL DEFAULT now(), completed_at timestamptz)
"""
INDEX = "CREATE INDEX IF NOT EXISTS bare_due ON bare_queue (id) WHERE status = 'pending'"
INSERT = "INSERT INTO bare_queue (target, message) VALUES ($1, $2) RETURNING id"
CLAIM = """
UPDATE bare_queue SET status = 'in_progress'
WHERE id = (SELECT id FROM bare_queue WHERE status = 'pending' ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED)
RETURNING id
"""
COMPLETE = "UPDATE bare_queue SET status = 'delivered', completed_at = now() WHERE id = $1"


class BareLoop:
    def __init__(self, database: Database, *, workers: int) -> None:
        self._database = database
        self._workers = workers
        self._inserted = asyncio.Semaphore(0)
        self._waiting: dict[int, asyncio.Event] = {}
        self._done: set[int] = set()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        await self._database.execute(CREATE)
        await self._database.execute(INDEX)
        self._tasks = [asyncio.create_task(self._work()) for _ in range(self._workers)]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def submit(self, number: int) -> None:
        """Returns when the message is completed."""
        row: int = await self._database.fetchval(INSERT, str(number), f"message {number}")
        self._inserted.release()
        if row in self._done:
            self._done.discard(row)
            return
        self._waiting[row] = asyncio.Event()
        await self._waiting[row].wait()

    async def _work(self) -> None:
        while True:
            await self._inserted.acquire()
            row: int | None = await self._database.fetchval(CLAIM)
            if row is None:  # another transaction's row is locked and not yet visible as claimed
                self._inserted.release()
                continue
            await self._database.execute(COMPLETE, row)
            waiter = self._waiting.pop(row, None)
            if waiter is None:
                self._done.add(row)
            else:
                waiter.set()
