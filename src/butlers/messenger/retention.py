"""How long Messenger keeps what it did, and how that goes.

    periods   from "so many days" to moments, and which of the old records nobody needs any more; decisions only
    removal   takes them away, a batch at a time

What refers to each other goes together or not at all:

    delivery  <--replay_of--  replay  <--replay_of--  replay     one family: the first delivery and its replays
       ^                        ^
       +-- attempts, receipts   +-- attempts, receipts           go with their delivery
       ^                        ^
    dead letter              dead letter                         goes first, and holds its family until then

A family stays whole because the replays are what forbids sending a dead letter a second time: a delivered replay that
was forgotten before its dead letter would let the same words out again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Self, TypeAlias
from uuid import UUID

from butlers.clock import Clock
from butlers.contracts.delivery_state import FINISHED
from butlers.messenger.config import DeliverySection
from butlers.storage.database import Database, Executor
from butlers.storage.queries import Queries
from butlers.telemetry import Telemetry, get_logger
from butlers.telemetry.catalogue import RECORDS_REMOVED

log = get_logger("butlers.retention")

BATCH = 1000
Place: TypeAlias = tuple[datetime, UUID]  # the last row that was looked at
Step: TypeAlias = Callable[[Executor, datetime, Place], Awaitable[tuple[Counter[str], Place | None]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionPolicy:
    """How long things are kept after their end; None: for ever."""

    deliveries: timedelta | None
    dead_letters: timedelta | None
    actions: timedelta | None
    keys: timedelta  # an ended delivery answers for its key as long as this

    @classmethod
    def of(cls, delivery: DeliverySection) -> Self:
        days = delivery.retention
        return cls(
            deliveries=timedelta(days=days.deliveries_days) if days.deliveries_days else None,
            dead_letters=timedelta(days=days.dead_letters_days) if days.dead_letters_days else None,
            actions=timedelta(days=days.actions_days) if days.actions_days else None,
            keys=timedelta(days=delivery.dedupe_retention_days),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cutoffs:
    """What ended before these moments may go; None: nothing may."""

    deliveries: datetime | None
    dead_letters: datetime | None
    actions: datetime | None


def cutoffs(policy: RetentionPolicy, now: datetime) -> Cutoffs:
    """A dead letter answers for no key; deliveries and actions do, and are kept at least as long as that."""

    def before(period: timedelta | None, *, at_least: timedelta = timedelta()) -> datetime | None:
        return None if period is None else now - max(period, at_least)

    return Cutoffs(
        deliveries=before(policy.deliveries, at_least=policy.keys),
        dead_letters=before(policy.dead_letters),
        actions=before(policy.actions, at_least=policy.keys),
    )


def forgettable_deliveries(
    held: Iterable[Mapping[str, Any]], with_dead_letter: Collection[UUID], cutoff: datetime
) -> list[UUID]:
    """Of whole families, those in which nothing is recent, open or waits for a person."""
    families: dict[UUID, list[Mapping[str, Any]]] = {}
    for row in held:
        families.setdefault(row["first_id"], []).append(row)
    return [
        row["id"]
        for family in families.values()
        if all(
            # duplicate_detection ends when the key is retired; until then a repeat is answered from this row.
            row["status"] in FINISHED
            and row["terminal_at"] < cutoff
            and not row["duplicate_detection"]
            and row["id"] not in with_dead_letter
            for row in family
        )
        for row in family
    ]


def forgettable_dead_letters(
    letters: Iterable[Mapping[str, Any]], arrived: Mapping[UUID, datetime], cutoff: datetime
) -> list[UUID]:
    """Those that were given up, or whose message arrived after all, long enough ago; `arrived` is by delivery."""
    return [
        letter["id"]
        for letter in letters
        if any(
            moment is not None and moment < cutoff
            for moment in (letter["discarded_at"], arrived.get(letter["delivery_id"]))
        )
    ]


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
        if removed["dead_letter"]:
            log.info("old dead letters removed", count=removed["dead_letter"])
        if removed["delivery"]:
            log.info("old deliveries removed", count=removed["delivery"], attempts=removed["attempt"])
        if removed["action"]:
            log.info("old actions removed", count=removed["action"])
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
        letters = [
            dict(row) for row in await connection.fetch(self.queries.old_dead_letters, cutoff, *place, self.batch)
        ]
        arrivals = await connection.fetch(self.queries.arrivals, [letter["delivery_id"] for letter in letters])
        arrived = {row["delivery_id"]: row["arrived_at"] for row in arrivals}
        gone = forgettable_dead_letters(letters, arrived, cutoff)
        await connection.execute(self.queries.remove_dead_letters, gone)
        return Counter(dead_letter=len(gone)), self._behind([(row["created_at"], row["id"]) for row in letters])

    async def _deliveries(
        self, connection: Executor, cutoff: datetime, place: Place
    ) -> tuple[Counter[str], Place | None]:
        held = [dict(row) for row in await connection.fetch(self.queries.hold_old_families, cutoff, *place, self.batch)]
        letters = await connection.fetch(self.queries.with_dead_letter, [row["id"] for row in held])
        gone = forgettable_deliveries(held, {row["id"] for row in letters}, cutoff)
        counts = await connection.fetchrow(self.queries.remove_deliveries, gone)
        first = [(row["terminal_at"], row["id"]) for row in held if row["id"] == row["first_id"] and row["terminal_at"]]
        return Counter(dict(counts or {})), self._behind(first)

    async def _actions(self, connection: Executor, cutoff: datetime, place: Place) -> tuple[Counter[str], Place | None]:
        gone = await connection.fetch(self.queries.remove_actions, cutoff, self.batch)
        return Counter(action=len(gone)), place if len(gone) == self.batch else None

    def _behind(self, seen: Sequence[Place]) -> Place | None:
        """Where the next batch begins; None after one that was not full."""
        return max(seen) if len(seen) == self.batch else None
