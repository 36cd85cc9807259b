"""Takes old records away, a batch at a time, so that nobody waits long for a lock.

Each batch goes on where the last one stopped: what has to stay is looked at once in a run, not once in a batch. Rows
are locked before it is decided about them, so a person who sets an old delivery aside at the same moment either comes
first, and keeps it, or finds it gone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeAlias
from uuid import UUID

from butlers.clock import Clock
from butlers.messenger.retention.periods import (
    RetentionPolicy,
    cutoffs,
    forgettable_dead_letters,
    forgettable_deliveries,
)
from butlers.storage.database import Database, Executor
from butlers.storage.queries import Queries
from butlers.telemetry import Telemetry, get_logger
from butlers.telemetry.catalogue import RECORDS_REMOVED

log = get_logger("butlers.retention")

BATCH = 1000

Place: TypeAlias = tuple[datetime, UUID]  # the last row that was looked at
Step: TypeAlias = Callable[[Executor, datetime, Place], Awaitable[tuple[Counter[str], Place | None]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    database: Database
    queries: Queries
    clock: Clock
    telemetry: Telemetry
    policy: RetentionPolicy
    batch: int = BATCH

    @classmethod
    def of(
        cls, *, database: Database, schema: str, clock: Clock, telemetry: Telemetry, policy: RetentionPolicy
    ) -> Retention:
        queries = Queries.load("butlers.messenger.retention", schema=schema)
        return cls(database=database, queries=queries, clock=clock, telemetry=telemetry, policy=policy)

    async def remove(self) -> dict[str, int]:
        """Remove what is old and over; how many of each kind of record."""
        before = cutoffs(self.policy, self.clock.now())
        removed: Counter[str] = Counter()
        # Dead letters first: they hold their deliveries.
        for cutoff, step in (
            (before.dead_letters, self._dead_letters),
            (before.deliveries, self._deliveries),
            (before.actions, self._actions),
        ):
            if cutoff is not None:
                removed += await self._in_batches(step, cutoff)
        _tell(removed)
        return dict(removed)

    async def _in_batches(self, step: Step, cutoff: datetime) -> Counter[str]:
        removed: Counter[str] = Counter()
        place: Place | None = (datetime.min.replace(tzinfo=UTC), UUID(int=0))
        while place is not None:
            async with self.database.transaction() as connection:
                counts, place = await step(connection, cutoff, place)
            for record, count in counts.items():
                self.telemetry.count(RECORDS_REMOVED, count, record=record)
            removed += counts
        return removed

    async def _dead_letters(
        self, connection: Executor, cutoff: datetime, place: Place
    ) -> tuple[Counter[str], Place | None]:
        letters = await self._rows(connection, self.queries.old_dead_letters, cutoff, *place, self.batch)
        arrivals = await connection.fetch(self.queries.arrivals, [letter["delivery_id"] for letter in letters])
        arrived = {row["delivery_id"]: row["arrived_at"] for row in arrivals}
        gone = forgettable_dead_letters(letters, arrived, cutoff)
        await connection.execute(self.queries.remove_dead_letters, gone)
        return Counter(dead_letter=len(gone)), self._behind([(row["created_at"], row["id"]) for row in letters])

    async def _deliveries(
        self, connection: Executor, cutoff: datetime, place: Place
    ) -> tuple[Counter[str], Place | None]:
        held = await self._rows(connection, self.queries.hold_old_families, cutoff, *place, self.batch)
        letters = await connection.fetch(self.queries.with_dead_letter, [row["id"] for row in held])
        gone = forgettable_deliveries(held, {row["id"] for row in letters}, cutoff)
        counts = await connection.fetchrow(self.queries.remove_deliveries, gone)
        first = [(row["terminal_at"], row["id"]) for row in held if row["id"] == row["first_id"] and row["terminal_at"]]
        return Counter(dict(counts or {})), self._behind(first)

    async def _actions(self, connection: Executor, cutoff: datetime, place: Place) -> tuple[Counter[str], Place | None]:
        gone = await connection.fetch(self.queries.remove_actions, cutoff, self.batch)
        return Counter(action=len(gone)), place if len(gone) == self.batch else None

    async def _rows(self, connection: Executor, query: str, *values: Any) -> list[dict[str, Any]]:
        return [dict(row) for row in await connection.fetch(query, *values)]

    def _behind(self, seen: Sequence[Place]) -> Place | None:
        """Where the next batch begins; None after one that was not full."""
        return max(seen) if len(seen) == self.batch else None


def _tell(removed: Counter[str]) -> None:
    if removed["dead_letter"]:
        log.info("old dead letters removed", count=removed["dead_letter"])
    if removed["delivery"]:
        log.info("old deliveries removed", count=removed["delivery"], attempts=removed["attempt"])
    if removed["action"]:
        log.info("old actions removed", count=removed["action"])
