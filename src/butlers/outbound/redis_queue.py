"""The queue in Redis, for workers on several machines. Every call is one run of `redis_queue.lua`, and therefore
atomic; all keys carry one hash tag and are in one slot of a cluster.

A stored entry is JSON text, its times in ISO 8601 (UTC):

    {"key": "m1:ann", "scheduled_at": "2026-01-01T00:00:00.000000+00:00", "priority": "normal", "level": 2,
     "attempts": 1, "expirations": 0, "number": 7, "receipt": "018f...", "worker": "host 41",
     "lease_expires_at": "2026-01-01T00:02:00.000000+00:00", "payload": {...}}

`receipt`, `worker` and `lease_expires_at` are there while the entry is in flight. No call is sent a second time by
itself, unless Redis says that it did not run; the caller gets `TargetUnavailable` and may repeat it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from hashlib import sha1
from importlib import resources
from typing import Any
from uuid import UUID

from pydantic_core import from_json
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError, ResponseError

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
from butlers.outbound.values import Priority
from butlers.telemetry import get_logger

CONNECT_S, ANSWER_S, RETRY_AFTER_S = 2.0, 5.0, 2.0
MOST_ENTRIES, MOST_CHARACTERS = 500, 4 * 2**20  # of one call: Redis does nothing else while it runs
MICROSECOND = timedelta(microseconds=1)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
log = get_logger(__name__)


class RedisQueue:
    def __init__(
        self, url: str, *, new_id: Callable[[], UUID], prefix: str = "outbound", lease_s: float = LEASE_S
    ) -> None:
        options: dict[str, Any] = {
            "decode_responses": True,
            "protocol": 2,
            "retry": Retry(NoBackoff(), 0),
            "socket_connect_timeout": CONNECT_S,
            "socket_timeout": ANSWER_S,
        }
        self._client: Any = Redis.from_url(url, **options)
        self._base = f"{{{prefix}}}"
        self._new_id = new_id
        self._lease = timedelta(seconds=lease_s)
        self._script = resources.files(__package__).joinpath("redis_queue.lua").read_text(encoding="utf-8")
        self._sha = sha1(self._script.encode(), usedforsecurity=False).hexdigest()

    async def enqueue(self, messages: Sequence[QueueMessage]) -> frozenset[str]:
        """A long sequence takes several calls: when Redis goes away in between, the first ones are enqueued."""
        new: set[str] = set()
        for arguments in _batches(checked(messages).values()):
            new.update(await self._call("enqueue", *arguments))
        return frozenset(new)

    async def dequeue(self, *, now: datetime, limit: int = 1, worker: str) -> list[LeasedMessage]:
        expires = now.astimezone(UTC) + self._lease
        receipt = str(self._new_id())
        found: list[LeasedMessage] = []
        while (room := min(limit - len(found), MOST_ENTRIES)) > 0:
            texts = await self._call(
                "dequeue", _micros(now), room, _micros(expires), _iso(expires), receipt, storable(worker)
            )
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
        await self._settle(leased, "dead_letter", storable(reason), MOST_DEAD_LETTERS)

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
        await self._client.aclose()

    async def _call(self, name: str, *arguments: str | int) -> Any:
        try:
            try:
                return await self._client.execute_command("EVALSHA", self._sha, 1, self._base, name, *arguments)
            except NoScriptError:  # a Redis that was started anew: the call did not run
                return await self._client.execute_command("EVAL", self._script, 1, self._base, name, *arguments)
        except (RedisError, OSError) as error:
            if isinstance(error, ResponseError):
                log.error("a call of the outbound queue failed in Redis", error=error)
            problem = f"the Redis of the outbound queue does not answer ({type(error).__name__})"
            raise TargetUnavailable(problem, retry_after=RETRY_AFTER_S) from error


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
    head = (
        f'{{"key":{json.dumps(message.key, ensure_ascii=False)},"scheduled_at":"{_iso(message.scheduled_at)}",'
        f'"priority":"{message.priority.value}","level":{LEVELS[message.priority]},"attempts":{message.attempts},'
        f'"expirations":0,"number":'
    )
    return head, f',"payload":{payload}}}'


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


def _iso(moment: datetime) -> str:
    return moment.isoformat(timespec="microseconds")


def _micros(moment: datetime) -> int:
    return (moment - EPOCH) // MICROSECOND


def _moment(micros: str) -> datetime:
    return EPOCH + int(float(micros)) * MICROSECOND
