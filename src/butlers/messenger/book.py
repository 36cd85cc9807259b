"""Where intents become durable: keys, budgets and circuits judged together, in one transaction for many at once.

    lock -> read the state -> judge one after another (answers first, each butler in turn) -> write -> commit

The lock makes several Messenger processes take turns, so that they share one budget and one set of keys. What is
judged is pure (`judge`), and the dry run calls the same function with the same state, read without the lock.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from uuid import UUID

from butlers.clock import Clock
from butlers.messenger import admission
from butlers.messenger.admission import Admitted, Budgets, Refused, Wish
from butlers.messenger.delivery import Decision, NewDelivery
from butlers.messenger.handover import Executor
from butlers.messenger.hands import Hands
from butlers.messenger.judgement import AdmissionPolicy, Known, Snapshot, judge, moved
from butlers.messenger.ledger import Page, snapshot_of
from butlers.messenger.passage import Step
from butlers.reliability.error_budget import ADMISSION_RULE, Stance
from butlers.reliability.fair_queue import FairShare
from butlers.reliability.token_bucket import Bucket
from butlers.storage.database import Database
from butlers.storage.database import Executor as Connection
from butlers.storage.group_commit import GroupCommitter
from butlers.storage.queries import Queries


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    delivery: NewDelivery


Entry = Known | Taken | Refused


class Book:
    """Takes intents in."""

    def __init__(
        self,
        *,
        database: Database,
        schema: str,
        clock: Clock,
        policy: AdmissionPolicy,
        new_id: Callable[[], UUID],
        executor: Executor | None = None,  # whom deliveries are handed to; None: they are all claimed in their turn
        reached: Callable[[Sequence[NewDelivery], Step], None] | None = None,  # is told how far a batch has come
    ) -> None:
        self._reached = reached or (lambda _new, _step: None)
        self._database = database
        self._new_id = new_id
        self._executor = executor
        self._queries = Queries.load("butlers.messenger", schema=schema)
        self._clock = clock
        self.policy = policy
        self._commits: GroupCommitter[NewDelivery, Entry] = GroupCommitter(self._enter, max_batch=200, lanes=2)
        self._turns = asyncio.Lock()

    async def submit(self, new: NewDelivery) -> Entry:
        """Durable when this returns, unless it was refused."""
        return await self._commits.submit(new)

    async def close(self) -> None:
        await self._commits.close()

    async def preview(self, new: NewDelivery) -> tuple[Snapshot, Known | Admitted | Refused]:
        """What would happen now, with nothing changed."""
        now = self._clock.now()
        async with self._database.connection() as connection:
            snapshot = await self.read(connection, [new], now)
        return snapshot, judge(new, self.policy, snapshot, now)

    async def enter(
        self, connection: Connection, new: Sequence[NewDelivery], now: datetime, hands: Hands | None = None
    ) -> Sequence[Entry]:
        """Judge and write within the caller's transaction."""
        await self.lock(connection)
        return await self._entered(connection, new, now, hands)

    async def _entered(
        self, connection: Connection, new: Sequence[NewDelivery], now: datetime, hands: Hands | None = None
    ) -> Sequence[Entry]:
        snapshot = await self.read(connection, new, now)
        self._reached(new, "read")
        entries: dict[UUID, Entry] = {}
        page = Page()
        hands = hands or Hands(offer=None, new_id=self._new_id, now=now)
        hands.look(new, snapshot)
        for delivery in _in_turn(new):
            entries[delivery.id] = self._judge_one(delivery, snapshot, page, now, hands)
        self._reached(new, "judged")
        await self.write(connection, page, now)
        return [entries[delivery.id] for delivery in new]

    async def _enter(self, new: Sequence[NewDelivery]) -> Sequence[Entry]:
        """One batch; what is handed over starts when it is committed."""
        now = self._clock.now()
        offer = self._executor.offer(len(new)) if self._executor is not None else None
        hands, committed = Hands(offer=offer, new_id=self._new_id, now=now), False
        try:
            async with self._in_order() as connection:
                entries = await self._entered(connection, new, now, hands)
            committed = True
            self._reached(new, "written")
            return entries
        finally:
            if offer is not None and self._executor is not None:
                self._executor.take(offer, hands.handed() if committed else ())

    @asynccontextmanager
    async def _in_order(self) -> AsyncIterator[Connection]:
        """A transaction that holds the lock. Batches ask for it in the order in which they were taken, lest a later
        message of a conversation overtake an earlier one; while one has it, the next is in line at the database.
        """
        async with AsyncExitStack() as stack:
            async with self._turns:
                connection = await stack.enter_async_context(self._database.transaction())
                await self.lock(connection)
            yield connection

    def _judge_one(self, new: NewDelivery, snapshot: Snapshot, page: Page, now: datetime, hands: Hands) -> Entry:
        """One delivery; the snapshot then shows what the next one meets."""
        verdict = judge(new, self.policy, snapshot, now)
        if isinstance(verdict, Known):
            page.count(new, "deduplicated")
            return verdict
        new = moved(new, snapshot.recipients)
        if isinstance(verdict, Refused):
            page.count(new, "rejected", verdict.rule)
            if verdict.error.retryable:  # what can never be sent is wanted by nobody
                page.keep(new.wish, self.wanting(new.wish, snapshot.budgets, now), now)
            return verdict
        decisions = (*new.decisions, *_admitted(new, snapshot.budgets, now))
        taken = replace(new, decisions=decisions, claim=hands.claim(new, snapshot.budgets))
        hands.keep(taken)
        wish = new.wish
        page.count(new, "admitted")
        page.take(taken, wish, verdict, now)
        admission.apply(snapshot.budgets, wish, verdict)
        snapshot.known[new.idempotency_key] = new.id
        return Taken(delivery=taken)

    def wanting(self, wish: Wish, budgets: Budgets, now: datetime) -> dict[str, Bucket]:
        return admission.wanting(wish, limits=self.policy.limits, budgets=budgets, now=now)

    async def read(self, connection: Connection, new: Sequence[NewDelivery], now: datetime) -> Snapshot:
        keys = [delivery.idempotency_key for delivery in new]
        talks = [delivery.ordering_key for delivery in new]
        wishes = [delivery.wish for delivery in new]
        snapshot = await self.read_state(connection, keys=keys, wishes=wishes, now=now, conversations=talks)
        there = [moved(delivery, snapshot.recipients) for delivery in new]
        if there == list(new):
            return snapshot
        # A new address has a budget, windows and rules of its own.
        wishes += [delivery.wish for delivery in there]
        return await self.read_state(connection, keys=keys, wishes=wishes, now=now, conversations=talks)

    async def read_state(
        self,
        connection: Connection,
        *,
        keys: Sequence[str],
        wishes: Sequence[Wish],
        now: datetime,
        conversations: Sequence[str] = (),
    ) -> Snapshot:
        names = {name for wish in wishes for name in admission.bucket_names(wish)}
        scopes = {scope for wish in wishes for scope in admission.throttle_scopes(wish)}
        recipients = sorted({(wish.channel.partition(".")[0], wish.recipient) for wish in wishes})
        row = await connection.fetchrow(
            self._queries.admission_state,
            list(keys),
            sorted(names),
            sorted(scopes),
            [channel for channel, _ in recipients],
            now,
            [target for _, target in recipients],
            list(conversations),
        )
        if row is None:
            raise RuntimeError("a query without a table answered nothing")
        return snapshot_of(row)

    async def write(self, connection: Connection, page: Page, now: datetime) -> None:
        if page.taken and await self.record(connection, page.taken, now) != len(page.taken):
            raise RuntimeError("a key appeared although the door was locked")
        if page.buckets:
            await connection.execute(self._queries.write_budgets, *page.bucket_columns())
        if page.counts:
            await connection.execute(self._queries.count_outcomes, now, *page.count_columns())

    async def lock(self, connection: Connection) -> None:
        """Until the transaction ends, nobody else admits anything."""
        await connection.fetchval(self._queries.lock_admission)

    async def record(self, connection: Connection, new: Sequence[NewDelivery], now: datetime) -> int:
        """Write down what is new; how many were. A known key changes nothing."""
        rows = await connection.fetch(self._queries.record_requests, [delivery.to_row() for delivery in new], now)
        return len(rows)


def _admitted(new: NewDelivery, budgets: Budgets, now: datetime) -> Iterable[Decision]:
    yield Decision(at=now, rule="admission", verdict="admitted")
    if budgets.stances.get(new.channel) is Stance.TIGHT:
        detail = f"{new.channel} has a smaller budget while its error budget burns"
        yield Decision(at=now, rule=ADMISSION_RULE, verdict="tightened", detail=detail)


def _in_turn(new: Sequence[NewDelivery]) -> list[NewDelivery]:
    """Answers before the rest; among equals each butler in its turn."""
    answers = [delivery for delivery in new if delivery.wish.is_answer]
    rest = [delivery for delivery in new if not delivery.wish.is_answer]
    return [*_round_robin(answers), *_round_robin(rest)]


def _round_robin(new: Sequence[NewDelivery]) -> Iterable[NewDelivery]:
    queue: FairShare[NewDelivery] = FairShare(capacity=max(1, len(new)))
    for delivery in new:
        queue.offer(delivery, key=delivery.notify.origin_butler)
    while (taken := queue.take()) is not None:
        yield taken[1]
