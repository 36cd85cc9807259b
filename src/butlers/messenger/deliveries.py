"""The delivery rows: claimed, attempted, settled, rescued; and the circuits, which processes share by their rows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import fields
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from butlers.butler.health import Finding
from butlers.channels.adapter import Certainty, NotSent, Sent
from butlers.clock import Clock
from butlers.messenger.attempt import Ended, Outcome
from butlers.messenger.channel_health import finding
from butlers.messenger.config import BreakersSection
from butlers.messenger.delivery import ClaimedDelivery, claimed
from butlers.reliability import circuit_breaker
from butlers.reliability.circuit_breaker import Breaker, BreakerPolicy, BreakerState
from butlers.reliability.dead_letter import QuarantineReason
from butlers.storage.claims import Claim, Claims, ClaimTable
from butlers.storage.database import Database, Executor, Record
from butlers.storage.migrations import MigrationSet
from butlers.storage.queries import Queries

_CIRCUIT = tuple(field.name for field in fields(Breaker))
LONGEST_WINDOW_S = 86_400.0  # a provider that asks for more is asked again after a day

# A dead worker's delivery is not claimed like a waiting one: its wire log tells first what may have left.
DELIVERY_CLAIMS = ClaimTable(
    name="delivery_requests",
    key={"id": "uuid"},
    state="status",
    held="in_progress",
    waiting="work.status IN ('pending', 'awaiting_retry')",
    takes_over=False,
    given_back="CASE WHEN work.attempts > 1 THEN 'awaiting_retry' ELSE 'pending' END",
)

# Whether a provider has confirmed a delivery in the meantime, by a receipt that overtook the end of its attempt.
SettleReported = Callable[[Executor, UUID], Awaitable[bool]]


class Deliveries:
    """Reads and writes the rows of one schema."""

    def __init__(
        self,
        *,
        database: Database,
        schema: str,
        clock: Clock,
        new_id: Callable[[], UUID],
        breaker: BreakersSection,
        settle_reported: SettleReported,
        channels: Collection[str] | None = None,  # with scope; the deliveries of others are left alone. None: all
    ) -> None:
        self._database = database
        self._queries = Queries.load("butlers.messenger", schema=schema)
        self._claims = Claims(DELIVERY_CLAIMS, database=database, schema=schema, clock=clock, new_id=new_id)
        self._claim_due = self._claims.fill(self._queries.claim_due)
        self._claim_abandoned = self._claims.fill(self._queries.claim_abandoned)
        self._finish_attempts = self._claims.fill(self._queries.finish_attempts)
        self._clock = clock
        self._new_id = new_id
        self._breaker = breaker
        self._settle_reported = settle_reported
        self._channels = sorted(channels) if channels is not None else None
        self._served: dict[str, None] = {}  # butlers, the one whose delivery was claimed last at the end

    async def ensure_channels(self, names: Iterable[str]) -> None:
        await self._database.execute(self._queries.ensure_channels, sorted(names), self._clock.now())

    async def get(self, delivery_id: UUID) -> Outcome | None:
        row = await self._database.fetchrow(self._queries.request_by_id, delivery_id)
        return Outcome.of_row(row) if row is not None else None

    # --- claiming ----------------------------------------------------------------------------------------------------

    async def claim_due(
        self,
        *,
        limit: int,
        worker: str,
        lease_s: float,
        channel: str | None = None,  # only this one, whatever its circuit says; None: those that are well
        connection: Executor | None = None,
    ) -> list[ClaimedDelivery]:
        """Take what is due; each attempt is on record with its claim."""
        values = (limit, channel, list(self._served), self._channels)
        token, rows = await self._claims.run(
            self._claim_due, *values, worker=worker, lease_s=lease_s, connection=connection
        )
        for row in rows:
            self._served.pop(row["origin_butler"], None)
            self._served[row["origin_butler"]] = None
        return [claimed(row, token) for row in rows]

    async def open_circuits(self) -> list[str]:
        """Of the channels served here."""
        names = [row["name"] for row in await self._database.fetch(self._queries.open_circuits)]
        return [name for name in names if self._channels is None or name in self._channels]

    async def channel_findings(self) -> dict[str, Finding]:
        """How each channel that is served here is, by its circuit."""
        rows = await self._database.fetch(self._queries.circuits_of, self._channels or [])
        return {row["name"]: finding(row) for row in rows}

    async def claim_probes(self, channel: str, *, limit: int, worker: str, lease_s: float) -> list[ClaimedDelivery]:
        """Take as much of a channel in trouble as its circuit admits."""
        now, policy = self._clock.now(), self._breaker.policy(channel)
        async with self._database.transaction() as connection:
            rows = await connection.fetch(self._queries.lock_channels, [channel])
            breaker, slots = circuit_of_row(rows[0]) if rows else Breaker(), limit
            in_trouble = breaker.state is not BreakerState.CLOSED
            if in_trouble:
                breaker, slots = draw_probes(breaker, policy, now, at_most=limit)
                await self._write_circuit(connection, channel, breaker, now)
            if slots == 0:
                return []
            found = await self.claim_due(
                limit=slots, worker=worker, lease_s=lease_s, channel=channel, connection=connection
            )
            if in_trouble and len(found) < slots:
                for _ in range(slots - len(found)):  # probes for which there is nothing to send
                    breaker = circuit_breaker.record_ignored(breaker, generation=breaker.generation)
                await self._write_circuit(connection, channel, breaker, now)
        return found

    async def give_back(self, unused: Sequence[ClaimedDelivery]) -> None:
        """Claims with which nothing was done, as if they had never been taken."""
        now = self._clock.now()
        async with self._database.transaction() as connection:
            claims = [Claim(key=(one.id,), token=one.claim_token) for one in unused]
            rows = await self._claims.give_back(claims, connection=connection)
            ids = {row["id"] for row in rows}
            freed = [one for one in unused if one.id in ids]
            await connection.execute(self._queries.undo_attempts, [one.attempt_id for one in freed])
            names = sorted({one.scoped_channel for one in freed})
            for row in await connection.fetch(self._queries.lock_channels, names):
                before = breaker = circuit_of_row(row)
                for one in freed:  # a trial that was not made is free again
                    if one.scoped_channel == row["name"]:
                        breaker = circuit_breaker.record_ignored(breaker, generation=one.generation)
                if breaker != before:
                    await self._write_circuit(connection, row["name"], breaker, now)

    async def claim_abandoned(
        self,
        *,
        limit: int,
        worker: str,
        lease_s: float,
        in_hand: Sequence[UUID],
        dead: Sequence[str] = (),
        alive: Sequence[str] = (),
    ) -> list[tuple[ClaimedDelivery, str]]:
        """Deliveries of workers that are dead or silent, each with the name of the one whose evidence counts."""
        values = (limit, list(in_hand), list(dead), list(alive))
        token, rows = await self._claims.run(self._claim_abandoned, *values, worker=worker, lease_s=lease_s)
        return [(claimed(row, token), row["attempt_worker"]) for row in rows]

    async def renew(self, tokens: Mapping[UUID, UUID], lease_s: float) -> None:
        """Extend the leases of deliveries, each under its token."""
        if tokens:
            claims = [Claim(key=(delivery_id,), token=token) for delivery_id, token in tokens.items()]
            await self._claims.renew(claims, lease_s=lease_s)

    # --- attempts ----------------------------------------------------------------------------------------------------

    async def record_part(
        self, delivery_id: UUID, part: int, provider_delivery_id: str, *, connection: Executor | None = None
    ) -> None:
        """In a transaction of its own unless the caller has one."""
        await (connection or self._database).execute(
            self._queries.record_part, self._new_id(), delivery_id, part, provider_delivery_id, self._clock.now()
        )

    async def parts_of(self, delivery_id: UUID) -> set[int]:
        return {row["part"] for row in await self._database.fetch(self._queries.parts_of, delivery_id)}

    async def late_yes(self, ended: Ended, sent: Sent) -> bool:
        """Keep a provider's yes that came after the claim was lost; whether it settled the delivery."""
        delivery = ended.delivery
        settled = await self._database.fetchval(
            self._queries.late_yes,
            delivery.id,
            delivery.attempt_id,
            ended.receipt_id,
            sent.provider_delivery_id,
            dict(sent.response),
            sent.part,
            self._clock.now(),
        )
        return settled is not None

    async def finish(self, ended: Sequence[Ended]) -> list[bool]:
        """Write outcomes together; False for those whose claim was lost, of which nothing is written."""
        now = self._clock.now()
        blames = any(end.blames_provider for end in ended)
        async with self._database.transaction() as connection:
            row = await connection.fetchrow(self._finish_attempts, [end.to_row() for end in ended], now, blames)
            if row is None:
                raise RuntimeError("finish_attempts returned no row")
            written = set(row["written"])
            for end in ended:
                if end.delivery.id in written and isinstance(end.result, NotSent):
                    await self._heed(connection, end, end.result, now)
                elif end.delivery.id in written and end.result.moved_to is not None:
                    await self._note_move(connection, end, now)
            dead = [end.delivery.id for end in ended if end.settlement.status == "dead_lettered"]
            if buried := [delivery_id for delivery_id in dead if delivery_id in written]:
                await connection.execute(self._queries.bury, buried, QuarantineReason.RETRIES_EXHAUSTED.value, now)
            if row["circuits"]:
                counting = [end for end in ended if end.delivery.id in written]
                for name, breaker in learned(row["circuits"], counting, self._breaker, now).items():
                    await self._write_circuit(connection, name, breaker, now)
        return [end.delivery.id in written for end in ended]

    async def _write_circuit(self, connection: Executor, name: str, breaker: Breaker, now: datetime) -> None:
        values = (getattr(breaker, column) for column in _CIRCUIT)
        await connection.execute(self._queries.write_circuit, name, *values, now)

    async def _heed(self, connection: Executor, end: Ended, result: NotSent, now: datetime) -> None:
        """What a failed attempt says about windows, recipients and an earlier doubt."""
        delivery, reason = end.delivery, result.error.message
        if result.throttle is not None:
            # Pause the conversation first; when others are paused too, it is about all of them.
            channel = delivery.scoped_channel
            scope = f"{channel}:{delivery.outgoing.target}" if result.throttle.scope == "target" else channel
            if scope != channel and await connection.fetchval(self._queries.other_throttles, channel, scope, now):
                scope = channel
            until = now + timedelta(seconds=min(result.throttle.seconds, LONGEST_WINDOW_S))
            await connection.execute(self._queries.open_throttle, scope, channel, until, reason, now)
        if result.recipient_gone:
            # A recipient that is gone after a move is gone from the new address.
            target = result.moved_to or delivery.outgoing.target
            rule = (delivery.channel, target, "suppressed", result.moved_to, reason, now)
            await connection.execute(self._queries.record_recipient_rule, *rule)
        if result.moved_to is not None:
            await self._note_move(connection, end, now)
        if result.certainty is Certainty.UNCERTAIN:
            await self._settle_reported(connection, delivery.id)

    async def _note_move(self, connection: Executor, end: Ended, now: datetime) -> None:
        rule = (end.delivery.channel, end.delivery.outgoing.target, "moved", end.result.moved_to)
        await connection.execute(self._queries.record_recipient_rule, *rule, "the provider named a new address", now)

    # --- upkeep and reading ------------------------------------------------------------------------------------------

    async def expire(self) -> list[Record]:
        return await self._database.fetch(self._queries.expire, self._clock.now())

    async def open_attempts_of(self, worker: str) -> int:
        count: int = await self._database.fetchval(self._queries.open_attempts_of, worker)
        return count

    async def next_due(self) -> tuple[datetime | None, bool]:
        """When there is something to do next, and whether anything due is held up by something else."""
        row = await self._database.fetchrow(self._queries.next_due, self._clock.now(), self._channels)
        return (row["moment"], row["held_up"]) if row is not None else (None, False)

    async def trace(self, request_id: UUID) -> list[dict[str, Any]]:
        """All deliveries of a request, each with its attempts and receipts."""
        deliveries = [dict(row) for row in await self._database.fetch(self._queries.deliveries_of_request, request_id)]
        ids = [delivery["id"] for delivery in deliveries]
        attempts = await self._database.fetch(self._queries.attempts_of_deliveries, ids)
        receipts = await self._database.fetch(self._queries.receipts_of_deliveries, ids)
        for delivery in deliveries:
            for name, rows in (("attempts", attempts), ("receipts", receipts)):
                own = [dict(row) for row in rows if row["delivery_id"] == delivery["id"]]
                delivery[name] = [{key: row[key] for key in row if key != "delivery_id"} for row in own]
        return deliveries


