"""A stop gives routed work back and takes none again, though its caller still waits for the answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID, uuid4

import pytest

from butlers.butler.route_inbox import ClaimedRoute, InboxPolicy, Key, RouteInbox
from butlers.clock import SystemClock
from butlers.contracts.route import RouteEnvelope
from butlers.daemon.compose.base import base_migrations
from butlers.ids import Uuid7Factory
from butlers.storage.claims import SuspectGate
from butlers.storage.database import Database
from butlers.storage.embedded import EmbeddedPostgres
from butlers.telemetry.telemetry import Telemetry
from tests.database import cloned_database_uri

SCHEMA = "general"
CLOCK = SystemClock()
NEW_ID = Uuid7Factory(CLOCK)


class WatchedInbox(RouteInbox):
    """Says when a claim was written, and how often somebody looked for the outcome."""

    looks = 0
    held: asyncio.Event | None = None  # claims are written, and answered when it is set
    claimed: asyncio.Event

    async def claim(self, key: Key, *, suspect: bool = False) -> ClaimedRoute | None:
        claim = await super().claim(key, suspect=suspect)
        self.claimed.set()
        if self.held is not None:
            await self.held.wait()
        return claim

    async def outcome(self, key: Key) -> dict[str, Any] | None:
        self.looks += 1
        return await super().outcome(key)


class InboxSystem:
    def __init__(self, database: Database) -> None:
        self.database = database
        self.begun = asyncio.Event()
        self.inbox = WatchedInbox(
            database=database,
            schema=SCHEMA,
            new_id=NEW_ID,
            work=self._work,
            owner="tests",
            clock=CLOCK,
            telemetry=Telemetry.create(SCHEMA, "tests", clock=CLOCK),
            suspects=SuspectGate(),
            policy=InboxPolicy(poll_s=0.01),
        )
        self.inbox.claimed = asyncio.Event()

    async def _work(self, _envelope: RouteEnvelope) -> dict[str, Any]:
        self.begun.set()
        await asyncio.Event().wait()
        return {}

    async def attempts(self) -> list[int]:
        return [row["attempts"] for row in await self.database.fetch("SELECT attempts FROM general.route_inbox")]

    async def caller_looks_again(self) -> None:
        """Twice, so that one look began after this call; or has the work begun, which it must not."""
        seen = self.inbox.looks
        async with asyncio.timeout(30):
            while self.inbox.looks < seen + 2 and not self.begun.is_set():
                await asyncio.sleep(0.01)


@pytest.fixture
async def system(postgres_server: EmbeddedPostgres) -> AsyncIterator[InboxSystem]:
    async with (
        cloned_database_uri(postgres_server, [base_migrations(SCHEMA)]) as dsn,
        await Database.connect(dsn, max_size=3) as database,
    ):
        yield InboxSystem(database)


def envelope() -> RouteEnvelope:
    request_id: UUID = NEW_ID()
    return RouteEnvelope.parse(
        {
            "schema_version": "route.v1",
            "request_context": {
                "request_id": str(request_id),
                "received_at": CLOCK.now().isoformat(),
                "source_channel": "api",
                "source_endpoint_identity": "tests",
                "source_sender_identity": "tester",
            },
            "input": {"prompt": "what a day"},
            "subrequest": {"subrequest_id": str(uuid4()), "segment_id": "s1", "fanout_mode": "parallel"},
            "target": {"butler": SCHEMA, "tool": "route.execute"},
            "trace_context": {},
        }
    )


async def test_a_caller_that_still_waits_does_not_have_the_work_begun_again(system: InboxSystem) -> None:
    caller = asyncio.create_task(system.inbox.handle(envelope()))
    async with asyncio.timeout(30):
        await system.begun.wait()
    await system.inbox.drain(0)
    system.begun.clear()
    await system.caller_looks_again()
    assert await system.attempts() == [0]
    assert not system.begun.is_set()
    caller.cancel()


async def test_a_claim_that_the_stop_overtook_is_given_back(system: InboxSystem) -> None:
    system.inbox.held = asyncio.Event()
    caller = asyncio.create_task(system.inbox.handle(envelope()))
    async with asyncio.timeout(30):
        await system.inbox.claimed.wait()
    assert await system.attempts() == [1]
    await system.inbox.drain(0)
    system.inbox.held.set()
    await system.caller_looks_again()
    assert await system.attempts() == [0]
    assert not system.begun.is_set()
    caller.cancel()
