"""Who changed what about a subject, in the transaction of the change. The last `MOST_CHANGES` of a subject are kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from butlers.outbound import SCHEMA
from butlers.storage.database import Database, Executor
from butlers.storage.queries import Queries

MOST_CHANGES = 100  # of one subject
SHOWN_CHANGES = 20


class ChangeLog:
    def __init__(self, *, database: Database, new_id: Callable[[], UUID], schema: str = SCHEMA) -> None:
        self._database = database
        self._new_id = new_id
        self._queries = Queries.load("butlers.outbound", schema=schema)

    async def record(
        self,
        connection: Executor,
        subject_id: str,
        action: str,
        details: Mapping[str, Any],
        *,
        changed_by: str,
        now: datetime,
        change_id: UUID | None = None,  # a repeat under the same id is not recorded
    ) -> bool:
        """Whether the change is new; if not, the caller must not make it again."""
        values = (change_id or self._new_id(), subject_id, action, details, changed_by, now)
        if await connection.fetchval(self._queries.add_change, *values) is None:
            return False
        await connection.execute(self._queries.drop_old_changes, subject_id, MOST_CHANGES)
        return True

    async def of(self, subject_id: str) -> list[dict[str, Any]]:
        """The last changes, newest first."""
        rows = await self._database.fetch(self._queries.changes_of, subject_id, SHOWN_CHANGES)
        return [dict(row) for row in rows]
