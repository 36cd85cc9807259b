"""A butler's small memory: named JSON values."""

from __future__ import annotations

from typing import Any

from butlers.clock import Clock
from butlers.storage.database import Database
from butlers.storage.queries import Queries


class StateStore:
    def __init__(self, *, database: Database, schema: str, clock: Clock) -> None:
        self._database = database
        self._queries = Queries.load("butlers.butler", schema=schema)
        self._clock = clock

    async def get(self, key: str) -> dict[str, Any]:
        row = await self._database.fetchrow(self._queries.get_state, key)
        return {"found": row is not None, "value": row["value"] if row else None}

    async def set(self, key: str, value: Any) -> None:
        await self._database.execute(self._queries.set_state, key, value, self._clock.now())

    async def delete(self, key: str) -> bool:
        return bool(await self._database.fetchval(self._queries.delete_state, key))

    async def list(self, prefix: str, after: str | None, limit: int) -> list[dict[str, Any]]:
        return [dict(row) for row in await self._database.fetch(self._queries.list_state, prefix, after, limit)]
