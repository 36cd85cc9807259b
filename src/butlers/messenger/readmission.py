"""Deliveries released later (approved, addressed, replayed, settled) pass the same admission as any other.

Those that do not pass wait for the moment the rule named; those whose recipient must not be written to any more end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from butlers.clock import Clock
from butlers.errors import ClassifiedError
from butlers.messenger import admission
from butlers.messenger.admission import Budgets, Refused, Wish
from butlers.messenger.book import Book
from butlers.messenger.judgement import Snapshot
from butlers.messenger.ledger import Page
from butlers.messenger.recipients import not_permitted, suppressed
from butlers.storage.database import Database, Executor, Record
from butlers.storage.queries import Queries

_BATCH = 100
_SHORTEST_WAIT_S = 0.1

Released = tuple[UUID, Wish]


@dataclass(frozen=True, slots=True, kw_only=True)
class Readmission:
    database: Database
    queries: Queries
    book: Book
    clock: Clock

    async def admit(self) -> int:
        """How many passed."""
        now = self.clock.now()
        if not await self.database.fetchval(self.queries.anything_released, now):
            return 0
        async with self.database.transaction() as connection:
            await connection.fetchval(self.queries.lock_admission)
            rows = await connection.fetch(self.queries.released, now, _BATCH)
            released = [(row["id"], _wish(row)) for row in rows]
            snapshot = await self.book.read_state(connection, keys=[], wishes=[wish for _, wish in released], now=now)
            welcome = await self._turn_away(connection, released, snapshot, now)
            return await self._pass(connection, welcome, snapshot.budgets, now)

    async def _turn_away(
        self, connection: Executor, released: Sequence[Released], snapshot: Snapshot, now: datetime
    ) -> list[Released]:
        """End what must not be sent any more; the rest."""
        welcome = []
        for delivery_id, wish in released:
            if (problem := self._objection(wish, snapshot)) is None:
                welcome.append((delivery_id, wish))
            else:
                await connection.execute(self.queries.turn_away, delivery_id, now, f"the recipient {problem}")
        return welcome

    def _objection(self, wish: Wish, snapshot: Snapshot) -> str | None:
        channel, policy = wish.channel.partition(".")[0], self.book.policy.recipients
        if (problem := not_permitted(policy, channel=channel, target=wish.recipient)) is not None:
            return problem
        rule = snapshot.recipients.get((channel, wish.recipient))
        return None if wish.is_answer else suppressed(rule, wrote_at=None)

    async def _pass(self, connection: Executor, released: Sequence[Released], budgets: Budgets, now: datetime) -> int:
        page, passed, late = Page(), [], []
        policy = self.book.policy
        for delivery_id, wish in released:
            verdict = admission.admit(wish, limits=policy.limits, breaker=policy.breaker, budgets=budgets, now=now)
            if isinstance(verdict, Refused):
                late.append((delivery_id, verdict))
                page.keep(wish, self.book.wanting(wish, budgets, now), now)
                continue
            passed.append(delivery_id)
            page.draw(wish, verdict, now)
            admission.apply(budgets, wish, verdict)
        await self.book.write(connection, page, now)
        await connection.execute(self.queries.admit_released, passed, now)
        await self._put_off(connection, late, now)
        return len(passed)

    async def _put_off(self, connection: Executor, late: Sequence[tuple[UUID, Refused]], now: datetime) -> None:
        if late:
            await connection.execute(
                self.queries.put_off_released,
                [delivery_id for delivery_id, _ in late],
                [now + timedelta(seconds=_wait_of(refused.error)) for _, refused in late],
                now,
                [refused.rule for _, refused in late],
                [refused.error.message for _, refused in late],
            )


def _wait_of(error: ClassifiedError) -> float:
    return max(error.retry_after if error.retry_after is not None else 1.0, _SHORTEST_WAIT_S)


def _wish(row: Record) -> Wish:
    return Wish(
        channel=f"{row['channel']}.{row['identity_scope']}",
        recipient=row["target_identity"] or "",
        origin=row["origin_butler"],
        intent=row["intent"],
    )
