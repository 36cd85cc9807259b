"""Where intents become durable: keys, budgets and circuits are checked together, in one transaction for many at once.

    lock -> read the state -> decide one after another (answers first, each butler in turn) -> write -> commit

The lock makes several Messenger processes take turns, so that they share one budget and one set of keys. The
decision is pure (`state.decide`), and the dry run calls the same function with the same state, read without the lock.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Literal
from uuid import UUID

from butlers.clock import Clock
from butlers.messenger.admission import rules
from butlers.messenger.admission.rules import AdmissionRequest, Admitted, Budgets, Refused
from butlers.messenger.admission.slots import DeliveryExecutor, SlotAssignment
from butlers.messenger.admission.state import AdmissionPolicy, AdmissionState, Known, decide, moved, state_of_row
from butlers.messenger.delivery import Decision, NewDelivery
from butlers.reliability.error_budget import ADMISSION_RULE, Stance
from butlers.reliability.fair_queue import FairShare
from butlers.reliability.token_bucket import Bucket, refill
from butlers.storage.database import Database
from butlers.storage.database import Executor as Connection
from butlers.storage.group_commit import GroupCommitter
from butlers.storage.queries import Queries

Step = Literal["read", "decided", "written"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    delivery: NewDelivery


Entry = Known | Taken | Refused


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionTimings:
    """When a delivery that is being admitted came to which step of the transaction."""

    began: datetime
    at: dict[Step, datetime] = field(default_factory=dict)

    def before(self, step: Step) -> tuple[datetime, datetime]:
        """The time that led up to a step, from the step before it."""
        earlier = {"read": self.began, "decided": self.at.get("read"), "written": self.at.get("decided")}[step]
        began = earlier or self.began
        return began, self.at.get(step, began)


class AdmissionBatch:
    """What one batch of admissions writes."""

    def __init__(self) -> None:
        self.taken: list[NewDelivery] = []
        self.buckets: dict[str, tuple[str | None, str | None, Bucket, datetime]] = {}
        self.counts: Counter[tuple[str, str, str, str, str]] = Counter()

    def take(self, new: NewDelivery, request: AdmissionRequest, verdict: Admitted, now: datetime) -> None:
        self.taken.append(new)
        self.draw(request, verdict, now)

    def draw(self, request: AdmissionRequest, verdict: Admitted, now: datetime) -> None:
        for name, bucket in verdict.buckets.items():
            self.buckets[name] = (None, None, bucket, _full_at(bucket, now))
        self.keep(request, verdict.shares, now)

    def keep(self, request: AdmissionRequest, shares: Mapping[str, Bucket], now: datetime) -> None:
        for layer, share in shares.items():
            until = max(_full_at(share, now), now + rules.WANTED_FOR)
            self.buckets[f"share:{layer}/{request.origin}"] = (layer, request.origin, share, until)

    def count(self, new: NewDelivery, outcome: str, rule: str = "") -> None:
        delivery = new.notify.delivery
        self.counts[delivery.channel, delivery.intent, new.notify.origin_butler, outcome, rule] += 1

    def bucket_columns(self) -> list[list[Any]]:
        rows = [
            (name, layer, origin, bucket.capacity, bucket.refill_per_second, bucket.tokens, bucket.updated_at, full_at)
            for name, (layer, origin, bucket, full_at) in self.buckets.items()
        ]
        return [list(column) for column in zip(*rows, strict=True)]

    def count_columns(self) -> list[list[Any]]:
        rows = [(*labels, number) for labels, number in self.counts.items()]
        return [list(column) for column in zip(*rows, strict=True)]


class Admission:
    """Admits intents and stores them."""

    def __init__(
        self,
        *,
        database: Database,
        schema: str,
        clock: Clock,
        policy: AdmissionPolicy,
        new_id: Callable[[], UUID],
        executor: DeliveryExecutor | None = None,  # starts what is claimed at once; None: all are claimed in their turn
        reached: Callable[[Sequence[NewDelivery], Step], None] | None = None,  # is called with how far a batch has come
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

    async def preview(self, new: NewDelivery) -> tuple[AdmissionState, Known | Admitted | Refused]:
        """What would happen now, with nothing changed."""
        now = self._clock.now()
        async with self._database.connection() as connection:
            state = await self.read(connection, [new], now)
        return state, decide(new, self.policy, state, now)

    async def enter(
        self, connection: Connection, new: Sequence[NewDelivery], now: datetime, slots: SlotAssignment | None = None
    ) -> Sequence[Entry]:
        """Decide and write within the caller's transaction."""
        await self.lock(connection)
        return await self._entered(connection, new, now, slots)

    async def _entered(
        self, connection: Connection, new: Sequence[NewDelivery], now: datetime, slots: SlotAssignment | None = None
    ) -> Sequence[Entry]:
        state = await self.read(connection, new, now)
        self._reached(new, "read")
        entries: dict[UUID, Entry] = {}
        batch = AdmissionBatch()
        slots = slots or SlotAssignment(slots=None, new_id=self._new_id, now=now)
        slots.note_conversations(new, state)
        for delivery in _in_turn(new):
            entries[delivery.id] = self._decide_one(delivery, state, batch, now, slots)
        self._reached(new, "decided")
        await self.write(connection, batch, now)
        return [entries[delivery.id] for delivery in new]

    async def _enter(self, new: Sequence[NewDelivery]) -> Sequence[Entry]:
        """One batch; what is claimed with it starts when it is committed."""
        now = self._clock.now()
        reserved = self._executor.reserve_slots(len(new)) if self._executor is not None else None
        slots, committed = SlotAssignment(slots=reserved, new_id=self._new_id, now=now), False
        try:
            async with self._in_order() as connection:
                entries = await self._entered(connection, new, now, slots)
            committed = True
            self._reached(new, "written")
            return entries
        finally:
            if reserved is not None and self._executor is not None:
                self._executor.start_claimed(reserved, slots.claimed() if committed else ())

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

    def _decide_one(
        self, new: NewDelivery, state: AdmissionState, batch: AdmissionBatch, now: datetime, slots: SlotAssignment
    ) -> Entry:
        """One delivery; the state then shows what the next one meets."""
        verdict = decide(new, self.policy, state, now)
        if isinstance(verdict, Known):
            batch.count(new, "deduplicated")
            return verdict
        new = moved(new, state.recipients)
        if isinstance(verdict, Refused):
            batch.count(new, "rejected", verdict.rule)
            if verdict.error.retryable:  # what can never be sent wants no share
                batch.keep(new.admission_request, self.wanting(new.admission_request, state.budgets, now), now)
            return verdict
        decisions = (*new.decisions, *_admitted(new, state.budgets, now))
        taken = replace(new, decisions=decisions, claim=slots.claim(new, state.budgets))
        slots.add(taken)
        request = new.admission_request
        batch.count(new, "admitted")
        batch.take(taken, request, verdict, now)
        rules.apply(state.budgets, request, verdict)
        state.known[new.idempotency_key] = new.id
        return Taken(delivery=taken)

    def wanting(self, request: AdmissionRequest, budgets: Budgets, now: datetime) -> dict[str, Bucket]:
        return rules.wanting(request, limits=self.policy.limits, budgets=budgets, now=now)

    async def read(self, connection: Connection, new: Sequence[NewDelivery], now: datetime) -> AdmissionState:
        keys = [delivery.idempotency_key for delivery in new]
        talks = [delivery.ordering_key for delivery in new]
        requests = [delivery.admission_request for delivery in new]
        state = await self.read_state(connection, keys=keys, requests=requests, now=now, conversations=talks)
        there = [moved(delivery, state.recipients) for delivery in new]
        if there == list(new):
            return state
        # A new address has a budget, windows and rules of its own.
        requests += [delivery.admission_request for delivery in there]
        return await self.read_state(connection, keys=keys, requests=requests, now=now, conversations=talks)

    async def read_state(
        self,
        connection: Connection,
        *,
        keys: Sequence[str],
        requests: Sequence[AdmissionRequest],
        now: datetime,
        conversations: Sequence[str] = (),
    ) -> AdmissionState:
        names = {name for request in requests for name in rules.bucket_names(request)}
        scopes = {scope for request in requests for scope in rules.throttle_scopes(request)}
        recipients = sorted({(request.channel.partition(".")[0], request.recipient) for request in requests})
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
        return state_of_row(row)

    async def write(self, connection: Connection, batch: AdmissionBatch, now: datetime) -> None:
        if batch.taken and await self.record(connection, batch.taken, now) != len(batch.taken):
            raise RuntimeError("a key appeared although admission was locked")
        if batch.buckets:
            await connection.execute(self._queries.write_budgets, *batch.bucket_columns())
        if batch.counts:
            await connection.execute(self._queries.count_outcomes, now, *batch.count_columns())

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
    answers = [delivery for delivery in new if delivery.admission_request.is_answer]
    rest = [delivery for delivery in new if not delivery.admission_request.is_answer]
    return [*_round_robin(answers), *_round_robin(rest)]


def _round_robin(new: Sequence[NewDelivery]) -> Iterable[NewDelivery]:
    queue: FairShare[NewDelivery] = FairShare(capacity=max(1, len(new)))
    for delivery in new:
        queue.offer(delivery, key=delivery.notify.origin_butler)
    while (taken := queue.take()) is not None:
        yield taken[1]


def _full_at(bucket: Bucket, now: datetime) -> datetime:
    current = refill(bucket, now)
    return now + timedelta(seconds=(bucket.capacity - current.tokens) / bucket.refill_per_second)
