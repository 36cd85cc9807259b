"""Opens the queue that the setting `outbound_queue` names, and reports its figures as metrics."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit
from uuid import UUID

from butlers.clock import Clock
from butlers.outbound import SCHEMA
from butlers.outbound.memory_queue import MemoryQueue
from butlers.outbound.postgres_queue import PostgresQueue
from butlers.outbound.queue import LEASE_S, QueueAdapter, QueueStats, check_queue_address
from butlers.outbound.redis_queue import RedisQueue
from butlers.storage.database import Database
from butlers.telemetry.catalogue import (
    OUTBOUND_QUEUE_ACKNOWLEDGED,
    OUTBOUND_QUEUE_DEAD_LETTERED,
    OUTBOUND_QUEUE_ENTRIES,
    OUTBOUND_QUEUE_OLDEST_AGE,
)
from butlers.telemetry.telemetry import Telemetry

PREFIX = "outbound"  # of the keys in Redis; `?prefix=` in the address names another one


def open_queue(
    address: str,
    *,
    database: Database,
    clock: Clock,
    new_id: Callable[[], UUID],
    schema: str = SCHEMA,
    lease_s: float = LEASE_S,
) -> QueueAdapter:
    """Connects to nothing yet. Raises `ConfigurationError` for an address that names no queue."""
    check_queue_address(address)
    if address == "memory":
        return MemoryQueue(lease_s=lease_s)
    if address == "postgres":
        return PostgresQueue(database, clock, new_id, schema=schema, lease_s=lease_s)
    parts = urlsplit(address)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    prefix = options.pop("prefix", PREFIX)
    url = urlunsplit(parts._replace(query=urlencode(options)))
    return RedisQueue(url, new_id=new_id, prefix=prefix, lease_s=lease_s)


class QueueMonitor:
    """Reports what the queue holds. The counts of what has ended are the store's, of all processes together, and go on
    where they were after a restart.
    """

    def __init__(self, queue: QueueAdapter, telemetry: Telemetry, clock: Clock) -> None:
        self._queue = queue
        self._telemetry = telemetry
        self._clock = clock
        self._acknowledged = 0  # counted so far
        self._dead_lettered = 0

    async def run_once(self) -> QueueStats:
        """Raises `TargetUnavailable` when the queue's store does not answer; the metrics then stay as they are."""
        now = self._clock.now()
        stats = await self._queue.stats(now=now)
        oldest = stats.oldest_scheduled_at
        age = 0.0 if oldest is None else max(0.0, (now - oldest).total_seconds())
        self._telemetry.gauge(OUTBOUND_QUEUE_ENTRIES, stats.queued, state="queued")
        self._telemetry.gauge(OUTBOUND_QUEUE_ENTRIES, stats.in_flight, state="in_flight")
        self._telemetry.gauge(OUTBOUND_QUEUE_OLDEST_AGE, age)
        # A store that was emptied begins anew; a counter cannot go back.
        self._telemetry.count(OUTBOUND_QUEUE_ACKNOWLEDGED, max(0, stats.acknowledged - self._acknowledged))
        self._telemetry.count(OUTBOUND_QUEUE_DEAD_LETTERED, max(0, stats.dead_lettered - self._dead_lettered))
        self._acknowledged, self._dead_lettered = stats.acknowledged, stats.dead_lettered
        return stats