def circuit_of_row(row: Record) -> Breaker:
    """The columns are named as the fields."""
    values = {column: row[column] for column in _CIRCUIT}
    return Breaker(**values | {"state": BreakerState(row["state"])})


def draw_probes(breaker: Breaker, policy: BreakerPolicy, now: datetime, *, at_most: int) -> tuple[Breaker, int]:
    """Take probe slots of a circuit in trouble; how many calls may go out."""
    for drawn in range(at_most):
        admission, breaker = circuit_breaker.admit(breaker, policy, now)
        if not isinstance(admission, circuit_breaker.Admitted):
            return breaker, drawn
    return breaker, at_most


def learned(
    circuits: Iterable[Record], ended: Iterable[Ended], policy: BreakersSection, now: datetime
) -> dict[str, Breaker]:
    """The circuits that results change, as they are afterwards."""
    before = {row["name"]: circuit_of_row(row) for row in circuits}
    known = dict(before)
    for end in ended:
        name, generation = end.delivery.scoped_channel, end.delivery.generation
        if (breaker := known.get(name)) is None:
            continue
        if isinstance(end.result, Sent):
            known[name] = circuit_breaker.record_success(breaker, policy.policy(name), generation=generation)
        elif end.blames_provider:
            reason = end.result.error.message
            known[name] = circuit_breaker.record_failure(
                breaker, policy.policy(name), generation=generation, reason=reason, now=now
            )
        else:
            known[name] = circuit_breaker.record_ignored(breaker, generation=generation)
    return {name: breaker for name, breaker in known.items() if breaker != before[name]}


def migrations(schema: str) -> MigrationSet:
    return MigrationSet(schema=schema, package="butlers.messenger", component="messenger")
