"""The queue in PostgreSQL: a table of claims, so that it needs nothing that the system does not have.

`enqueue` takes part in a transaction of the caller's, if it is given one: the record of a message and its entry are
then written together or not at all. Acknowledgements that come while others are written share the next transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from uuid import UUID

from butlers.clock import Clock
from butlers.outbound import SCHEMA
from butlers.outbound.queue import (
    LEASE_S,
    LEVELS,
    MOST_DEAD_LETTERS,
    PRIORITIES,
    DeadLetter,
    LeasedMessage,
    QueueMessage,
    QueueStats,
    check_time,
    checked,
    lease_lost,
    possible_keys,
    retry_at,
    storable,
)
from butlers.storage.claims import Claim, Claims, ClaimTable
from butlers.storage.database import Database, Executor, Record
from butlers.storage.group_commit import GroupCommitter
from butlers.storage.queries import Queries

TOGETHER = 500  # acknowledgements of one transaction
SHARDS = 16  # rows of queue_counts
PIECES, MOST_PIECES = 1_000, 100_000  # rows of queue_entered: so many are left, so many are added up at once

QUEUE_CLAIMS = ClaimTable(
    name="queue",
    key={"key": "text"},
    state="state",
    held="in_flight",
    waiting="work.state = 'queued' AND work.scheduled_at <= $1",
    on_claim={"expirations": "work.expirations + (work.state = 'in_flight')::integer"},
    given_back="'queued'",
    updated=None,
)


class PostgresQueue:
    def __init__(
        self,
        database: Database,
        clock: Clock,
        new_id: Callable[[], UUID],
        *,
        schema: str = SCHEMA,
        lease_s: float = LEASE_S,
    ) -> None:
        self._database = database
        self._clock = clock
        self._lease_s = lease_s
        self._claims = Claims(QUEUE_CLAIMS, database=database, schema=schema, clock=clock, new_id=new_id)
        self._queries = Queries.load("butlers.outbound.postgres_queue", schema=schema)
        self._dequeue = self._claims.fill(self._queries.dequeue_entries)
        self._acknowledge = self._claims.fill(self._queries.acknowledge_entries)
        self._dead_letter = self._claims.fill(self._queries.dead_letter_entry)
        self._shard = new_id().int % SHARDS  # of this worker's counts
        self._acks: GroupCommitter[LeasedMessage, bool] = GroupCommitter(self._ack_all, max_batch=TOGETHER)

    async def enqueue(self, messages: Sequence[QueueMessage], *, connection: Executor | None = None) -> frozenset[str]:
        rows = sorted(
            (key, payload, LEVELS[message.priority], message.scheduled_at, message.attempts, place)
            for place, (key, (message, payload)) in enumerate(checked(messages).items())
        )
        if not rows:
            return frozenset()
        columns = [list(column) for column in zip(*rows, strict=True)]
        found = await (connection or self._database).fetch(self._queries.enqueue_entries, *columns)
        return frozenset(row["key"] for row in found)

    async def dequeue(self, *, now: datetime, limit: int = 1, worker: str) -> list[LeasedMessage]:
        token, rows = await self._claims.run(
            self._dequeue, max(0, limit), worker=storable(worker), lease_s=self._lease_s, now=now
        )
        receipt = str(token)
        return [
            LeasedMessage(
                message=_message(row),
                receipt=receipt,
                lease_expires_at=row["lease_expires_at"],
                expirations=row["expirations"],
            )
            for row in rows
        ]

    async def ack(self, leased: LeasedMessage) -> None:
        if not await self._acks.submit(leased):
            raise lease_lost(leased)

    async def _ack_all(self, leased: Sequence[LeasedMessage]) -> list[bool]:
        keys, tokens = [one.message.key for one in leased], [_token(one) for one in leased]
        rows = await self._database.fetch(self._acknowledge, keys, tokens, self._shard)
        ended = {row["place"] for row in rows}
        return [place in ended for place in range(1, len(leased) + 1)]

    async def nack(
        self,
        leased: LeasedMessage,
        *,
        now: datetime,
        delay: timedelta | None = None,
        scheduled_at: datetime | None = None,
        counted: bool = True,
    ) -> None:
        at = retry_at(now, delay, scheduled_at)
        claim = Claim(key=(leased.message.key,), token=_token(leased))
        if not await self._claims.give_back([claim], counted=counted, values={"scheduled_at": at}):
            raise lease_lost(leased)

    async def dead_letter(self, leased: LeasedMessage, reason: str) -> None:
        values = (leased.message.key, _token(leased), storable(reason), self._clock.now(), self._shard)
        if await self._database.fetchval(self._dead_letter, *values) is None:
            raise lease_lost(leased)
        await self._database.execute(self._queries.drop_old_dead_letters, MOST_DEAD_LETTERS)

    async def reschedule(self, keys: Sequence[str], *, scheduled_at: datetime) -> int:
        at = check_time(scheduled_at)
        return len(await self._database.fetch(self._queries.reschedule_entries, possible_keys(keys), at))

    async def remove(self, keys: Sequence[str]) -> int:
        return len(await self._database.fetch(self._queries.remove_entries, possible_keys(keys)))

    async def peek(self, limit: int = 10) -> list[QueueMessage]:
        return [_message(row) for row in await self._database.fetch(self._queries.peek_entries, max(0, limit))]

    async def dead_letters(self, limit: int = 10) -> list[DeadLetter]:
        rows = await self._database.fetch(self._queries.dead_letters_of_queue, max(0, min(limit, MOST_DEAD_LETTERS)))
        return [DeadLetter(message=_message(row), reason=row["reason"]) for row in rows]

    async def stats(self, *, now: datetime) -> QueueStats:
        row = await self._database.fetchrow(self._queries.queue_statistics)
        found = dict(row or {})
        available = found.pop("available_at")
        if found.pop("pieces") > PIECES:
            await self._database.execute(self._queries.add_up_entered, MOST_PIECES, self._shard)
        return QueueStats(**found, next_available_at=None if available is None else max(available, now))

    async def close(self) -> None:
        """Writes the acknowledgements that wait; the database is the caller's."""
        await self._acks.close()


def _token(leased: LeasedMessage) -> UUID:
    try:
        return UUID(leased.receipt)
    except ValueError:
        raise lease_lost(leased) from None


def _message(row: Record) -> QueueMessage:
    return QueueMessage(
        key=row["key"],
        payload=row["payload"],
        scheduled_at=row["scheduled_at"].astimezone(UTC),
        priority=PRIORITIES[row["priority"]],
        attempts=row["attempts"],
    )
