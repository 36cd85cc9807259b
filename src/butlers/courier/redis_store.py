"""Redis as the courier uses it: scripts, whose calls travel together, and a log of changes that is followed.

Calls that come while others are on their way are sent as the next pipeline: each is one round trip, and many at a time
share it. They run in the order in which they were made. No call is sent a second time by itself, because nobody knows
whether the first one was carried out; the caller gets `StoreFailed`.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from importlib import resources
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, NoScriptError, RedisError, ResponseError

from butlers.courier.errors import CourierError
from butlers.errors import ConfigurationError, ServiceDown
from butlers.telemetry import get_logger

MICROSECONDS = 1_000_000  # of the store's times
OLDEST_VERSION = (6, 2)
CONNECT_S, ANSWER_S = 2.0, 5.0
MOST_CALLS, MOST_BYTES = 256, 4 * 2**20  # of one pipeline
BLOCK_MS = 1_000  # how long a look into the log waits
LOG_BATCH = 1_000
RETRY_AFTER_S = 2.0
log = get_logger(__name__)


class StoreFailed(CourierError):
    """Redis does not answer, or cannot take anything. Sockets stay open: they are served when it is back."""

    code = "StoreUnavailable"
    http_status = 503


class Reply(NamedTuple):
    result: Any
    touched: list[str]  # streams with something to deliver
    events: list[list[str]]  # event, stream, group, id, reason


Call = tuple[tuple[Any, ...], asyncio.Future[Reply]]  # its name and arguments, and who waits


class Entry(NamedTuple):
    """A line of the log."""

    number: int
    stream: str
    gateway: str  # that caused it
    shown: int | None  # the number of the message, where a view shows it


class RedisStore:
    def __init__(self, url: str, *, prefix: str, gateway: str) -> None:
        self._base = f"{{{prefix}}}"
        self._gateway = gateway
        self._address = _address(url)
        options: dict[str, Any] = {
            "decode_responses": True,
            "protocol": 2,
            "retry": Retry(NoBackoff(), 0),
            "socket_connect_timeout": CONNECT_S,
            "socket_timeout": ANSWER_S,
        }
        self._client: Redis = Redis.from_url(url, **options)
        self._scripts = compose_scripts(_read("redis_model.lua"), _read("redis_calls.lua"))
        self._shas: dict[str, str] = {}  # by the name of the call
        self._waiting: deque[Call] = deque()
        self._filled = asyncio.Event()

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[None]:
        """Raises `ConfigurationError` when there is no Redis that can be used."""
        sender = asyncio.create_task(self._run(), name="courier store")
        try:
            await self._check()
            yield
        finally:
            sender.cancel()
            await asyncio.gather(sender, return_exceptions=True)
            for _, future in self._waiting:
                future.cancel()
            with suppress(RedisError, OSError):
                await self._client.aclose()

    async def call(self, name: str, *arguments: Any) -> Reply:
        """One atomic change. Raises `StoreFailed`."""
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting.append(((name, *arguments), future))
        self._filled.set()
        return await future

    async def read_log(self, after: int) -> list[Entry]:
        """What follows an entry; waits a moment for it. Raises `StoreFailed`."""
        key = f"{self._base}:log"
        try:
            found: Any = await self._client.xread({key: f"{after}-1"}, count=LOG_BATCH, block=BLOCK_MS)
        except (RedisError, OSError) as error:
            raise self._failed(error) from error
        return [_entry(id, fields) for _, entries in found for id, fields in entries]

    async def shown(self) -> AsyncIterator[tuple[str, str]]:
        """The stream and the last message of everything that views show. Raises `StoreFailed`."""
        try:
            async for stream, value in self._client.hscan_iter(f"{self._base}:shown", count=LOG_BATCH):
                yield stream, value
        except (RedisError, OSError) as error:
            raise self._failed(error) from error

    # --- inside ------------------------------------------------------------------------------------------------------

    async def _check(self) -> None:
        try:
            about: Any = await self._client.info()
            await self._load()
        except AuthenticationError as error:
            raise self._refused("Redis does not accept the user or the password", "correct it") from error
        except ResponseError as error:
            raise self._refused(f"Redis refuses: {str(error)[:200]}", "give the user the rights it needs") from error
        except (RedisError, OSError) as error:
            raise ServiceDown(
                f"Redis at {self._address} does not answer ({type(error).__name__})",
                source="courier",
                key="store",
                remedy="start it, or leave `store` out to have the streams in memory",
            ) from error
        version = tuple(int(part) for part in str(about["redis_version"]).split(".")[:2])
        if version < OLDEST_VERSION:
            raise self._refused(f"Redis {about['redis_version']} is too old", "use 6.2 or a later one")
        if about.get("maxmemory", 0) and about.get("maxmemory_policy") != "noeviction":
            log.warning("Redis may evict messages of the courier: set its maxmemory-policy to noeviction")

    async def _run(self) -> None:
        while True:
            await self._filled.wait()
            self._filled.clear()
            while self._waiting:
                await self._send(self._next_batch())

    def _next_batch(self) -> list[Call]:
        batch: list[Call] = []
        size = 0
        while self._waiting and len(batch) < MOST_CALLS and size < MOST_BYTES:
            batch.append(self._waiting.popleft())
            size += sum(len(argument) for argument in batch[-1][0] if isinstance(argument, str | bytes))
        return batch

    async def _send(self, batch: list[Call]) -> None:
        try:
            replies = await self._pipeline([arguments for arguments, _ in batch])
        except asyncio.CancelledError:
            for _, future in batch:
                future.cancel()
            raise
        except Exception as error:  # whatever it is, those who wait must learn it, and the next ones be served
            replies = [error] * len(batch)
        for (_, future), reply in zip(batch, replies, strict=True):
            if future.done():  # its caller went away
                continue
            if isinstance(reply, Exception):
                future.set_exception(self._failed(reply))
            else:
                result, touched, events = reply
                future.set_result(Reply(result, touched, events))

    async def _pipeline(self, calls: list[tuple[Any, ...]]) -> list[Any]:
        replies = await self._execute(calls)
        unknown = [number for number, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
        if unknown:  # Redis was started anew: they were not carried out
            await self._load()
            for number, reply in zip(unknown, await self._execute([calls[n] for n in unknown]), strict=True):
                replies[number] = reply
        return replies

    async def _load(self) -> None:
        for name, script in self._scripts.items():
            self._shas[name] = await self._client.script_load(script)

    async def _execute(self, calls: list[tuple[Any, ...]]) -> list[Any]:
        async with self._client.pipeline(transaction=False) as pipeline:
            for arguments in calls:
                sha = self._shas[arguments[0]]
                pipeline.execute_command("EVALSHA", sha, 1, self._base, self._gateway, *arguments)
            replies: list[Any] = await pipeline.execute(raise_on_error=False)
            return replies

    def _failed(self, error: Exception) -> StoreFailed:
        """The log has the details; those who call from outside learn that it is not their fault."""
        if isinstance(error, ResponseError) or not isinstance(error, RedisError | OSError):
            log.error("a call of the courier failed in Redis", error=error)
        failed = StoreFailed(
            f"the store of the streams does not answer ({type(error).__name__}): send again", retry_after=RETRY_AFTER_S
        )
        failed.__cause__ = error
        return failed

    def _refused(self, problem: str, remedy: str) -> ConfigurationError:
        return ConfigurationError(f"{problem} ({self._address})", source="courier", key="store", remedy=remedy)


def compose_scripts(model: str, calls: str) -> dict[str, str]:
    """One script for each call, with the functions of the model that it uses: Redis sets them up for every run anew."""
    head, *functions = re.split(r"(?m)^(?=local function )", model)
    bodies = {re.split(r"\W+", text, maxsplit=3)[2]: text for text in functions}
    begin, *found = re.split(r"(?m)^(?=function calls\.)", calls)
    last, end = re.split(r"(?m)^(?=local result )", found.pop())
    scripts: dict[str, str] = {}
    for text in (*found, last):
        needed = _words_of(text + end)
        for name in reversed(bodies):  # a function uses only those before it
            if name in needed:
                needed |= _words_of(bodies[name])
        used = [body for name, body in bodies.items() if name in needed]
        scripts[re.split(r"\W+", text, maxsplit=3)[2]] = "".join([head, *used, begin, text, end])
    return scripts


def _words_of(text: str) -> set[str]:
    return set(re.findall(r"\w+", text))


def _read(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _entry(id: str, fields: dict[str, str]) -> Entry:
    shown = fields["shown"]
    return Entry(int(id.partition("-")[0]), fields["stream"], fields["gateway"], int(shown) if shown else None)


def _address(url: str) -> str:
    """Where Redis is, without the user and the password."""
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return parts.path
    return f"{parts.hostname or 'localhost'}:{parts.port or 6379}{parts.path}"
