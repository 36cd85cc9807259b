"""Where a courier has its messages: every store of the conformance suite, and a gateway over it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from butlers.storage.embedded import EmbeddedPostgres
from tests.database import cloned_database_uri
from tests.integration.courier.gateway import DEADLINE_S, INBOX, RunningGateway, gateway
from tests.redis_server import RedisServer

STORES = ("memory", "jsonl", "postgres", "redis")
THAT_SURVIVE = ("jsonl", "postgres", "redis")


@dataclass(frozen=True, slots=True)
class Store:
    name: str
    config: str  # the lines of YAML that choose it

    @asynccontextmanager
    async def gateway(self, more: str = "") -> AsyncIterator[Watched]:
        """A gateway over the store. At its end every stream must be balanced."""
        async with gateway(f"{self.config}\n{more}") as running:
            watched = Watched(running)
            yield watched
            for stream in (await watched.get("/v1/stats"))["streams"]:
                assert (await watched.get(f"/v1/audit?stream={stream['stream']}"))["balanced"]


class Watched:
    """A gateway, seen from outside only."""

    def __init__(self, running: RunningGateway) -> None:
        self.running = running
        self.send = running.send
        self.subscriber = running.subscriber
        self.http = running.http

    async def get(self, path: str) -> dict[str, Any]:
        found: dict[str, Any] = (await self.http.get(path)).json()
        return found

    async def post(self, path: str, **body: Any) -> dict[str, Any]:
        found: dict[str, Any] = (await self.http.post(path, json=body)).json()
        return found

    async def stats(self, stream: str = INBOX) -> dict[str, Any]:
        return await self.get(f"/v1/stats?stream={stream}")

    async def audit(self, group: str = "default", stream: str = INBOX) -> dict[str, Any]:
        audit = await self.get(f"/v1/audit?stream={stream}")
        assert audit["balanced"], audit
        found: dict[str, Any] = audit["groups"][group]
        return found

    async def dead(self, stream: str = INBOX) -> dict[str, dict[str, Any]]:
        messages = (await self.get(f"/v1/dead?stream={stream}"))["messages"]
        return {message["id"]: message for message in messages}

    async def until_counted(self, name: str, number: int, stream: str = INBOX) -> None:
        async def is_counted() -> bool:
            counted: int = (await self.stats(stream))["counts"][name]
            return counted >= number

        await eventually(is_counted)


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    """Waits for a state that must come; what must not come is never proven by waiting."""
    async with asyncio.timeout(DEADLINE_S):
        while not await condition():
            await asyncio.sleep(0.005)


@asynccontextmanager
async def open_store(name: str, request: pytest.FixtureRequest, directory: Path) -> AsyncIterator[Store]:
    if name == "memory":
        yield Store(name, "")
    elif name == "jsonl":
        yield Store(name, f"journal: {{kind: jsonl, path: '{directory / 'courier.jsonl'}'}}")
    elif name == "redis":
        server: RedisServer = request.getfixturevalue("redis_server")
        yield Store(name, redis_config(server))
    else:
        postgres: EmbeddedPostgres = request.getfixturevalue("postgres_server")
        async with cloned_database_uri(postgres) as dsn:
            yield Store(name, f"journal: {{kind: postgres, dsn: '{dsn}'}}")


def redis_config(server: RedisServer) -> str:
    """Keys that no other test has."""
    return f"store: {server.url}\nstorePrefix: test-{uuid4().hex}"
