"""Two processes, as far as caches can tell: each with its own pool, its own listening connection and its own caches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from butlers.clock import ManualClock
from butlers.outbound.change_log import ChangeLog
from butlers.outbound.changes import Change, ChangeListener
from butlers.outbound.entitlements import PermissionGate, StoredEntitlements
from butlers.outbound.preferences import ChangedBy, PreferenceCache, PreferenceStore
from butlers.storage.database import Connection, Database, open_connection

OPERATOR = ChangedBy(name="operator:anna")


@dataclass(slots=True, kw_only=True)
class Process:
    clock: ManualClock
    database: Database
    listener: ChangeListener
    log: ChangeLog
    entitlements: StoredEntitlements
    gate: PermissionGate
    preferences: PreferenceCache
    store: PreferenceStore
    seen: list[Change | None]  # what the listener told
    dsn: str
    pids: list[int]  # of the listening connections, in the order in which they were opened

    async def until(self, holds: Callable[[], Any]) -> None:
        async with asyncio.timeout(20):
            while not holds():
                await asyncio.sleep(0.005)

    async def hears(self, change: Change) -> None:
        await self.until(lambda: change in self.seen)

    async def hears_itself(self, change: Change) -> None:
        """Its own change: announced within the process, and then by the database."""
        await self.until(lambda: self.seen.count(change) == 2)


@asynccontextmanager
async def process(dsn: str, *, listens: bool = True) -> AsyncIterator[Process]:
    clock, pids = ManualClock(), list[int]()

    async def connect() -> Connection:
        connection = await open_connection(dsn, wait=0.0)
        pids.append(connection.get_server_pid())
        return connection

    async with await Database.connect(dsn, max_size=3) as database:
        listener = ChangeListener(connect=connect, clock=clock)
        log = ChangeLog(database=database, new_id=uuid4)
        parts = {"database": database, "clock": clock, "listener": listener}
        entitlements = StoredEntitlements(log=log, **parts)  # type: ignore[arg-type]
        own = Process(
            clock=clock,
            database=database,
            listener=listener,
            log=log,
            entitlements=entitlements,
            gate=PermissionGate(entitlements=entitlements, clock=clock, listener=listener),
            preferences=PreferenceCache(**parts),  # type: ignore[arg-type]
            store=PreferenceStore(log=log, **parts),  # type: ignore[arg-type]
            seen=[],
            dsn=dsn,
            pids=pids,
        )
        listener.subscribe(own.seen.append)
        running = asyncio.create_task(listener.run()) if listens else None
        if running is not None:
            await own.until(listener.is_live)
        try:
            yield own
        finally:
            if running is not None:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)


def counted(database: Database) -> list[str]:
    """The reads that go to the database from now on."""
    reads: list[str] = []
    fetch = database.fetch

    async def counting(query: str, *values: Any) -> Any:
        reads.append(query)
        return await fetch(query, *values)

    database.fetch = counting  # type: ignore[method-assign, assignment]
    return reads
