"""Looking at actions."""

from __future__ import annotations

from collections import Counter
from typing import Any
from uuid import UUID

from butlers.butler.approvals.values import NO_ACTION
from butlers.contracts.approval_state import Status
from butlers.errors import NotFound
from butlers.storage.database import Database
from butlers.storage.queries import Queries


class ActionReader:
    def __init__(self, *, database: Database, queries: Queries) -> None:
        self._database = database
        self._queries = queries

    async def show(self, action_id: UUID) -> dict[str, Any]:
        """One action, whole, with its record."""
        row = await self._database.fetchrow(self._queries.get_action, action_id)
        if row is None:
            raise NotFound.of("action_id", NO_ACTION)
        events = await self._database.fetch(self._queries.events_of_action, action_id)
        return dict(row) | {"events": [dict(event) for event in events]}

    async def list(
        self,
        *,
        status: Status | None = "pending",  # None: all
        tool_name: str | None = None,
        cursor: UUID | None = None,
        limit: int = 50,
    ) -> dict[str, Any]:
        """Newest first."""
        rows = await self._database.fetch(self._queries.list_actions, status, tool_name, cursor, limit + 1)
        page = [dict(row) for row in rows[:limit]]
        return {"actions": page, "next_cursor": page[-1]["id"] if len(rows) > limit else None}

    async def counts(self) -> dict[str, Any]:
        rows = await self._database.fetch(self._queries.count_actions)
        waiting = [row for row in rows if row["status"] == "pending"]
        by_status: Counter[str] = Counter()
        for row in rows:
            by_status[row["status"]] += row["actions"]
        return {
            "pending": by_status["pending"],
            "by_tool": {row["tool_name"]: row["actions"] for row in waiting},
            "by_status": dict(by_status),
            "oldest_requested_at": min((row["oldest"] for row in waiting), default=None),
            "next_expires_at": min((row["next_expiry"] for row in waiting), default=None),
        }
