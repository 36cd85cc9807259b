"""Where intents become durable: keys, budgets and circuits are checked together, in one transaction for many at once.

    lock and read the state -> decide one after another (answers first, each butler in turn) -> write -> commit

The lock makes several Messenger processes take turns, so that they share one budget and one set of keys. The
decision is pure (`admission_rules.decide`), and the dry run calls the same function with the same state, read without
the lock.

A delivery whose conversation is free, on a channel whose circuit is closed, for which the worker has a free slot, is
stored as claimed in the transaction that admits it. The rest is stored as pending and claimed in its turn. Either way
the row is durable before anything leaves.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Literal, Protocol
from uuid import UUID

from butlers.clock import Clock
from butlers.messenger import admission_rules as rules
from butlers.messenger.admission_rules import (
    AdmissionState,
    Admitted,
    Budgets,
    Known,
    Meter,
    RecipientRule,
    Refused,
    Throttled,
    decide,
    moved,
)
from butlers.messenger.attempt import Outcome
from butlers.messenger.config import DeliverySection
from butlers.messenger.deliveries import circuit_of_row
from butlers.messenger.delivery import AdmissionRequest, ClaimedDelivery, Decision, FirstClaim, NewDelivery
from butlers.reliability.circuit_breaker import Breaker, BreakerState
from butlers.reliability.error_budget import ADMISSION_RULE, BudgetMode
from butlers.reliability.token_bucket import Bucket, full_at
from butlers.storage.database import Database, Executor, Record
from butlers.storage.group_commit import GroupCommitter
from butlers.storage.queries import Queries

Step = Literal["read", "decided", "written"]
OutcomeFuture = asyncio.Future[Outcome | None]  # None: the delivery may have changed, and only its row tells how


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    delivery: NewDelivery


Entry = Known | Taken | Refused


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimSlots:
    """Free slots of a worker, reserved for a batch until it is committed."""

    count: int
    token: UUID
    worker: str
    expires_at: datetime
    channels: Collection[str]  # with scope, that the worker serves


class DeliveryExecutor(Protocol):
    """The worker that makes the attempts."""

    def wake(self) -> None:
        """Something waits to be claimed."""

    def expect(self, delivery_id: UUID) -> OutcomeFuture:
        """Wait for a delivery's outcome; another process may make it, so the caller looks at the row now and then."""

    def reserve_slots(self, requested: int) -> ClaimSlots: ...

    def start_claimed(self, claimed: Sequence[ClaimedDelivery], *, reserved: int) -> None:
        """Start what is claimed and committed; the slots that were reserved are free again."""


@dataclass(slots=True, kw_only=True)
class AdmissionBatch:
    """What one batch of admissions writes."""

    taken: list[NewDelivery] = field(default_factory=list)
    # name -> layer and butler of a share, the bucket, when it is full again
    buckets: dict[str, tuple[str | None, str | None, Bucket, datetime]] = field(default_factory=dict)
    counts: Counter[tuple[str, str, str, str, str]] = field(default_factory=Counter)

    def charge(self, request: AdmissionRequest, admitted: Admitted, budgets: Budgets, now: datetime) -> None:
        """What the buckets and the butler's shares are after an admission; the budgets then show what the next delivery
        of the batch meets (in place: batches are long).
        """
        for name, bucket in admitted.buckets.items():
            self.buckets[name] = (None, None, bucket, full_at(bucket, now))
        self.keep_shares(request, admitted.shares, now)
        budgets.in_flight += 1
        budgets.buckets.update(admitted.buckets)
        for layer, bucket in admitted.shares.items():
            budgets.shares.setdefault(layer, {})[request.origin] = bucket

    def keep_shares(self, request: AdmissionRequest, shares: Mapping[str, Bucket], now: datetime) -> None:
        for layer, share in shares.items():
            until = max(full_at(share, now), now + rules.SHARE_HELD_FOR)
            self.buckets[f"share:{layer}/{request.origin}"] = (layer, request.origin, share, until)

    def count(self, new: NewDelivery, outcome: str, rule: str = "") -> None:
        delivery = new.notify.delivery
        self.counts[delivery.channel, delivery.intent, new.notify.origin_butler, outcome, rule] += 1


