"""What a gateway learns from Redis without being asked: messages of other gateways, leases that end, Redis itself.

Two loops. One follows the log of changes, where every gateway writes what makes a message ready; its entries are
numbered without a gap, so that a reader knows when some of them are gone, and looks at everything anew. The other one
calls `tend` once a second and whenever a lease or a delay ends: it says that this gateway is alive, takes back what
expired or belonged to a gateway that is dead, and finds whatever the first loop may have missed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Protocol

from pydantic_core import from_json, to_json

from butlers.clock import Clock
from butlers.courier.errors import CourierError
from butlers.courier.group import NEVER
from butlers.courier.queue import Inserted
from butlers.courier.redis_claims import Claims
from butlers.courier.redis_store import MICROSECONDS, Entry, RedisStore
from butlers.telemetry import get_logger

LOOK_EVERY_S = 1.0
ALIVE_S = 10.0  # without a call of a gateway, the others take over what it held
SHORTEST_S, LONGEST_BACKOFF_S = 0.005, 1.0
CLEANUP_EVERY_S = 10.0
MOST_SHOWN = 500
log = get_logger(__name__)


class Watched(Protocol):
    """The queue, as far as the watch moves it."""

    async def call(self, name: str, *arguments: Any) -> Any: ...

    @property
    def claims(self) -> Claims: ...

    async def notice_stream(self, stream: str) -> None: ...

    async def recover(self, *, is_new: bool, is_known: bool) -> None: ...

    def forget_expired(self, grace_s: float) -> None: ...


class Watch:
    def __init__(self, store: RedisStore, queue: Watched, *, clock: Clock, gateway: str, inserted: Inserted) -> None:
        self._store = store
        self._queue = queue
        self._clock = clock
        self._gateway = gateway
        self._inserted = inserted
        self._shown: dict[str, int] = {}  # stream -> number of the message that views have
        self._streams: set[str] = set()  # that were noticed
        self._after = 0  # the last entry of the log that was read
        self._birth = ""
        self._is_away = False
        self._must_recover = False
        self._cleanup_at = 0.0
        self._reader_check_at = 0.0
        self._last_entry = 0  # of the log, at the last check of the reader
        self._due = NEVER
        self._sooner = asyncio.Event()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        self._birth, self._after, *_ = await self._tend()
        await self._load_shown()
        tasks = [
            asyncio.create_task(self._look(), name="courier store watch"),
            asyncio.create_task(self._follow(), name="courier log reader"),
        ]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    # --- what the queue reports --------------------------------------------------------------------------------------

    def look_in(self, seconds: float) -> None:
        """Something is due by then: look in time."""
        due = self._clock.monotonic() + seconds
        if due < self._due:
            self._due = due
            self._sooner.set()

    def report_failure(self) -> None:
        """A call of unknown outcome: the next answer of Redis is the sign to compare."""
        self._must_recover = True

    def show(self, stream: str, number: int, envelope: Mapping[str, Any]) -> None:
        """Give a message to the views, unless they have a later one of the stream."""
        if number > self._shown.get(stream, 0):
            self._shown[stream] = number
            self._inserted(stream, envelope)

    # --- time --------------------------------------------------------------------------------------------------------

    async def _look(self) -> None:
        backoff_s = SHORTEST_S
        while True:
            try:
                pause_s = await self._look_once()
                backoff_s = SHORTEST_S
            except Exception as error:
                if not isinstance(error, CourierError):
                    log.error("the courier cannot look after its store", error=error)
                elif not self._is_away:
                    log.warning("the courier's store is away", reason=str(error))
                self._is_away = True
                backoff_s = pause_s = min(LONGEST_BACKOFF_S, backoff_s * 2)
            await self._sleep(pause_s)

    async def _look_once(self) -> float:
        """Returns for how long nothing is due."""
        after, self._due = self._after, NEVER
        birth, entry, due, ready, is_known = await self._tend()
        is_new = birth != self._birth or entry < after
        if self._is_away or self._must_recover or is_new or not is_known:
            await self._recover(birth, entry, is_new=is_new, is_known=bool(is_known))
        self._queue.claims.wake_all(set(ready))
        now = self._clock.monotonic()
        if now >= self._cleanup_at:
            self._cleanup_at = now + CLEANUP_EVERY_S
            self._queue.forget_expired(LOOK_EVERY_S)
        if now >= self._reader_check_at:
            self._reader_check_at = now + LOOK_EVERY_S
            if self._after < self._last_entry:  # it was there a second ago: the reader hangs, or is far behind
                await self._recheck()
            self._last_entry = entry
        return LOOK_EVERY_S if due < 0 else max(SHORTEST_S, min(LOOK_EVERY_S, due / MICROSECONDS))

    async def _recover(self, birth: str, entry: int, *, is_new: bool, is_known: bool) -> None:
        self._must_recover = False
        try:
            if is_new:  # another server, or this one without what it had
                self._after = self._last_entry = entry
                self._streams.clear()
            await self._queue.recover(is_new=is_new, is_known=is_known)
            await self._recheck()
        except CourierError:
            self._must_recover = True
            raise
        self._birth = birth
        if self._is_away:
            self._is_away = False
            log.info("the courier's store is back")

    async def _tend(self) -> Any:
        waiting = to_json(self._queue.claims.waiting_groups())
        return await self._queue.call("tend", round(ALIVE_S * MICROSECONDS), waiting)

    async def _sleep(self, seconds: float) -> None:
        """Until then, or until what is due sooner, also when that came up during the last look."""
        self._due = min(self._due, self._clock.monotonic() + seconds)
        while (left := self._due - self._clock.monotonic()) > 0:
            self._sooner.clear()
            woken = asyncio.create_task(self._sooner.wait())
            timer = asyncio.create_task(self._clock.sleep(left))
            try:
                await asyncio.wait([woken, timer], return_when=asyncio.FIRST_COMPLETED)
            finally:
                woken.cancel()
                timer.cancel()

    # --- the log -----------------------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        backoff_s = SHORTEST_S
        while True:
            try:
                entries = await self._store.read_log(self._after)
                await self._take(entries)
                backoff_s = SHORTEST_S
            except Exception as error:  # `_look` looks at everything when Redis is back, and says that it was away
                if not isinstance(error, CourierError):
                    log.error("the courier cannot read its log of changes", error=error)
                self._must_recover = True
                backoff_s = min(LONGEST_BACKOFF_S, backoff_s * 2)
                await self._clock.sleep(backoff_s)

    async def _take(self, entries: list[Entry]) -> None:
        if not entries:
            return
        is_whole = entries[0].number == self._after + 1
        self._after = entries[-1].number
        if not is_whole:
            log.info("the courier's log of changes had a gap: everything is looked at anew")
            await self._recheck()
            return
        for stream in dict.fromkeys(entry.stream for entry in entries):
            if stream not in self._streams:
                await self._queue.notice_stream(stream)
                self._streams.add(stream)
        for stream in {entry.stream for entry in entries if entry.gateway != self._gateway}:
            self._queue.claims.wake(stream)
        behind = {entry.stream for entry in entries if entry.shown and entry.shown > self._shown.get(entry.stream, 0)}
        await self._show_last(sorted(behind))

    async def _recheck(self) -> None:
        for stream in await self._queue.call("streams"):
            await self._queue.notice_stream(stream)
        self._queue.claims.wake_all()
        await self._load_shown()

    async def _show_last(self, streams: list[str]) -> None:
        for first in range(0, len(streams), MOST_SHOWN):
            chunk = streams[first : first + MOST_SHOWN]
            values = await self._queue.call("shown", to_json(chunk))
            self._show_all(zip(chunk, values, strict=True))

    async def _load_shown(self) -> None:
        self._show_all([pair async for pair in self._store.shown()])

    def _show_all(self, found: Iterable[tuple[str, str | None]]) -> None:
        """In the order of acceptance."""
        split = [(stream, *value.split(" ", 1)) for stream, value in found if value is not None]
        for stream, number, payload in sorted(split, key=lambda one: int(one[1])):
            self.show(stream, int(number), from_json(payload))
