"""Whether memory follows the number of recipients: as many distinct ones as asked for, through the admission path.

Keys, budgets and circuits are checked and rows written by the admission itself, in batches as large as it makes them
under load; each recipient gets a bucket. What is idle is forgotten as Messenger forgets it. The process's memory is
read after the first few thousand, and at the end.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from butlers.clock import Clock
from butlers.contracts.notify import Delivery, NotifyEnvelope
from butlers.ids import Uuid7Factory
from butlers.messenger.admission import Admission
from butlers.messenger.admission_rules import Refused
from butlers.messenger.config import DeliverySection, LimitsSection
from butlers.messenger.deliveries import migrations
from butlers.messenger.delivery import NewDelivery
from butlers.storage.database import Database
from butlers.storage.migrations import migrate
from butlers.storage.queries import Queries

GOAL_MB = 64.0  # a map of a million recipients would take several times that
SCHEMA = "messenger"
WARM_UP = 5_000
BATCH = 500
STEP = 50_000
ENDED = f"UPDATE {SCHEMA}.delivery_requests SET status = 'delivered', terminal_at = now() WHERE status = 'pending'"


class Admissions:
    """Messenger's admission on a database of its own, with the shipped limit per recipient."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._new_id = Uuid7Factory(clock)
        self._queries = Queries.load("butlers.messenger.upkeep", schema=SCHEMA)
        limits = LimitsSection(
            max_in_flight=10**9,
            global_per_minute=1e9,
            channel_per_minute=dict.fromkeys(LimitsSection().channel_per_minute, 1e9),
        )
        policy = DeliverySection(limits=limits)
        self._book = Admission(database=database, schema=SCHEMA, clock=clock, policy=policy, new_id=self._new_id)

    async def take(self, numbers: Sequence[int]) -> None:
        """One batch of deliveries, each to somebody new; all of them end at once."""
        async with self._database.transaction() as connection:
            entries = await self._book.enter(connection, [self._new(n) for n in numbers], self._clock.now())
            await connection.execute(ENDED)
        if refused := [entry for entry in entries if isinstance(entry, Refused)]:
            raise refused[0].error

    async def tidy(self) -> None:
        """What Messenger's own timer does: buckets that are full again are forgotten."""
        await self._database.fetchval(self._queries.forget_idle_budgets, self._clock.now() + timedelta(minutes=1))

    def _new(self, number: int) -> NewDelivery:
        target = f"person-{number}"
        delivery = Delivery(intent="send", channel="sms", message=f"message {number}", recipient=target)
        return NewDelivery(
            id=self._new_id(),
            idempotency_key=f"memory-{number}",
            notify=NotifyEnvelope(origin_butler="general", delivery=delivery),
            target=target,
            identity_scope="bot",
            message=delivery.message,
            subject=None,
            ordering_key=f"sms:{target}",
            source_event=None,
            duplicate_detection=True,
        )


async def measure_memory(database: Database, *, recipients: int, clock: Clock) -> dict[str, Any]:
    await migrate(database, [migrations(SCHEMA)])
    admissions = Admissions(database, clock)
    await _admit(admissions, 0, min(WARM_UP, recipients))
    before, began = _resident_mb(), clock.monotonic()
    for start in range(WARM_UP, recipients, STEP):
        await _admit(admissions, start, min(start + STEP, recipients))
        await admissions.tidy()
        print(
            f"bench: {min(start + STEP, recipients)} recipients, {_resident_mb():.0f} MB", file=sys.stderr, flush=True
        )
    after = _resident_mb()
    return {
        "recipients": recipients,
        "rss_before_mb": round(before, 1),
        "rss_after_mb": round(after, 1),
        "growth_mb": round(after - before, 1),
        "admissions_per_s": round(max(0, recipients - WARM_UP) / max(clock.monotonic() - began, 1e-9)),
    }


async def _admit(admissions: Admissions, first: int, end: int) -> None:
    for start in range(first, end, BATCH):
        await admissions.take(range(start, min(start + BATCH, end)))


def _resident_mb() -> float:
    gc.collect()
    status = Path("/proc/self/status").read_text()
    [line] = [line for line in status.splitlines() if line.startswith("VmRSS:")]
    return int(line.split()[1]) / 1024
