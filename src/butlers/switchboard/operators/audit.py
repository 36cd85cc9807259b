"""What operators did about requests: who, when, why, and how it went, also when it was refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from butlers.operations.requests import Action
from butlers.storage.database import Database, Executor
from butlers.storage.queries import Queries
from butlers.switchboard.operators.paging import page, place

ActionOutcome = Literal["success", "failed", "rejected", "partial"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What an operator asks for."""

    action: Action
    operator: str
    reason: str
    at: datetime
    request_id: UUID | None  # None: the dead letter knows
    payload: Mapping[str, Any] = field(default_factory=dict)  # what belongs to the action: target, annotation, letter

    def override(self, **more: Any) -> dict[str, Any]:
        """The wish as the request's own record keeps it."""
        at = self.at.isoformat()
        return {"action": self.action.value, "operator": self.operator, "reason": self.reason, "at": at} | more


class OperatorAudit:
    def __init__(self, *, database: Database, schema: str, new_id: Callable[[], UUID]) -> None:
        self._database = database
        self._queries = Queries.load("butlers.switchboard.operators", schema=schema)
        self._new_id = new_id

    async def record(
        self,
        wish: Wish,
        outcome: ActionOutcome,
        details: Mapping[str, Any],
        *,
        request_id: UUID | None,
        connection: Executor | None = None,  # None: on its own, whatever became of the action
    ) -> UUID:
        audit_id = self._new_id()
        await (connection or self._database).execute(
            self._queries.record_action,
            audit_id,
            wish.action.value,
            request_id,
            wish.operator,
            wish.reason,
            wish.payload,
            outcome,
            details,
            wish.at,
        )
        return audit_id

    async def list(
        self,
        *,
        request_id: UUID | None = None,
        operator: str | None = None,
        action: str | None = None,
        since: datetime | None = None,
        cursor: str | None = None,
        limit: int = 50,
    ) -> dict[str, Any]:
        values = (request_id, operator, action, since, *place(cursor), limit + 1)
        rows = [dict(row) for row in await self._database.fetch(self._queries.list_actions, *values)]
        actions, following = page(rows, limit)
        shown = [{key: value for key, value in row.items() if key != "created_at"} for row in actions]
        return {"actions": shown, "next_cursor": following}
