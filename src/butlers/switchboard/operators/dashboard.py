"""`dashboard_audit_log`: what butlers and operators did (seed 003, "Audit log writes"). Telling it costs nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from butlers.butler.activity import Activity, ActivityQueue
from butlers.clock import Clock
from butlers.storage.database import Database
from butlers.storage.queries import Queries
from butlers.switchboard.operators.paging import page, place


class AuditLog:
    def __init__(self, *, database: Database, schema: str, clock: Clock, new_id: Callable[[], UUID]) -> None:
        self._database = database
        self._queries = Queries.load("butlers.switchboard.operators", schema=schema)
        self._clock = clock
        self._new_id = new_id
        self._queue = ActivityQueue(sink=self._store)
        self.report = self._queue.report
        self.run = self._queue.run
        self.close = self._queue.close

    def write(
        self,
        *,
        butler: str,
        operation: str,
        request_summary: Mapping[str, Any],
        result: str,
        error: str | None = None,
        actor: str | None = None,
    ) -> None:
        activity = Activity(
            butler=butler,
            operation=operation,
            request_summary=request_summary,
            result=result,
            error=error,
            actor=actor,
            at=self._clock.now(),
        )
        self.report(activity)

    async def list(
        self,
        *,
        butler: str | None = None,
        operation: str | None = None,
        result: str | None = None,
        since: datetime | None = None,
        cursor: str | None = None,
        limit: int = 50,
    ) -> dict[str, Any]:
        values = (butler, operation, result, since, *place(cursor), limit + 1)
        rows = [dict(row) for row in await self._database.fetch(self._queries.list_activity, *values)]
        entries, following = page(rows, limit)
        return {"entries": entries, "next_cursor": following}

    async def _store(self, entries: Sequence[Activity]) -> None:
        rows = [
            (
                self._new_id(),
                entry.butler,
                entry.operation,
                entry.request_summary,
                entry.result,
                entry.error,
                entry.actor,
                entry.at,
            )
            for entry in entries
        ]
        await self._database.executemany(self._queries.record_activity, rows)
