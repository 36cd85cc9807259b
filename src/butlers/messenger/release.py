"""What goes out again or goes on: replayed, settled, approved, addressed; each passes the same admission as any other.

release      a dead letter replayed, an uncertain delivery settled
readmission  whatever was released meets the budgets, the circuits and the recipient's rules, once they have room
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from butlers.channels.adapter import Adapter, CountsParts, Outgoing
from butlers.clock import Clock
from butlers.contracts.delivery_state import OPEN
from butlers.contracts.envelope import invalid
from butlers.errors import ErrorClass, NotFound, ValidationError
from butlers.messenger.admission import Admission, AdmissionBatch, DeliveryExecutor
from butlers.messenger.admission_rules import (
    AdmissionState,
    Budgets,
    Meter,
    Refused,
    admit,
    not_permitted,
    suppressed,
)
from butlers.messenger.attempt import CONFIRMED, Outcome
from butlers.messenger.deliveries import Deliveries
from butlers.messenger.delivery import AdmissionRequest, Decision, NewDelivery, outgoing_of, restored
from butlers.messenger.observer import Observer
from butlers.messenger.tools.deliveries import DeliveryRecords
from butlers.operations.deliveries import Settlement
from butlers.reliability.dead_letter import DeadLetter, ReplayPolicy, assess_replay
from butlers.reliability.idempotency import replay_key
from butlers.storage.database import Database, Executor, Record
from butlers.storage.queries import Queries
from butlers.telemetry import get_logger

log = get_logger("butlers.messenger")

MARKED_INELIGIBLE = "marked_ineligible"
_BATCH = 100  # released deliveries that ask for room at one time
_SHORTEST_WAIT_S = 0.1
_LOOK_AGAIN_S = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Released:
    id: UUID
    request: AdmissionRequest
    settled: bool  # a person said what became of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Readmission:
    database: Database
    queries: Queries
    admission: Admission
    clock: Clock

    async def admit(self) -> int:
        """How many passed."""
        now = self.clock.now()
        if not await self.database.fetchval(self.queries.anything_released, now):
            return 0
        async with self.database.transaction() as connection:
            await self.admission.lock(connection)
            rows = await connection.fetch(self.queries.released, now, _BATCH)
            released = [
                Released(id=row["id"], request=_admission_request(row), settled=row["settled_at"] is not None)
                for row in rows
            ]
            requests = [one.request for one in released]
            state = await self.admission.read_state(connection, requests, now)
            welcome = await self._turn_away(connection, released, state, now)
            return await self._pass(connection, welcome, state.budgets, now)

    async def _turn_away(
        self, connection: Executor, released: Sequence[Released], state: AdmissionState, now: datetime
    ) -> list[Released]:
        """End what must not be sent any more; the rest."""
        welcome = []
        for one in released:
            problem = self._objection(one, state)
            if problem is None:
                welcome.append(one)
            else:
                await connection.execute(self.queries.turn_away, one.id, now, f"the recipient {problem}")
        return welcome

    def _objection(self, one: Released, state: AdmissionState) -> str | None:
        request, policy = one.request, self.admission.policy.recipients
        channel = request.channel.partition(".")[0]
        if (problem := not_permitted(policy, channel=channel, target=request.recipient)) is not None:
            return problem
        rule = state.recipients.get((channel, request.recipient))
        # What a person settled goes on as the person said.
        return None if request.intent != "send" or one.settled else suppressed(rule, wrote_at=None)

    async def _pass(self, connection: Executor, released: Sequence[Released], budgets: Budgets, now: datetime) -> int:
        batch, passed, late = AdmissionBatch(), [], []
        policy = self.admission.policy
        for one in released:
            decision = admit(one.request, policy, budgets, now)
            if isinstance(decision, Refused):
                late.append((one.id, decision))
                meter = Meter(request=one.request, policy=policy, budgets=budgets, now=now)
                batch.keep_shares(one.request, meter.shares(), now)
                continue
            passed.append(one.id)
            batch.charge(one.request, decision, budgets, now)
        await self.admission.write(connection, batch, now)
        await connection.execute(self.queries.admit_released, passed, now)
        if late:
            waits = [refused.error.retry_after for _, refused in late]
            await connection.execute(
                self.queries.put_off_released,
                [delivery_id for delivery_id, _ in late],
                [now + timedelta(seconds=max(1.0 if wait is None else wait, _SHORTEST_WAIT_S)) for wait in waits],
                now,
                [refused.rule for _, refused in late],
                [refused.error.message for _, refused in late],
            )
        return len(passed)


def _admission_request(row: Record) -> AdmissionRequest:
    return AdmissionRequest(
        channel=f"{row['channel']}.{row['identity_scope']}",
        recipient=row["target_identity"] or "",
        origin=row["origin_butler"],
        intent=row["intent"],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    database: Database
    queries: Queries
    records: DeliveryRecords
    admission: Admission
    deliveries: Deliveries
    executor: DeliveryExecutor
    observer: Observer
    policy: ReplayPolicy
    channels: Mapping[str, Adapter]  # by name with scope
    clock: Clock
    new_id: Callable[[], UUID]
    wait_s: float  # how long a caller waits for the outcome

    async def replay(self, dead_letter_id: UUID, *, by: str) -> dict[str, Any]:
        """A new delivery from a dead letter; the outcome if there is one soon."""
        async with self.database.transaction() as connection:
            new, count = await self._replayed(connection, dead_letter_id, by)
        self.observer.replayed(new)
        log.info("dead letter replayed", delivery_id=new.id, caller=by, count=count)
        outcome = await self._soon(new.id)
        return _described(outcome) | {
            "dead_letter_id": dead_letter_id,
            "replay_of": new.replay_of,
            "replay_count": count,
            "idempotency_key": new.idempotency_key,
        }

    async def _replayed(self, connection: Executor, dead_letter_id: UUID, by: str) -> tuple[NewDelivery, int]:
        await connection.execute(self.queries.hold_family, dead_letter_id)
        letter = await connection.fetchrow(self.queries.lock_dead_letter, dead_letter_id)
        if letter is None:
            raise NotFound.of("dead_letter_id", "no such dead letter")
        original = await connection.fetchrow(self.queries.whole_request, letter["delivery_id"])
        standing = await self.records.standing(connection, letter["delivery_id"])
        if original is None or standing is None:
            raise invalid("dead_letter_id", "its delivery is gone")
        now = self.clock.now()
        eligibility = assess(dict(letter), standing, self.policy, now)
        if not eligibility["eligible"]:
            raise invalid("dead_letter_id", f"cannot be replayed: {', '.join(eligibility['reasons'])}")
        count = letter["replay_count"] + 1
        decision = Decision(at=now, rule="replay", verdict="replayed", detail=f"replay {count}, asked for by {by}")
        new = replace(
            restored(original),
            id=self.new_id(),
            idempotency_key=replay_key(original["idempotency_key"], count),
            admitted=False,
            replay_of=letter["delivery_id"],
            decisions=(decision,),
        )
        await self.admission.write(connection, AdmissionBatch(taken=[new]), now)
        await connection.execute(self.queries.count_replay, dead_letter_id, count, new.id)
        return new, count

    async def settle(self, delivery_id: UUID, word: Settlement, *, by: str) -> dict[str, Any]:
        """Somebody found out: it arrived, or it should be sent again."""
        async with self.database.transaction() as connection:
            row = await connection.fetchrow(self.queries.lock_uncertain, delivery_id)
            if row is None:
                raise await self._why_not(connection, delivery_id)
            await self._settled(connection, row, word, by)
        log.info("uncertain delivery settled", delivery_id=delivery_id, decision=word, caller=by)
        return _described(await self._soon(delivery_id))

    async def _settled(self, connection: Executor, row: Record, word: Settlement, by: str) -> None:
        now, goes_on = self.clock.now(), word == "send_again"
        if word == "confirmed_sent":
            part = row["part_in_doubt"] or 1
            await self.deliveries.record_part(row["id"], part, f"{CONFIRMED}{by}", connection=connection)
            channel = self.channels.get(f"{row['channel']}.{row['identity_scope']}")
            goes_on = anything_left(outgoing_of(row), channel, confirmed=part)
        status = "pending" if goes_on else "delivered"
        await connection.execute(self.queries.settle_uncertain, row["id"], status, by, now, word)

    async def _why_not(self, connection: Executor, delivery_id: UUID) -> ValidationError:
        status = await connection.fetchval(self.queries.status_of, delivery_id)
        if status is None:
            return NotFound.of("delivery_id", "no such delivery")
        return invalid("delivery_id", f"is {status}, not uncertain: there is nothing to settle")

    async def _soon(self, delivery_id: UUID) -> Outcome:
        self.executor.wake()
        deadline = self.clock.monotonic() + self.wait_s
        while True:
            outcome = await self.deliveries.get(delivery_id)
            if outcome is None:
                raise invalid("delivery_id", "the delivery is gone")
            left = deadline - self.clock.monotonic()
            if outcome.status not in OPEN or left <= 0:
                return outcome
            await asyncio.wait((self.executor.expect(delivery_id),), timeout=min(left, _LOOK_AGAIN_S))


def anything_left(outgoing: Outgoing, channel: Adapter | None, *, confirmed: int) -> bool:
    # A channel that is not served here cannot go on, and one that does not resume would say it all again.
    if channel is None or not channel.resumes:
        return False
    if not isinstance(channel, CountsParts):
        return True
    try:
        parts = channel.count_parts(outgoing)
    except ValidationError:
        return False  # nothing of it could be sent any more
    return not {*outgoing.parts_sent, confirmed} >= set(range(1, parts + 1))


def _described(outcome: Outcome) -> dict[str, Any]:
    return {
        "delivery_id": outcome.delivery_id,
        "status": outcome.status,
        "provider_delivery_id": outcome.provider_delivery_id,
        "error": outcome.error.describe() if outcome.error else None,
    }


def assess(
    letter: Mapping[str, Any], standing: Mapping[str, Any], policy: ReplayPolicy, now: datetime
) -> dict[str, Any]:
    """The replay eligibility of a stored dead letter."""
    known = DeadLetter(
        error_class=ErrorClass(letter["error_class"]),
        replay_count=letter["replay_count"],
        discarded=letter["discarded_at"] is not None,
        uncertain=standing["uncertain"],
        replay_in_progress=standing["replay_in_progress"],
        delivered=standing["delivered"],
        not_after=standing["not_after"],
    )
    assessed = assess_replay(known, policy, now).describe()
    if assessed["eligible"] and not letter["replay_eligible"]:
        assessed |= {"eligible": False, "reasons": [MARKED_INELIGIBLE]}
    return assessed
