"""Sending again what had ended: a dead letter replayed, an uncertain delivery settled.

Both go through the same admission and worker as any other delivery. A replay is a new delivery under the old key with
`::replay-N`; an uncertain delivery stays the same one, because somebody now says what became of its last attempt.

confirmed_sent   the part in doubt is on record; with nothing left to send the delivery is `delivered` there and then,
                 whatever its time limit and the recipient's rules say by now: it has arrived
                 with parts left, these go on through admission, and an end says what was sent
send_again       the attempt in doubt is over; the next one starts with the part that was in doubt

Never two at once: a replay is refused while anything of its family is on its way or in doubt, and the family is held
while that is looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from butlers.channels.adapter import Adapter
from butlers.clock import Clock
from butlers.contracts.delivery_state import OPEN
from butlers.contracts.envelope import invalid
from butlers.errors import NotFound, ValidationError
from butlers.messenger.admission.admission import Admission
from butlers.messenger.admission.slots import Executor
from butlers.messenger.deliveries import Deliveries
from butlers.messenger.delivery import CONFIRMED, Decision, NewDelivery, Outcome, outgoing_of, restored
from butlers.messenger.observing import Observer
from butlers.messenger.release.remainder import anything_left
from butlers.messenger.tools.dead_letters import assess
from butlers.messenger.tools.records import DeliveryRecords
from butlers.operations.deliveries import Settlement
from butlers.reliability.dead_letter import ReplayPolicy
from butlers.reliability.idempotency import replay_key
from butlers.storage.database import Database, Record
from butlers.storage.database import Executor as Connection
from butlers.storage.queries import Queries
from butlers.telemetry import get_logger

log = get_logger("butlers.messenger")

_LOOK_AGAIN_S = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    database: Database
    queries: Queries
    records: DeliveryRecords
    admission: Admission
    deliveries: Deliveries
    executor: Executor
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
        return _told(outcome) | {
            "dead_letter_id": dead_letter_id,
            "replay_of": new.replay_of,
            "replay_count": count,
            "idempotency_key": new.idempotency_key,
        }

    async def _replayed(self, connection: Connection, dead_letter_id: UUID, by: str) -> tuple[NewDelivery, int]:
        await connection.execute(self.queries.hold_family, dead_letter_id)
        letter = await connection.fetchrow(self.queries.lock_dead_letter, dead_letter_id)
        if letter is None:
            raise NotFound.of("dead_letter_id", "no such dead letter")
        original = await connection.fetchrow(self.queries.whole_request, letter["delivery_id"])
        standing = await self.records.standing(connection, letter["delivery_id"])
        if original is None or standing is None:
            raise invalid("dead_letter_id", "its delivery is gone")
        now = self.clock.now()
        verdict = assess(dict(letter), standing, self.policy, now)
        if not verdict["eligible"]:
            raise invalid("dead_letter_id", f"cannot be replayed: {', '.join(verdict['reasons'])}")
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
        await self.admission.record(connection, [new], now)
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
        return _told(await self._soon(delivery_id))

    async def _settled(self, connection: Connection, row: Record, word: Settlement, by: str) -> None:
        now, goes_on = self.clock.now(), word == "send_again"
        if word == "confirmed_sent":
            part = row["part_in_doubt"] or 1
            await self.deliveries.record_part(row["id"], part, f"{CONFIRMED}{by}", connection=connection)
            channel = self.channels.get(f"{row['channel']}.{row['identity_scope']}")
            goes_on = anything_left(outgoing_of(row), channel, confirmed=part)
        status = "pending" if goes_on else "delivered"
        await connection.execute(self.queries.settle_uncertain, row["id"], status, by, now, word)

    async def _why_not(self, connection: Connection, delivery_id: UUID) -> ValidationError:
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
            await self.executor.expect(delivery_id).wait(min(left, _LOOK_AGAIN_S))


def _told(outcome: Outcome) -> dict[str, Any]:
    return {
        "delivery_id": outcome.delivery_id,
        "status": outcome.status,
        "provider_delivery_id": outcome.provider_delivery_id,
        "error": outcome.error.describe() if outcome.error else None,
    }
