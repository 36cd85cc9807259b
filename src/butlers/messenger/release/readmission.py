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


@dataclass(frozen=True, slots=True, kw_only=True)
class Released:
    id: UUID
    wish: Wish
    settled: bool  # a person said what became of it


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
            await self.book.lock(connection)
            rows = await connection.fetch(self.queries.released, now, _BATCH)
            released = [Released(id=row["id"], wish=_wish(row), settled=row["settled_at"] is not None) for row in rows]
            wishes = [one.wish for one in released]
            snapshot = await self.book.read_state(connection, keys=[], wishes=wishes, now=now)
            welcome = await self._turn_away(connection, released, snapshot, now)
            return await self._pass(connection, welcome, snapshot.budgets, now)

    async def _turn_away(
        self, connection: Executor, released: Sequence[Released], snapshot: Snapshot, now: datetime
    ) -> list[Released]:
        """End what must not be sent any more; the rest."""
        welcome = []
        for one in released:
            problem = self._objection(one, snapshot)
            if problem is None:
                welcome.append(one)
            else:
                await connection.execute(self.queries.turn_away, one.id, now, f"the recipient {problem}")
        return welcome

    def _objection(self, one: Released, snapshot: Snapshot) -> str | None:
        wish, policy = one.wish, self.book.policy.recipients
        channel = wish.channel.partition(".")[0]
        if (problem := not_permitted(policy, channel=channel, target=wish.recipient)) is not None:
            return problem
        rule = snapshot.recipients.get((channel, wish.recipient))
        # What a person settled goes on as the person said.
        return None if wish.is_answer or one.settled else suppressed(rule, wrote_at=None)

    async def _pass(self, connection: Executor, released: Sequence[Released], budgets: Budgets, now: datetime) -> int:
        page, passed, late = Page(), [], []
        policy = self.book.policy
        for one in released:
            verdict = admission.admit(one.wish, limits=policy.limits, breaker=policy.breaker, budgets=budgets, now=now)
            if isinstance(verdict, Refused):
                late.append((one.id, verdict))
                page.keep(one.wish, self.book.wanting(one.wish, budgets, now), now)
                continue
            passed.append(one.id)
            page.draw(one.wish, verdict, now)
            admission.apply(budgets, one.wish, verdict)
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
