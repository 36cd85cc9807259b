"""What has to happen although nobody asks: Messenger's own timers (it has no schedules), and how long it keeps what it
did.

What refers to each other is removed together or not at all:

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
from typing import Any, TypeAlias
from uuid import UUID

from butlers.butler.approvals.approvals import Approvals
from butlers.clock import Clock
from butlers.contracts.delivery_state import FINISHED
from butlers.messenger.config import DeliverySection
from butlers.messenger.deliveries import Deliveries
from butlers.messenger.observer import Observer
from butlers.messenger.parking import Notices, Parking
from butlers.messenger.release import Readmission
from butlers.messenger.worker import DeliveryWorker
from butlers.storage.database import Database, Executor
from butlers.storage.queries import Queries
from butlers.telemetry import get_logger
from butlers.telemetry.catalogue import RECORDS_REMOVED
from butlers.telemetry.telemetry import Telemetry

log = get_logger("butlers.retention")

OUTCOME_RETENTION = timedelta(days=90)
RETIRED_AT_ONCE = 1000  # as the query says
BATCH = 1000
Place: TypeAlias = tuple[datetime, UUID]  # the last row that was looked at
Removed: TypeAlias = tuple[Counter[str], Place | None]  # how many of each kind of record, and where to go on


@dataclass(frozen=True, slots=True, kw_only=True)
class Upkeep:
    database: Database
    queries: Queries
    readmission: Readmission
    deliveries: Deliveries
    worker: DeliveryWorker
    parking: Parking
    approvals: Approvals
    notices: Notices | None  # None: the owner is not told
    observer: Observer
    clock: Clock
    retention: Retention

    def timers(self) -> dict[str, tuple[float, Callable[[], Awaitable[object]]]]:
        """By name: every how many seconds, what."""
        notices = {"notices": (1.0, self.tell_owner)} if self.notices is not None else {}
        return {
            "release": (0.5, self.release),
            "probes": (0.5, self.worker.probe),
            "expiry": (1.0, self.expire),
            "parked": (2.0, self.look_after_parked),
            "tidying": (30.0, self.tidy),
            "retention": (3600.0, self.retention.remove),
            **notices,
        }

    async def release(self) -> None:
        """Admit what was approved, replayed or settled."""
        if await self.readmission.admit():
            self.worker.wake()

    async def expire(self) -> None:
        if expired := await self.deliveries.expire():
            self.observer.expired(expired)
            self.worker.wake()

    async def tell_owner(self) -> None:
        if self.notices is not None and await self.notices.tell() is not None:
            self.worker.wake()

    async def look_after_parked(self) -> None:
        await self.approvals.expire()
        if await self.parking.address_parked():
            self.worker.wake()

    async def tidy(self) -> None:
        """Forget what no longer says anything: idle budgets, closed windows, old keys and counts."""
        now = self.clock.now()
        await self.database.fetchval(self.queries.forget_idle_budgets, now)
        keys_end = now - timedelta(days=self.retention.policy.dedupe_retention_days)
        while len(await self.database.fetch(self.queries.retire_keys, keys_end)) == RETIRED_AT_ONCE:
            pass
        await self.database.execute(self.queries.forget_outcomes, now - OUTCOME_RETENTION)


def cutoffs(policy: DeliverySection, now: datetime) -> dict[str, datetime | None]:
    """By kind of record: what ended before this moment may go; None: nothing may. A dead letter answers for no key;
    deliveries and actions do, and are kept at least as long as that.
    """
    retention, keys = policy.retention, policy.dedupe_retention_days
    days = {
        "dead_letter": retention.dead_letters_days,
        "delivery": retention.deliveries_days and max(retention.deliveries_days, keys),
        "action": retention.actions_days and max(retention.actions_days, keys),
    }
    return {kind: now - timedelta(days=number) if number else None for kind, number in days.items()}


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
    policy: DeliverySection
    batch: int = BATCH

    async def remove(self) -> dict[str, int]:
        """Remove what is old and over; how many of each kind of record."""
        removed: Counter[str] = Counter()
        # In this order: dead letters hold their deliveries.
        steps = {"dead_letter": self._dead_letters, "delivery": self._deliveries, "action": self._actions}
        before = cutoffs(self.policy, self.clock.now())
        for kind, step in steps.items():
            if (cutoff := before[kind]) is not None:
                removed += await self._in_batches(step, cutoff)
        if removed["dead_letter"]:
            log.info("old dead letters removed", count=removed["dead_letter"])
        if removed["delivery"]:
            log.info("old deliveries removed", count=removed["delivery"], attempts=removed["attempt"])
        if removed["action"]:
            log.info("old actions removed", count=removed["action"])
        return dict(removed)

    async def _in_batches(
        self, step: Callable[[Executor, datetime, Place], Awaitable[Removed]], cutoff: datetime
    ) -> Counter[str]:
        removed: Counter[str] = Counter()
        place: Place | None = (datetime.min.replace(tzinfo=UTC), UUID(int=0))
        while place is not None:
            async with self.database.transaction() as connection:
                counts, place = await step(connection, cutoff, place)
            for record, count in counts.items():
                self.telemetry.count(RECORDS_REMOVED, count, record=record)
            removed += counts
        return removed

    async def _dead_letters(self, connection: Executor, cutoff: datetime, place: Place) -> Removed:
        letters = [
            dict(row) for row in await connection.fetch(self.queries.old_dead_letters, cutoff, *place, self.batch)
        ]
        arrivals = await connection.fetch(self.queries.arrivals, [letter["delivery_id"] for letter in letters])
        arrived = {row["delivery_id"]: row["arrived_at"] for row in arrivals}
        gone = forgettable_dead_letters(letters, arrived, cutoff)
        await connection.execute(self.queries.remove_dead_letters, gone)
        return Counter(dead_letter=len(gone)), self._behind([(row["created_at"], row["id"]) for row in letters])

    async def _deliveries(self, connection: Executor, cutoff: datetime, place: Place) -> Removed:
        held = [dict(row) for row in await connection.fetch(self.queries.hold_old_families, cutoff, *place, self.batch)]
        letters = await connection.fetch(self.queries.with_dead_letter, [row["id"] for row in held])
        gone = forgettable_deliveries(held, {row["id"] for row in letters}, cutoff)
        counts = await connection.fetchrow(self.queries.remove_deliveries, gone)
        first = [(row["terminal_at"], row["id"]) for row in held if row["id"] == row["first_id"] and row["terminal_at"]]
        return Counter(dict(counts or {})), self._behind(first)

    async def _actions(self, connection: Executor, cutoff: datetime, place: Place) -> Removed:
        gone = await connection.fetch(self.queries.remove_actions, cutoff, self.batch)
        return Counter(action=len(gone)), place if len(gone) == self.batch else None

    def _behind(self, seen: Sequence[Place]) -> Place | None:
        """Where the next batch begins; None after one that was not full."""
        return max(seen) if len(seen) == self.batch else None
