"""Hears of changes to entitlements, preferences and defaults in every process, by PostgreSQL's LISTEN.

Triggers announce a change when its transaction commits (migration 0004), whoever made it: this process, another one,
the pipeline, or a person with psql.

    connect -> LISTEN -> forget everything -> live: notifications, and a ping every `PING_S`
       ^                                        │
       └────── backoff <── not live <───────────┘ connection lost, or a ping without an answer

What was remembered before the connection stood is forgotten when it stands again, because changes in between were not
announced to us. A connection that is dead without a word counts as live for `TRUST_S` after its last sign of life.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import asyncpg
from pydantic_core import from_json

from butlers.clock import Clock
from butlers.errors import ConfigurationError
from butlers.outbound import SCHEMA
from butlers.reliability.retry import RetryPolicy, Strategy, backoff
from butlers.storage.database import DATABASE_AWAY, Connection
from butlers.telemetry import get_logger

log = get_logger("butlers.outbound")

PING_S = 3.0
PING_TIMEOUT_S = 3.0
TRUST_S = 7.0  # longer than a ping takes: a live connection is never doubted
_LOST: tuple[type[Exception], ...] = (*DATABASE_AWAY, asyncpg.PostgresError, ConfigurationError)
_BACKOFF = RetryPolicy(strategy=Strategy.EXPONENTIAL, initial_delay=0.2, max_delay=10.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Rows of one table that a transaction has changed."""

    table: str  # entitlements, memberships, preferences, defaults
    keys: tuple[str, ...] | None  # subjects or scopes; None: any of them


def read_change(payload: str) -> Change | None:
    """A notification's payload; None when it is not one of our triggers'."""
    try:
        names = from_json(payload)
    except ValueError:
        return None
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        return None
    return Change(table=names[0], keys=tuple(names[1:]) or None)


class ChangeListener:
    """Tells its subscribers of every change; `is_live` says whether it would hear of one."""

    def __init__(
        self, *, connect: Callable[[], Awaitable[Connection]], clock: Clock, channel: str = f"{SCHEMA}_changes"
    ) -> None:
        self._connect = connect
        self._clock = clock
        self._channel = channel
        self._subscribers: list[Callable[[Change | None], None]] = []
        self._alive_at: float | None = None  # the last sign of life, by the monotonic clock; None: no connection

    def is_live(self) -> bool:
        return self._alive_at is not None and self._clock.monotonic() - self._alive_at < TRUST_S

    def subscribe(self, on_change: Callable[[Change | None], None]) -> None:
        """`on_change` is called with every change, and with None when any may have been missed."""
        self._subscribers.append(on_change)

    def announce(self, change: Change | None) -> None:
        """Tell the subscribers in this process now: it acts on its own change before the notification comes."""
        for on_change in self._subscribers:
            on_change(change)

    async def run(self) -> None:
        """Listens until it is cancelled."""
        failures = 0
        while True:
            try:
                connection = await self._connect()
            except _LOST as error:
                failures += 1
                pause = backoff(_BACKOFF, failures)
                log.warning("changes are not listened to", error=error, attempts=failures)
                await self._clock.sleep(pause)
                continue
            failures = 0
            try:
                await self._listen(connection)
            except _LOST as error:
                log.warning("the listening connection was lost", error=error)
            finally:
                self._alive_at = None
                with suppress(Exception):
                    connection.terminate()
            await self._clock.sleep(_BACKOFF.initial_delay)

    async def _listen(self, connection: Connection) -> None:
        lost = asyncio.Event()

        def end(_connection: Any) -> None:
            self._alive_at = None
            lost.set()

        connection.add_termination_listener(end)
        await connection.add_listener(self._channel, self._notified)
        self.announce(None)
        self._alive_at = self._clock.monotonic()
        while not lost.is_set():
            await self._pause_or(lost)
            if not lost.is_set():
                await connection.execute("SELECT 1", timeout=PING_TIMEOUT_S)
                self._alive_at = self._clock.monotonic()

    async def _pause_or(self, lost: asyncio.Event) -> None:
        """Wait for the next ping, or less when the connection is lost."""
        waiting = [asyncio.ensure_future(self._clock.sleep(PING_S)), asyncio.ensure_future(lost.wait())]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()

    def _notified(self, _connection: Any, _pid: int, _channel: str, payload: object) -> None:
        self.announce(read_change(str(payload)))
