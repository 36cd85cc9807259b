"""The queue in Redis, for workers on several machines. Every call is one run of `redis_queue.lua`, and therefore
atomic; all keys carry one hash tag and are in one slot of a cluster.

A stored entry is JSON text, its times in ISO 8601 (UTC):

    {"scheduled_at": "2026-01-01T00:00:00.000000+00:00", "attempts": 1, "expirations": 0, "level": 2, "number": 7,
     "lease": {"receipt": "018f...", "worker": "host 41", "expires_at": "2026-01-01T00:02:00.000000+00:00"},
     "key": "m1:ann", "priority": "normal", "payload": {...}}

`lease` is null while the entry is queued.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from hashlib import sha1
from importlib import resources
from itertools import count
from typing import Any
from uuid import UUID

from pydantic_core import from_json

from butlers.errors import TargetUnavailable
from butlers.outbound.queue import (
    LEASE_S,
    LEVELS,
    MOST_DEAD_LETTERS,
    DeadLetter,
    LeasedMessage,
    QueueMessage,
    QueueStats,
    check_time,
    checked,
    lease_lost,
    possible_keys,
    retry_at,
    storable,
)
from butlers.outbound.redis_connection import RETRY_AFTER_S, Command, RedisConnection, RefusedCall
from butlers.outbound.values import Priority
from butlers.telemetry import get_logger

MOST_ENTRIES, MOST_CHARACTERS = 500, 4 * 2**20  # of one call: Redis does nothing else while it runs
MICROSECOND = timedelta(microseconds=1)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
log = get_logger(__name__)


class RedisQueue:
    def __init__(
        self, url: str, *, new_id: Callable[[], UUID], prefix: str = "outbound", lease_s: float = LEASE_S
    ) -> None:
        self._connection = RedisConnection(url)
        self._receipts = str(new_id())  # what this adapter's receipts begin with; a number follows
        self._leases = count(1)
        self._lease = timedelta(seconds=lease_s)
        script = resources.files(__package__).joinpath("redis_queue.lua").read_text(encoding="utf-8")
        sha, base = sha1(script.encode(), usedforsecurity=False).hexdigest(), f"{{{prefix}}}"
        self._run, self._run_text = Command("EVALSHA", sha, 1, base), Command("EVAL", script, 1, base)

    async def enqueue(self, messages: Sequence[QueueMessage]) -> frozenset[str]:
        """A long sequence takes several calls: when Redis goes away in between, the first ones are enqueued."""
        new: set[str] = set()
        for arguments in _batches(checked(messages).values()):
            new.update(await self._call("enqueue", *arguments))
        return frozenset(new)

    async def dequeue(self, *, now: datetime, limit: int = 1, worker: str) -> list[LeasedMessage]:
        expires = now.astimezone(UTC) + self._lease
        moment, receipt = _micros(now), f"{self._receipts}-{next(self._leases)}"
        lease = f'{{"receipt":"{receipt}","worker":{_worker(worker)},"expires_at":"{_iso(expires)}"}}'
        found: list[LeasedMessage] = []
        while (room := min(limit - len(found), MOST_ENTRIES)) > 0:
            texts = await self._call("dequeue", moment, room, _micros(expires), lease)
            found += [_leased(text, receipt, expires) for text in texts]
            if len(texts) < room:
                break
        return found

    async def ack(self, leased: LeasedMessage) -> None:
        await self._settle(leased, "ack")

    async def nack(
        self,
        leased: LeasedMessage,
        *,
        now: datetime,
        delay: timedelta | None = None,
        scheduled_at: datetime | None = None,
        counted: bool = True,
    ) -> None:
        at = retry_at(now, delay, scheduled_at)
        await self._settle(leased, "nack", _micros(at), _iso(at), 0 if counted else 1)

    async def dead_letter(self, leased: LeasedMessage, reason: str) -> None:
        await self._settle(leased, "dead_letter", _json(storable(reason)), MOST_DEAD_LETTERS)

    async def _settle(self, leased: LeasedMessage, call: str, *arguments: str | int) -> None:
        if not await self._call(call, leased.message.key, storable(leased.receipt), *arguments):
            raise lease_lost(leased)

    async def reschedule(self, keys: Sequence[str], *, scheduled_at: datetime) -> int:
        at, moved = check_time(scheduled_at), 0
        for some in _parts(possible_keys(keys)):
            moved += await self._call("reschedule", _micros(at), _iso(at), *some)
        return moved

    async def remove(self, keys: Sequence[str]) -> int:
        removed = 0
        for some in _parts(possible_keys(keys)):
            removed += await self._call("remove", *some)
        return removed

    async def peek(self, limit: int = 10) -> list[QueueMessage]:
        return [_message(from_json(text)) for text in await self._call("peek", limit)]

    async def dead_letters(self, limit: int = 10) -> list[DeadLetter]:
        if limit <= 0:
            return []
        found = [from_json(text) for text in await self._call("dead_letters", limit)]
        return [DeadLetter(message=_message(one), reason=one["reason"]) for one in found]

    async def stats(self, *, now: datetime) -> QueueStats:
        queued, in_flight, acknowledged, dead_lettered, *firsts = await self._call("stats")
        oldest, expires = (_moment(first) if first else None for first in firsts)
        available = min((moment for moment in (oldest, expires) if moment is not None), default=None)
        return QueueStats(
            queued=queued,
            in_flight=in_flight,
            acknowledged=int(acknowledged),
            dead_lettered=int(dead_lettered),
            oldest_scheduled_at=oldest,
            next_available_at=None if available is None else max(available, now),
        )

    async def close(self) -> None:
        await self._connection.close()

    async def _call(self, name: str, *arguments: str | int) -> Any:
        reply = await self._connection.call(self._run, name, *arguments)
        if isinstance(reply, RefusedCall) and str(reply).startswith("NOSCRIPT"):  # it was started anew; nothing ran
            reply = await self._connection.call(self._run_text, name, *arguments)
        if isinstance(reply, RefusedCall):
            log.error("a call of the outbound queue failed in Redis", error=reply)
            raise TargetUnavailable("the Redis of the outbound queue refuses a call", retry_after=RETRY_AFTER_S)
        return reply


def _batches(found: Sequence[tuple[QueueMessage, str]] | Any) -> Iterator[list[str | int]]:
    """The arguments of the calls that enqueue some messages."""
    arguments: list[str | int] = []
    entries = characters = 0
    for message, payload in found:
        if entries >= MOST_ENTRIES or (entries and characters + len(payload) > MOST_CHARACTERS):
            yield arguments
            arguments, entries, characters = [], 0, 0
        head, rest = _stored(message, payload)
        arguments += (message.key, LEVELS[message.priority], _micros(message.scheduled_at), head, rest)
        entries, characters = entries + 1, characters + len(payload)
    if arguments:
        yield arguments


def _stored(message: QueueMessage, payload: str) -> tuple[str, str]:
    """The text of a new entry before and after its number."""
    head = f'{{"scheduled_at":"{_iso(message.scheduled_at)}","attempts":{message.attempts},"expirations":0,'
    rest = f',"lease":null,"key":{_json(message.key)},"priority":"{message.priority.value}","payload":{payload}}}'
    return f'{head}"level":{LEVELS[message.priority]},"number":', rest


def _parts(keys: list[str]) -> Iterator[list[str]]:
    yield from (keys[first : first + MOST_ENTRIES] for first in range(0, len(keys), MOST_ENTRIES))


def _leased(text: str, receipt: str, expires: datetime) -> LeasedMessage:
    entry = from_json(text)
    return LeasedMessage(
        message=_message(entry), receipt=receipt, lease_expires_at=expires, expirations=entry["expirations"]
    )


def _message(entry: dict[str, Any]) -> QueueMessage:
    return QueueMessage(
        key=entry["key"],
        payload=entry["payload"],
        scheduled_at=datetime.fromisoformat(entry["scheduled_at"]),
        priority=Priority(entry["priority"]),
        attempts=entry["attempts"],
    )


def _json(value: Any) -> str:
    """Without blanks, as the scripts expect it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


@functools.lru_cache(maxsize=64)
def _worker(name: str) -> str:
    return _json(storable(name))


def _iso(moment: datetime) -> str:
    return moment.isoformat(timespec="microseconds")


def _micros(moment: datetime) -> int:
    return (moment - EPOCH) // MICROSECOND


def _moment(micros: str) -> datetime:
    return EPOCH + int(float(micros)) * MICROSECOND
