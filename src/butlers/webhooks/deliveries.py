"""One event for one endpoint: published, claimed, settled, replayed, forgotten.

pending ──claim──> sending ──2xx──> delivered
   ^                 │ ├──another attempt follows──> pending
   │                 │ └──attempts are used up, or the endpoint is gone──> dead_lettered
   └── the worker died, or an operator replays what ended
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from butlers.butler.lifecycle_events import LifecycleEvent
from butlers.clock import Clock
from butlers.reliability.retry import GiveUp, RetryPolicy, Strategy, next_retry
from butlers.storage.claims import Claim, Claims, ClaimTable
from butlers.storage.database import Database, Record
from butlers.storage.queries import Queries
from butlers.telemetry import get_logger
from butlers.webhooks import SCHEMA
from butlers.webhooks.events import body_of, wants

log = get_logger("butlers.webhooks")

DELIVERED_RETENTION = timedelta(days=7)
DEAD_LETTERED_RETENTION = timedelta(days=30)
DISABLED_AFTER = timedelta(days=5)  # of failures without a success
GONE = 410
GONE_REASON = "the receiver answered 410: it wants no more events"
FAILED_REASON = "every delivery failed for 5 days"
JITTER = 0.2
_FORGOTTEN_AT_ONCE = 5_000
_WAIT_STATUSES = frozenset({429, 503})  # whose Retry-After counts

WEBHOOK_CLAIMS = ClaimTable(
    name="deliveries",
    key={"id": "uuid"},
    state="state",
    held="sending",
    waiting="work.state = 'pending' AND work.next_attempt_at <= $1",
    given_back="'pending'",
)


def retry_policy(schedule: Sequence[float]) -> RetryPolicy:
    """One attempt, and another after each of these pauses, in seconds."""
    longest = max(schedule, default=0.0) * (1 + JITTER)
    kind = Strategy.CUSTOM if schedule else Strategy.NONE
    return RetryPolicy(
        strategy=kind, max_attempts=len(schedule) + 1, schedule=tuple(schedule), max_delay=longest, jitter=JITTER
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where and with which secrets an endpoint is called."""

    endpoint_id: UUID
    url: str
    secrets: tuple[str, ...]  # the present one first

    @classmethod
    def of(cls, row: Record, *, endpoint_id: UUID, now: datetime) -> Target:
        old = (row["old_secret"],) if row["old_secret"] is not None and row["old_secret_until"] > now else ()
        return cls(endpoint_id=endpoint_id, url=row["url"], secrets=(row["secret"], *old))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedDelivery:
    id: UUID
    target: Target
    event_type: str
    payload: Mapping[str, Any]
    attempt: int  # 1-based
    claim: Claim


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came of one attempt."""

    status: int | None = None  # of HTTP; None: there was no answer
    error: str | None = None  # why there was none
    retry_after: float | None = None  # seconds, the receiver's word

    @property
    def is_taken(self) -> bool:
        return self.status is not None and 200 <= self.status < 300

    @property
    def problem(self) -> str | None:
        if self.is_taken:
            return None
        if self.status is not None and 300 <= self.status < 400:
            return f"the receiver answered HTTP {self.status}; redirects are not followed"
        return self.error or f"the receiver answered HTTP {self.status}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """What an answer means for the delivery and its endpoint."""

    state: str
    answer: Answer
    next_attempt_at: datetime | None = None  # None: there is none
    disables: str | None = None  # the reason why the endpoint is told of nothing more


def settlement(answer: Answer, *, attempt: int, policy: RetryPolicy, now: datetime, random: float) -> Settlement:
    """`random` in [0, 1) spreads the retries of many deliveries."""
    if answer.is_taken:
        return Settlement(state="delivered", answer=answer)
    if answer.status == GONE:
        return Settlement(state="dead_lettered", answer=answer, disables=GONE_REASON)
    asked = answer.retry_after if answer.status in _WAIT_STATUSES else None
    decision = next_retry(policy, attempt=attempt, retryable=True, retry_after=asked, random=random)
    if isinstance(decision, GiveUp):
        return Settlement(state="dead_lettered", answer=answer)
    return Settlement(state="pending", answer=answer, next_attempt_at=now + timedelta(seconds=decision.delay))


class Deliveries:
    """Reads and writes the rows."""

    def __init__(self, *, database: Database, clock: Clock, new_id: Callable[[], UUID]) -> None:
        self._database = database
        self._queries = Queries.load("butlers.webhooks", schema=SCHEMA)
        self._clock = clock
        self._new_id = new_id
        self.claims = Claims(WEBHOOK_CLAIMS, database=database, schema=SCHEMA, clock=clock, new_id=new_id)
        self._claim_due = self.claims.fill(self._queries.claim_due)

    async def publish(self, events: Sequence[LifecycleEvent]) -> int:
        """Store a delivery for each event and each enabled endpoint that wants it. An event that is published again
        changes nothing. Returns how many deliveries are new.
        """
        endpoints = await self._database.fetch(self._queries.subscriptions)
        pairs = [
            (self._new_id(), row["id"], number)
            for number, event in enumerate(events, 1)
            for row in endpoints
            if wants(row["event_types"], event.type)
        ]
        if not pairs:
            return 0
        ids, endpoint_ids, numbers = (list(column) for column in zip(*pairs, strict=True))
        columns = [event.id for event in events], [event.type for event in events], [body_of(event) for event in events]
        now = self._clock.now()
        return len(await self._database.fetch(self._queries.publish, ids, endpoint_ids, numbers, *columns, now))

    async def claim_due(self, *, per_endpoint: int, worker: str, lease_s: float) -> list[ClaimedDelivery]:
        now = self._clock.now()
        token, rows = await self.claims.run(self._claim_due, per_endpoint, worker=worker, lease_s=lease_s)
        return [
            ClaimedDelivery(
                id=row["id"],
                target=Target.of(row, endpoint_id=row["endpoint_id"], now=now),
                event_type=row["event_type"],
                payload=row["payload"],
                attempt=row["attempts"],
                claim=Claim(key=(row["id"],), token=token),
            )
            for row in rows
        ]

    async def settle(self, delivery: ClaimedDelivery, settled: Settlement) -> str | None:
        """Write what came of an attempt; why the endpoint was disabled, if it was. Raises `LeaseLost`."""
        now, endpoint_id = self._clock.now(), delivery.target.endpoint_id
        values = {
            "state": settled.state,
            "last_status": settled.answer.status,
            "last_error": settled.answer.problem,
            "updated_at": now,
        }
        if settled.next_attempt_at is not None:
            values["next_attempt_at"] = settled.next_attempt_at
        async with self._database.transaction() as connection:
            await self.claims.settle(delivery.claim, values, connection=connection)
            if settled.answer.is_taken:
                await connection.execute(self._queries.endpoint_succeeded, endpoint_id, now)
                return None
            since = await connection.fetchval(self._queries.endpoint_failed, endpoint_id, now)
            reason = settled.disables or (FAILED_REASON if since and now - since >= DISABLED_AFTER else None)
            if reason is not None:
                await connection.execute(self._queries.disable_endpoint, endpoint_id, reason, now)
        return reason

    async def count_waiting(self) -> int:
        return int(await self._database.fetchval(self._queries.count_waiting))

    async def bury_deliveries_of_disabled(self) -> int:
        """Set aside what waits for disabled endpoints; how many deliveries that were."""
        return len(await self._database.fetch(self._queries.bury_deliveries_of_disabled, self._clock.now()))

    async def forget(self) -> None:
        """Remove what ended long ago, and secrets that sign nothing any more."""
        now = self._clock.now()
        await self._database.execute(self._queries.forget_old_secrets, now)
        before = (now - DELIVERED_RETENTION, now - DEAD_LETTERED_RETENTION)
        removed = _FORGOTTEN_AT_ONCE
        while removed == _FORGOTTEN_AT_ONCE:
            rows = await self._database.fetch(self._queries.forget_deliveries, *before, _FORGOTTEN_AT_ONCE)
            removed = len(rows)
