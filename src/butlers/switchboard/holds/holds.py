"""Holding a butler: it stays registered and alive, and gets no new routes until it is released.

Quarantine is what silence leads to, and a sign of life ends it. A hold is what a person decided, and only a person
ends it; so it is kept apart from the eligibility state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from butlers.clock import Clock
from butlers.contracts.envelope import invalid
from butlers.errors import NotFound, ValidationError
from butlers.storage.database import Database, Executor
from butlers.storage.queries import Queries
from butlers.switchboard.registry import NOT_ROUTABLE


@dataclass(frozen=True, slots=True, kw_only=True)
class Holds:
    database: Database
    queries: Queries
    clock: Clock
    new_id: Callable[[], UUID]

    async def hold(self, butler: str, *, operator: str, reason: str) -> dict[str, Any]:
        if butler in NOT_ROUTABLE:
            raise invalid("butler", f"{butler} takes no routes anyway")
        held = {"operator": operator, "reason": reason, "at": self.clock.now().isoformat()}
        async with self.database.transaction() as connection:
            state = await connection.fetchval(self.queries.hold_butler, butler, held)
            if state is None:
                raise await self._not_possible(connection, butler, "is held already")
            await self._note(connection, butler, state, "held", f"held by {operator}: {reason}")
        return {"butler": butler, "held": held, "eligibility_state": state}

    async def release(self, butler: str, *, operator: str, reason: str) -> dict[str, Any]:
        async with self.database.transaction() as connection:
            state = await connection.fetchval(self.queries.release_butler, butler)
            if state is None:
                raise await self._not_possible(connection, butler, "is not held")
            await self._note(connection, butler, "held", state, f"released by {operator}: {reason}")
        return {"butler": butler, "held": None, "eligibility_state": state}

    async def history(self, butler: str, *, before: UUID | None, limit: int) -> dict[str, Any]:
        if await self.database.fetchrow(self.queries.butler_held, butler) is None:
            raise _unknown(butler)
        rows = await self.database.fetch(self.queries.history_of_butler, butler, before, limit + 1)
        page = [dict(row) for row in rows[:limit]]
        return {"butler": butler, "history": page, "next_cursor": page[-1]["id"] if len(rows) > limit else None}

    async def _not_possible(self, connection: Executor, butler: str, why: str) -> ValidationError:
        known = await connection.fetchrow(self.queries.butler_held, butler)
        return invalid("butler", f"{butler} {why}") if known else _unknown(butler)

    async def _note(self, connection: Executor, butler: str, previous: str, new: str, reason: str) -> None:
        await connection.execute(self.queries.note_hold, self.new_id(), butler, previous, new, reason, self.clock.now())


def _unknown(butler: str) -> ValidationError:
    return NotFound.of("butler", f"no such butler: {butler}")
