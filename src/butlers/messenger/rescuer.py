"""What becomes of an attempt whose process died: a decision by the evidence in its wire log.

A dead worker is known by its lock: on the same machine its work is taken over at once, elsewhere when its lease runs
out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from butlers.channels.adapter import Certainty, NotSent
from butlers.errors import TimeoutExceeded
from butlers.messenger import wire_log
from butlers.messenger.deliveries import Deliveries
from butlers.messenger.delivery import ClaimedDelivery
from butlers.messenger.observer import Observer
from butlers.messenger.settlement import Circumstances, Ended, Settlement, parked, settle
from butlers.messenger.wire_log import Evidence

MOST_LOST = 20  # attempts; what kills its process every time must not do so for ever
_BATCH = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescuer:
    """Settles what dead workers were doing, in the name of a living one."""

    deliveries: Deliveries
    wire_directory: Path
    name: str  # of the worker that rescues
    lease_s: float
    circumstances: Callable[[ClaimedDelivery], Circumstances]
    observer: Observer
    new_id: Callable[[], UUID]

    async def rescue(self, *, in_hand: Collection[UUID]) -> int:
        """How many were left behind; what is `in_hand` is being sent."""
        dead = [worker for worker in wire_log.dead_workers(self.wire_directory) if worker != self.name]
        alive = [worker for worker in wire_log.living_workers(self.wire_directory) if worker != self.name]
        abandoned = await self.deliveries.claim_abandoned(
            limit=_BATCH,
            worker=self.name,
            lease_s=self.lease_s,
            in_hand=list(in_hand),
            dead=dead,
            alive=alive,
        )
        if abandoned:
            # Read after the claim: what a worker of that name could still have marked, it has.
            evidence = {worker: self._evidence(worker) for _, worker in abandoned}
            await self._finish([await self._lost(delivery, evidence[worker]) for delivery, worker in abandoned])
        await self._forget(dead)
        return len(abandoned)

    async def _finish(self, ends: list[Ended]) -> None:
        await self.deliveries.finish(ends)
        for end in ends:
            self.observer.rescued(end)

    def _evidence(self, worker: str | None) -> Evidence:
        # Our own file is proof although we live: what is in nobody's hand is not being sent.
        return Evidence.read(self.wire_directory, worker or "", alive=worker == self.name)

    async def _lost(self, delivery: ClaimedDelivery, evidence: Evidence) -> Ended:
        parts = await self.deliveries.parts_of(delivery.id)
        result = lost_attempt(evidence.in_doubt(delivery.attempt_id, parts))
        return Ended(
            delivery=delivery,
            result=result,
            settlement=settle_lost(result, self.circumstances(delivery)),
            latency_ms=0,
            receipt_id=self.new_id(),
            lost=True,
        )

    async def _forget(self, dead: list[str]) -> None:
        for worker in dead:
            if await self.deliveries.open_attempts_of(worker) == 0:
                wire_log.remove(self.wire_directory, worker)


def lost_attempt(part: int | None) -> NotSent:
    """An attempt that nobody lived to report; `part` may have left."""
    return NotSent(
        error=TimeoutExceeded("the process ended during the attempt"),
        certainty=Certainty.NOT_SENT if part is None else Certainty.UNCERTAIN,
        response={"phase": "process ended", "part": part},
    )


def settle_lost(result: NotSent, around: Circumstances) -> Settlement:
    """A crash of ours says nothing about the provider: try at once, though not without end."""
    if result.certainty is Certainty.NOT_SENT:
        if around.attempt >= MOST_LOST:
            buried = Settlement(status="dead_lettered", error=result.error)
            return parked(result, around) if around.in_doubt else buried
        return Settlement(status="awaiting_retry", next_attempt_at=around.now, error=result.error)
    settlement = settle(result, around)
    if settlement.status != "awaiting_retry":
        return settlement
    return Settlement(
        status="awaiting_retry", next_attempt_at=around.now, error=settlement.error, decision=settlement.decision
    )
