"""Messenger's own timers: what has to happen although nobody asks (it has no schedules)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta

from butlers.butler.approvals.approvals import Approvals
from butlers.clock import Clock
from butlers.messenger.deliveries import Deliveries
from butlers.messenger.notices import Notices
from butlers.messenger.observer import Observer
from butlers.messenger.parking import Parking
from butlers.messenger.release import Readmission
from butlers.messenger.retention import Retention
from butlers.messenger.worker import DeliveryWorker
from butlers.storage.database import Database
from butlers.storage.queries import Queries

OUTCOMES_KEPT = timedelta(days=90)
RETIRED_AT_ONCE = 1000  # as the query says


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
    dedupe_retention: timedelta
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
        while len(await self.database.fetch(self.queries.retire_keys, now - self.dedupe_retention)) == RETIRED_AT_ONCE:
            pass
        await self.database.execute(self.queries.forget_outcomes, now - OUTCOMES_KEPT)
