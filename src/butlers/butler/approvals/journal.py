"""The record of what happened to actions and rules: ids, names and reasons, never the content of a message."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any
from uuid import UUID

from butlers.storage.database import Executor
from butlers.storage.queries import Queries


class Journal:
    def __init__(self, *, queries: Queries, new_id: Callable[[], UUID]) -> None:
        self._queries = queries
        self._new_id = new_id

    async def record(
        self,
        connection: Executor,
        event: str,
        *,
        at: datetime,
        actor: str,
        tool_name: str,
        action_id: UUID | None = None,
        rule_id: UUID | None = None,
        **details: Any,
    ) -> None:
        """Write one line, in the transaction of what it tells about."""
        known = {name: value for name, value in details.items() if value is not None}
        await connection.execute(
            self._queries.record_event, self._new_id(), at, event, action_id, rule_id, actor, tool_name, known
        )