class Admission:
    """Admits intents and stores them."""

    def __init__(
        self,
        *,
        database: Database,
        schema: str,
        clock: Clock,
        policy: DeliverySection,
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
        commits: GroupCommitter[NewDelivery, Entry] = GroupCommitter(self._enter, max_batch=200, lanes=2)
        self.submit = commits.submit  # (NewDelivery) -> Entry: durable when it returns, unless it was refused
        self.close = commits.close
        self._turns = asyncio.Lock()

    async def preview(self, new: NewDelivery) -> tuple[AdmissionState, Known | Admitted | Refused]:
        """What would happen now, with nothing changed."""
        now = self._clock.now()
        async with self._database.connection() as connection:
            state = await self.read(connection, [new], now)
        return state, decide(new, self.policy, state, now)

    async def enter(self, connection: Executor, new: Sequence[NewDelivery], now: datetime) -> Sequence[Entry]:
        """Decide and write within the caller's transaction."""
        state = await self.read(connection, new, now, locks=True)
        return await self._admit(connection, new, state, now, slots=None)

    async def _enter(self, new: Sequence[NewDelivery]) -> Sequence[Entry]:
        """One batch; what is claimed with it starts when it is committed."""
        now = self._clock.now()
        slots = self._executor.reserve_slots(len(new)) if self._executor is not None else None
        claimed: list[ClaimedDelivery] = []
        try:
            async with AsyncExitStack() as stack:
                # Batches ask for the lock in the order in which they were taken, lest a later message of a conversation
                # overtake an earlier one; while one decides and writes, the next is in line at the database.
                async with self._turns:
                    connection = await stack.enter_async_context(self._database.transaction())
                    state = await self.read(connection, new, now, locks=True)
                entries = await self._admit(connection, new, state, now, slots=slots)
            self._reached(new, "written")
            taken = [entry.delivery for entry in entries if isinstance(entry, Taken)]
            claimed += [delivery.claimed(delivery.claim, now) for delivery in taken if delivery.claim is not None]
            return entries
        finally:
            if slots is not None and self._executor is not None:
                self._executor.start_claimed(claimed, reserved=slots.count)

    async def _admit(
        self,
        connection: Executor,
        new: Sequence[NewDelivery],
        state: AdmissionState,
        now: datetime,
        *,
        slots: ClaimSlots | None,
    ) -> Sequence[Entry]:
        """Decide about each in its turn and write; needs the lock."""
        self._reached(new, "read")
        entries: dict[UUID, Entry] = {}
        batch = AdmissionBatch()
        oldest: dict[str, UUID] = {}  # of each free conversation: only it is claimed at once, so nothing overtakes
        for delivery in new:
            if delivery.ordering_key not in state.busy:
                oldest[delivery.ordering_key] = min(oldest.get(delivery.ordering_key, delivery.id), delivery.id)
        left = slots.count if slots is not None else 0
        for delivery in _in_turn(new):
            may_claim = left > 0 and oldest.get(delivery.ordering_key) == delivery.id
            entry = self._decide_one(delivery, state, batch, now, slots if may_claim else None)
            entries[delivery.id] = entry
            left -= isinstance(entry, Taken) and entry.delivery.claim is not None
        self._reached(new, "decided")
        await self.write(connection, batch, now)
        return [entries[delivery.id] for delivery in new]

    def _decide_one(
        self, new: NewDelivery, state: AdmissionState, batch: AdmissionBatch, now: datetime, slots: ClaimSlots | None
    ) -> Entry:
        """One delivery; the state then shows what the next one meets. `slots`: one of them is free for it."""
        decision = decide(new, self.policy, state, now)
        if isinstance(decision, Known):
            batch.count(new, "deduplicated")
            return decision
        new = moved(new, state.recipients)
        request = new.admission_request
        if isinstance(decision, Refused):
            batch.count(new, "rejected", decision.rule)
            if decision.error.retryable:  # what can never be sent wants no share
                meter = Meter(request=request, policy=self.policy, budgets=state.budgets, now=now)
                batch.keep_shares(request, meter.shares(), now)
            return decision
        reasons = [Decision(at=now, rule="admission", verdict="admitted")]
        if state.budgets.modes.get(new.channel) is BudgetMode.TIGHT:
            detail = f"{new.channel} has a smaller budget while its error budget burns"
            reasons.append(Decision(at=now, rule=ADMISSION_RULE, verdict="tightened", detail=detail))
        claim = self._claim(slots, new, state.budgets, now) if slots is not None else None
        taken = replace(new, decisions=(*new.decisions, *reasons), claim=claim)
        batch.taken.append(taken)
        batch.count(new, "admitted")
        batch.charge(request, decision, state.budgets, now)
        state.known[new.idempotency_key] = new.id
        return Taken(delivery=taken)

    def _claim(self, slots: ClaimSlots, new: NewDelivery, budgets: Budgets, now: datetime) -> FirstClaim | None:
        """The claim that the delivery is stored with; None when it is claimed in its turn."""
        breaker = budgets.breakers.get(new.channel, Breaker())
        stale = new.notify.not_after is not None and now > new.notify.not_after
        if stale or breaker.state is not BreakerState.CLOSED or new.channel not in slots.channels:
            return None
        return FirstClaim(
            token=slots.token,
            attempt_id=self._new_id(),
            worker=slots.worker,
            expires_at=slots.expires_at,
            generation=breaker.generation,
            mode=budgets.modes.get(new.channel, BudgetMode.NORMAL),
        )

    async def read(
        self, connection: Executor, new: Sequence[NewDelivery], now: datetime, *, locks: bool = False
    ) -> AdmissionState:
        """`locks`: until the transaction ends, no other admission takes place."""
        keys = [delivery.idempotency_key for delivery in new]
        talks = [delivery.ordering_key for delivery in new]
        requests = [delivery.admission_request for delivery in new]
        state = await self.read_state(connection, requests, now, keys=keys, ordering_keys=talks, locks=locks)
        there = [moved(delivery, state.recipients) for delivery in new]
        if there == list(new):
            return state
        # A new address has a budget, windows and rules of its own.
        requests += [delivery.admission_request for delivery in there]
        return await self.read_state(connection, requests, now, keys=keys, ordering_keys=talks)

    async def read_state(
        self,
        connection: Executor,
        requests: Iterable[AdmissionRequest],
        now: datetime,
        *,
        keys: Sequence[str] = (),
        ordering_keys: Sequence[str] = (),
        locks: bool = False,
    ) -> AdmissionState:
        names: set[str] = set()
        scopes: set[str] = set()
        recipients: set[tuple[str, str]] = set()
        for request in requests:
            names.update(rules.layers(request), rules.share_layers(request), request.brakes)
            scopes.update((f"{request.channel}:{request.recipient}", request.channel))
            recipients.add((request.channel.partition(".")[0], request.recipient))
        row = await connection.fetchrow(
            self._queries.admission_state,
            locks,
            keys,
            sorted(names),
            sorted(scopes),
            [channel for channel, _ in recipients],
            [target for _, target in recipients],
            ordering_keys,
            now,
        )
        if row is None:
            raise RuntimeError("admission_state returned no row")
        return state_of_row(row)

    async def write(self, connection: Executor, batch: AdmissionBatch, now: datetime) -> None:
        """Store the deliveries, budgets and counts of a batch, in one statement."""
        buckets = [
            (name, layer, origin, bucket.capacity, bucket.refill_per_second, bucket.tokens, bucket.updated_at, full)
            for name, (layer, origin, bucket, full) in batch.buckets.items()
        ]
        counts = [(*labels, number) for labels, number in batch.counts.items()]
        columns = [
            *(zip(*buckets, strict=True) if buckets else [()] * 8),
            *(zip(*counts, strict=True) if counts else [()] * 6),
        ]
        rows = [delivery.to_row() for delivery in batch.taken]
        if await connection.fetchval(self._queries.record_admission, rows, now, *columns) != len(rows):
            raise RuntimeError("a key appeared although admission was locked")

    async def lock(self, connection: Executor) -> None:
        """For a caller that writes before it reads: until the transaction ends, no other admission takes place."""
        await connection.execute(self._queries.lock_admission)


def _in_turn(new: Sequence[NewDelivery]) -> list[NewDelivery]:
    """Answers before the rest; among equals each butler in its turn."""
    rounds: Counter[tuple[bool, str]] = Counter()
    ranks: dict[UUID, tuple[bool, int, int]] = {}
    butlers: dict[str, int] = {}
    for delivery in new:
        origin, unasked = delivery.notify.origin_butler, delivery.notify.delivery.intent == "send"
        ranks[delivery.id] = unasked, rounds[unasked, origin], butlers.setdefault(origin, len(butlers))
        rounds[unasked, origin] += 1
    return sorted(new, key=lambda delivery: ranks[delivery.id])


def state_of_row(row: Record) -> AdmissionState:
    """The answer of the query `admission_state`."""
    known = (entry.rsplit(" ", 1) for entry in row["known"])
    buckets: dict[str, Bucket] = {}
    shares: dict[str, dict[str, Bucket]] = {}
    for stored in row["buckets"]:
        bucket = Bucket(
            capacity=stored["capacity"],
            refill_per_second=stored["refill_per_second"],
            tokens=stored["tokens"],
            updated_at=stored["updated_at"],
        )
        if stored["layer"] is None:
            buckets[stored["name"]] = bucket
        else:
            shares.setdefault(stored["layer"], {})[stored["origin_butler"]] = bucket
    return AdmissionState(
        known={key: UUID(identity) for key, identity in known},
        recipients={
            (rule["channel"], rule["target"]): RecipientRule(
                rule=rule["rule"], moved_to=rule["moved_to"], reason=rule["reason"], since=rule["since"]
            )
            for rule in row["recipients"]
        },
        busy=frozenset(row["busy"]),
        budgets=Budgets(
            in_flight=row["in_flight"],
            buckets=buckets,
            shares=shares,
            throttles={t["scope"]: Throttled(until=t["until"], reason=t["reason"]) for t in row["throttles"]},
            breakers={state["name"]: circuit_of_row(state) for state in row["channels"]},
            modes={state["name"]: BudgetMode(state["stance"]) for state in row["channels"]},
        ),
    )
