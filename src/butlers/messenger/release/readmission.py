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
from butlers.messenger.admission import rules
from butlers.messenger.admission.admission import Admission, AdmissionBatch
from butlers.messenger.admission.rules import AdmissionRequest, Budgets, Refused
from butlers.messenger.admission.state import AdmissionState
from butlers.messenger.recipients import not_permitted, suppressed
from butlers.storage.database import Database, Executor, Record
from butlers.storage.queries import Queries

_BATCH = 100
_SHORTEST_WAIT_S = 0.1


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
            state = await self.admission.read_state(connection, keys=[], requests=requests, now=now)
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
        return None if request.is_answer or one.settled else suppressed(rule, wrote_at=None)

    async def _pass(self, connection: Executor, released: Sequence[Released], budgets: Budgets, now: datetime) -> int:
        batch, passed, late = AdmissionBatch(), [], []
        policy = self.admission.policy
        for one in released:
            verdict = rules.admit(one.request, limits=policy.limits, breaker=policy.breaker, budgets=budgets, now=now)
            if isinstance(verdict, Refused):
                late.append((one.id, verdict))
                batch.keep(one.request, self.admission.wanting(one.request, budgets, now), now)
                continue
            passed.append(one.id)
            batch.draw(one.request, verdict, now)
            rules.apply(budgets, one.request, verdict)
        await self.admission.write(connection, batch, now)
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


def _admission_request(row: Record) -> AdmissionRequest:
    return AdmissionRequest(
        channel=f"{row['channel']}.{row['identity_scope']}",
        recipient=row["target_identity"] or "",
        origin=row["origin_butler"],
        intent=row["intent"],
    )
