"""Approvals on a real database."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any
from uuid import uuid4

import pytest

from butlers.butler.approvals import Allowed, GatedCall, MustWait, migrations
from butlers.butler.approvals.approvals import Approvals
from butlers.clock import Clock, ManualClock
from butlers.ids import Uuid7Factory
from butlers.storage.database import Database
from butlers.storage.embedded import EmbeddedPostgres
from tests.database import cloned_database

SCHEMA = "general"
GATED = frozenset({"send", "pay"})
CONNECTIONS = 12


class Desk:
    """Approvals, and hands to use them as a butler does."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.clock = ManualClock()
        self.approvals = self.another()

    def another(self, clock: Clock | None = None) -> Approvals:
        """The approvals of another process on the same database."""
        clock = clock or self.clock
        return Approvals(database=self.database, schema=SCHEMA, clock=clock, new_id=Uuid7Factory(clock), gated=GATED)

    async def ask(self, tool_name: str = "send", key: str | None = None, **tool_args: Any) -> Allowed | MustWait:
        async with self.database.transaction() as connection:
            return await self.approvals.request(
                connection,
                GatedCall(
                    tool_name=tool_name,
                    tool_args=tool_args,
                    summary="a summary",
                    requested_by="general",
                    key=key or uuid4().hex,
                ),
                now=self.clock.now(),
            )

    async def waiting(self, **options: Any) -> MustWait:
        answer = await self.ask(**options)
        assert isinstance(answer, MustWait)
        return answer

    async def rule(self, tool_name: str = "send", **options: Any) -> dict[str, Any]:
        options = {"constraints": {}, "created_by": "ann"} | options
        return await self.approvals.rules.create(tool_name=tool_name, **options)

    async def crowd(self) -> None:
        """Open every connection of the pool, so that those who start together run together."""
        async with AsyncExitStack() as stack:
            for _ in range(CONNECTIONS):
                await stack.enter_async_context(self.database.connection())

    async def events(self) -> list[str]:
        rows = await self.database.fetch(f"select event from {SCHEMA}.approval_events order by id")
        return [row["event"] for row in rows]


@pytest.fixture
async def desk(postgres_server: EmbeddedPostgres) -> AsyncIterator[Desk]:
    async with cloned_database(postgres_server, [migrations(SCHEMA)], max_size=CONNECTIONS) as database:
        yield Desk(database)
