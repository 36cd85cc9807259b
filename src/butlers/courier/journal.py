"""What survives a crash: a record for everything that changes which messages are open. Off unless it is configured.

A producer hears that its message is accepted when the record is on the disk, many at a time (`flush`). The records of
acks follow with the next flush: an ack that a crash takes away is a second delivery, never a loss. When most records
are of the past, the journal is written anew with what is open (`compact_when_due`). `journal_stores` has the places.

    {"e": "in", "s": stream, "m": envelope, "k": partition}          accepted, for every group of the stream
    {"e": "group", "s": stream, "g": group, "o": true}               a group; o: it takes over what `default` has
    {"e": "ungroup", "s": stream, "g": group}                        the group is removed with what it has
    {"e": "ack" | "drop" | "discard" | "replay", "s", "g", "i": id}  {"e": "fail", ...}  {"e": "dead", ..., "r": reason}
    {"e": "has", "s", "g", "m", "k", "p", "a", "f", "d", "r"}        compact: one message, d: it is dead
    {"e": "recent", "s", "ids": [...]}                               compact: ids in which a repeat is noticed
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Protocol

import asyncpg

from butlers.clock import Clock
from butlers.courier.core import PRIORITIES, QueueCore
from butlers.courier.errors import CourierError
from butlers.courier.group import DEFAULT_GROUP
from butlers.courier.messages import CapturedStream, StoredGroup, StoredMessage, StoredStream
from butlers.telemetry import get_logger

FEWEST_BEFORE_COMPACTION = 50_000  # records
LARGEST_BEFORE_COMPACTION = 64 * 2**20  # bytes
FLUSH_EVERY_S, LOOK_EVERY_S = 0.02, 10.0
STORE_ERRORS = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
_PAST = 4  # times as many records as open messages

log = get_logger(__name__)

Record = dict[str, Any]


class JournalFailed(CourierError):
    code = "InternalError"
    http_status = 503
    close_code = 1011


class JournalStore(Protocol):
    """Where the records lie."""

    @property
    def size(self) -> int:
        """Bytes, where they are known."""

    def load(self) -> AsyncIterator[Record]:
        """All records in their order; what a crash has cut short at the end is not among them."""

    async def append(self, records: list[Record]) -> None:
        """All of them, durably, or an `OSError` and none of them."""

    async def replace(self, records: Iterator[Record]) -> int:
        """Instead of everything that is there, in one step; returns how many. A thread reads them, a few at a time."""

    async def close(self) -> None: ...


class Journal:
    """Sees what happens in a core, and stores it."""

    def __init__(self, store: JournalStore) -> None:
        self._store = store
        self._waiting: list[Record] = []
        self._written = 0  # records in the store
        self._flushing = asyncio.Lock()
        self._observed = asyncio.Event()

    async def restore(self, core: QueueCore) -> int:
        """Give a new core what was open; returns how many messages, dead ones among them."""
        folded = Folded()
        async for record in self._store.load():
            folded.add(record)
            self._written += 1
        for name, stream in folded.streams.items():
            core.restore(name, stream)
        return sum(
            len(group.items) + len(group.dead) for stream in folded.streams.values() for group in stream.groups.values()
        )

    def observe(self, event: str, stream: str, id: str, details: Mapping[str, Any]) -> None:
        record = _record(event, stream, id, details)
        if record is not None:
            self._waiting.append(record)
            self._observed.set()

    async def flush(self) -> None:
        """Returns when everything that was observed before the call is on the disk. Raises `JournalFailed`."""
        if self._waiting or self._flushing.locked():
            await _to_its_end(self._flush())

    async def _flush(self) -> None:
        async with self._flushing:  # those who wait for it share the next write
            records, self._waiting = self._waiting, []
            if not records:
                return
            try:
                await self._store.append(records)
            except BaseException as error:
                self._waiting = records + self._waiting
                if not isinstance(error, STORE_ERRORS):
                    raise
                problem = f"the journal cannot be written ({type(error).__name__}): send again"
                raise JournalFailed(problem, retry_after=5.0) from error
            self._written += len(records)

    async def run(self, core: QueueCore, clock: Clock) -> None:
        """Write what no producer waits for, such as acks, and keep the journal short; until cancelled."""
        written_at = clock.monotonic()
        while True:
            await self._observed.wait()
            await clock.sleep(FLUSH_EVERY_S)
            self._observed.clear()
            try:
                await self.flush()
                if clock.monotonic() - written_at > LOOK_EVERY_S:
                    written_at = clock.monotonic()
                    await self.compact_when_due(core)
            except (CourierError, *STORE_ERRORS) as error:
                log.warning("the courier's journal is behind", error=error)
                self._observed.set()
                await clock.sleep(1.0)

    async def compact_when_due(self, core: QueueCore) -> bool:
        """Write the journal anew when most of it is of the past."""
        is_long = self._written >= FEWEST_BEFORE_COMPACTION or self._store.size >= LARGEST_BEFORE_COMPACTION
        if not is_long or self._written < _PAST * core.open_messages():
            return False
        await self.flush()
        await _to_its_end(self._compact(core))
        return True

    async def _compact(self, core: QueueCore) -> None:
        async with self._flushing:
            captured = core.captured()
            covered, self._waiting = self._waiting, []  # what was observed until now is part of the snapshot
            try:
                self._written = await self._store.replace(snapshot(captured))
            except BaseException:
                self._waiting = covered + self._waiting
                raise

    async def close(self) -> None:
        try:
            await self.flush()
        finally:
            await self._store.close()


async def _to_its_end(work: Coroutine[Any, Any, None]) -> None:
    """Await a write. It goes on when the caller is cancelled: no one can stop a thread half-way, and two that write
    would write over each other.
    """
    task = asyncio.create_task(work)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    await asyncio.shield(task)


class Folded:
    """The state that the records lead to."""

    def __init__(self) -> None:
        self.streams: dict[str, StoredStream] = {}

    def add(self, record: Record) -> None:
        stream = self.streams.get(record["s"])
        if stream is None:
            stream = self.streams[record["s"]] = StoredStream(groups={DEFAULT_GROUP: StoredGroup()})
        match record["e"]:
            case "in":
                self._accepted(stream, record)
            case "group":
                taken = stream.groups.pop(DEFAULT_GROUP, None) if record["o"] else None
                stream.groups.setdefault(record["g"], taken or StoredGroup())
            case "ungroup":
                stream.groups.pop(record["g"], None)
            case "recent":
                stream.recent = record["ids"]
            case "has":
                self._has(stream, record)
            case _:
                self._changed(stream.groups.setdefault(record["g"], StoredGroup()), record)

    def _accepted(self, stream: StoredStream, record: Record) -> None:
        envelope = record["m"]
        stream.recent.append(envelope["id"])
        for group in stream.groups.values():
            group.items[envelope["id"]] = _message(envelope, record["k"])

    def _has(self, stream: StoredStream, record: Record) -> None:
        history = {"attempts": record["a"], "failures": record["f"], "reason": record["r"]}
        message = _message(record["m"], record["k"], record["p"], **history)
        group = stream.groups.setdefault(record["g"], StoredGroup())
        (group.dead if record["d"] else group.items)[message.id] = message

    def _changed(self, group: StoredGroup, record: Record) -> None:
        id = record["i"]
        match record["e"]:
            case "ack" | "drop":
                if group.items.pop(id, None) is None:
                    group.dead.pop(id, None)
            case "discard":
                group.dead.pop(id, None)
            case "replay" if id in group.dead:
                dead = group.dead.pop(id)
                group.items[id] = _message(dead.envelope, dead.partition, dead.priority)
            case "fail" if id in group.items:  # it goes to the tail
                one = group.items.pop(id)
                group.items[id] = replace(one, attempts=one.attempts + 1, failures=one.failures + 1)
            case "dead" if id in group.items:
                group.dead[id] = replace(group.items.pop(id), reason=record["r"])


def snapshot(streams: Iterable[CapturedStream]) -> Iterator[Record]:
    """The fewest records that lead to a state."""
    for stream in streams:
        name, groups = stream.name, stream.groups
        if DEFAULT_GROUP not in [group.name for group in groups]:
            yield {"e": "group", "s": name, "g": groups[0].name, "o": True}
        for group in groups:
            if group.name != DEFAULT_GROUP:
                yield {"e": "group", "s": name, "g": group.name, "o": False}
            for dead, messages in ((False, group.messages()), (True, group.dead)):
                for one in messages:
                    yield _has_record(name, group.name, one, dead)
        if stream.recent:
            yield {"e": "recent", "s": name, "ids": stream.recent}


def _has_record(stream: str, group: str, one: StoredMessage, dead: bool) -> Record:
    names = {"m": one.envelope, "k": one.partition, "p": one.priority, "a": one.attempts, "f": one.failures}
    return {"e": "has", "s": stream, "g": group, "d": dead, "r": one.reason, **names}


def _record(event: str, stream: str, id: str, details: Mapping[str, Any]) -> Record | None:
    match event:
        case "enqueue":
            return {"e": "in", "s": stream, "m": details["envelope"], "k": details["partition"]}
        case "group":
            return {"e": "group", "s": stream, "g": details["group"], "o": details["takes_over"]}
        case "group.remove":
            return {"e": "ungroup", "s": stream, "g": details["group"]}
        case "ack" | "drop" | "discard" | "replay":
            return {"e": event, "s": stream, "g": details["group"], "i": id}
        case "dead":
            return {"e": "dead", "s": stream, "g": details["group"], "i": id, "r": details["reason"]}
        case "nack" | "timeout" | "lost" if details["counted"]:
            return {"e": "fail", "s": stream, "g": details["group"], "i": id}
    return None


def _message(
    envelope: Any,
    partition: str | None,
    priority: float | None = None,
    *,
    attempts: int = 0,
    failures: int = 0,
    reason: str = "",
) -> StoredMessage:
    if priority is None:
        priority = PRIORITIES.get((envelope.get("headers") or {}).get("priority", "normal"), 0.0)
    return StoredMessage(
        id=envelope["id"],
        envelope=envelope,
        partition=partition,
        priority=priority,
        reason=reason,
        attempts=attempts,
        failures=failures,
        died_at=0.0,
    )
