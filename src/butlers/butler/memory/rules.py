"""Rules as rows: how to act, and how well that went."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any
from uuid import UUID

from butlers.butler.memory.confidence import REFUTED, maturity_after
from butlers.butler.memory.values import Correction, Maturity, Origin, folded
from butlers.storage.database import Database, Executor, Record
from butlers.storage.queries import Queries


class Rules:
    def __init__(self, *, database: Database, queries: Queries, new_id: Callable[[], UUID]) -> None:
        self._database = database
        self._queries = queries
        self._new_id = new_id

    async def store(
        self, connection: Executor, content: str, *, origin: Origin, now: datetime, maturity: Maturity = "candidate"
    ) -> tuple[UUID, Maturity]:
        """In the caller's transaction. A rule that is known gains by being said again."""
        # What is stored as an anti-pattern has done its harm already, and must earn its way back.
        harmful = REFUTED if maturity == "anti_pattern" else 0
        row = await connection.fetchrow(
            self._queries.store_rule,
            self._new_id(),
            content,
            folded(content),
            maturity,
            0,
            harmful,
            origin,
            now,
        )
        assert row is not None  # an insert or an update returns a row
        return row["id"], await self._mature(connection, row)

    async def note(self, connection: Executor, correction: Correction, *, now: datetime) -> bool:
        """Remember that an episode corrected the butler; the second one makes it a rule."""
        await connection.execute(self._queries.lock_facts)  # two who say the same at once see each other
        repeated: bool = await connection.fetchval(
            self._queries.note_correction, folded(correction.content), correction.episode_id, now
        )
        if repeated:
            await self.store(connection, correction.content, origin="local", now=now)
        return repeated

    async def used(self, rule_id: UUID, *, helped: bool, now: datetime) -> Maturity | None:
        """What the rule is after one more use; None when there is no such rule."""
        async with self._database.transaction() as connection:
            row = await connection.fetchrow(
                self._queries.use_rule, rule_id, 1 if helped else 0, 0 if helped else 1, now
            )
            return await self._mature(connection, row) if row is not None else None

    async def _mature(self, connection: Executor, row: Record) -> Maturity:
        current: Maturity = row["maturity"]
        reached = maturity_after(current, row["helpful_count"], row["harmful_count"])
        if reached != current:
            await connection.execute(self._queries.set_maturity, row["id"], reached)
        return reached

    async def get(self, rule_id: UUID) -> dict[str, Any] | None:
        row = await self._database.fetchrow(self._queries.get_rule, rule_id)
        return dict(row) if row else None

    async def forget(self, rule_id: UUID) -> int:
        return 1 if await self._database.fetchval(self._queries.forget_rule, rule_id) else 0
