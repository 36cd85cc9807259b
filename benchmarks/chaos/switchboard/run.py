"""One chaos run against Switchboard: hand in, kill at random moments, wait until all is quiet, compare."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.chaos.faults import cancelled
from benchmarks.chaos.messenger import LIFTED
from benchmarks.chaos.report import Plan, say
from benchmarks.chaos.rig import Rig, rig
from benchmarks.chaos.roster import amend, lifted_roster
from benchmarks.chaos.switchboard import ground_truth
from benchmarks.chaos.switchboard.arrivals import OWNER_CHAT, Arrival, batches, make_arrivals
from benchmarks.chaos.switchboard.assessment import Evidence, Kill, assess
from benchmarks.chaos.switchboard.callers import Callers
from benchmarks.chaos.switchboard.faults import FaultInjector
from benchmarks.chaos.switchboard.gates import Gate, gates
from benchmarks.chaos.switchboard.report import make_report
from butlers.clock import SystemClock
from butlers.errors import TimeoutExceeded

SPECIALISTS = ("finance", "general", "health")
QUIET_S = 60.0  # after the last kill, and after the last message was handed in, everything must have ended
START_S = 60.0
LIFE_S = (0.3, 6.0)  # how long Switchboard is left alone once it is healthy
START_KILLS = 0.15  # share of the kills that come while it is still starting
RELEASED_OVER_S = 5.0  # one life's share of the messages
BUSY_S, BACKLOG, BACKLOG_S = 2.0, 120, 45.0

# A circuit that opens closes within a run, and nobody is told twice a minute what is broken; the rest is as shipped.
CIRCUIT = {"routing": {"circuit": {"recovery_s": 1.0}}}
SETTINGS = (f"owner_telegram={OWNER_CHAT}", "heartbeat_s=2")


async def run(plan: Plan, folder: Path) -> dict[str, Any]:
    clock = SystemClock()
    began = clock.monotonic()
    roster = lifted_roster(folder / "roster", LIFTED | {"tell_owner": False}, route_timeout_s=10.0)
    amend(roster, "switchboard", CIRCUIT)
    async with rig(folder / "data", roster, clock=clock) as given:
        doors = {name: given.ports[name] + given.offset for name in (*SPECIALISTS, "switchboard")}
        async with gates(doors, clock) as between:
            dice = random.Random(plan.seed)
            callers = Callers(rig=given, door=between.pop("switchboard"))
            injector = FaultInjector(rig=given, gates=between, callers=callers, dice=random.Random(dice.random()))
            storm = _Storm(rig=given, gates=between, callers=callers, dice=dice, plan=plan)
            kills, settled = await _through(storm, injector, make_arrivals(plan.messages, dice=dice))
            rows = await ground_truth.rows(given)
            assessment = assess(await _evidence(given, callers, kills))
            return make_report(
                plan,
                callers,
                kills,
                rows,
                assessment,
                faults=injector.faults,
                settled_after_s=settled,
                duration_s=clock.monotonic() - began,
            )


async def _through(storm: _Storm, injector: FaultInjector, arrivals: list[Arrival]) -> tuple[list[Kill], float | None]:
    await storm.gather_evidence()
    await injector.begin()
    faults = asyncio.create_task(injector.run())
    try:
        kills = await storm.blow(arrivals)
        await cancelled(faults)
        await injector.clear()
        return kills, await storm.settle()
    finally:
        await cancelled(faults)
        await storm.give_up()


async def _evidence(given: Rig, callers: Callers, kills: Sequence[Kill]) -> Evidence:
    return Evidence(
        accepted=callers.accepted,
        posted=callers.posted,
        rows=await ground_truth.rows(given),
        entries=await ground_truth.entries(given, SPECIALISTS),
        ends=await ground_truth.ends(given),
        heard=await ground_truth.heard(given),
        written=await ground_truth.written(given),
        kills=kills,
    )


@dataclass(slots=True, kw_only=True)
class _Storm:
    rig: Rig
    gates: Mapping[str, Gate]
    callers: Callers
    dice: random.Random
    plan: Plan
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def gather_evidence(self) -> None:
        """Everybody is up and known to Switchboard before anything comes in."""
        await self._spawn()
        await self.rig.until_healthy("switchboard")
        await ground_truth.note_ends(self.rig)
        for role in ("messenger", *SPECIALISTS):
            await self.rig.spawn(role, SETTINGS)
        deadline = self.rig.clock.monotonic() + START_S
        while not {"messenger", *SPECIALISTS} <= await ground_truth.registered(self.rig):
            if self.rig.clock.monotonic() > deadline:
                raise TimeoutExceeded(f"not everybody had registered within {START_S:g} s")
            await self.rig.clock.sleep(0.1)

    async def blow(self, arrivals: list[Arrival]) -> list[Kill]:
        """Hand in everything over as many lives as there are kills, and one more."""
        lives = self.plan.kills + 1
        kills: list[Kill] = []
        while len(kills) < self.plan.kills:
            self._release(arrivals[len(kills) :: lives])
            await self._live(kills)
            kills.append(await self._kill())
            await self._spawn()
            say(f"kill {len(kills)}/{self.plan.kills}: {len(kills[-1].in_hand)} requests in hand")
        await self._until_healthy_after(kills)
        self._release(arrivals[self.plan.kills :: lives])
        return kills

    async def _spawn(self) -> None:
        ports = {name: gate.port for name, gate in self.gates.items()}
        await self.rig.spawn("switchboard", [*SETTINGS, *self.plan.settings], ports)

    def _release(self, arrivals: Sequence[Arrival]) -> None:
        for arrival in arrivals:
            if arrival.channel == "telegram":
                self._soon(self.callers.write(arrival))
            elif not arrival.in_batch:
                self._soon(self.callers.hand_in([arrival]))
        for batch in batches(arrivals, dice=self.dice):
            self._soon(self.callers.hand_in(batch))

    def _soon(self, what: Awaitable[None]) -> None:
        pause = self.dice.uniform(0, RELEASED_OVER_S)
        self._tasks.append(asyncio.create_task(self._after(pause, what)))

    async def _after(self, pause: float, what: Awaitable[None]) -> None:
        await self.rig.clock.sleep(pause)
        await what

    async def _live(self, kills: list[Kill]) -> None:
        """Until the next kill, which now and then comes while it is still starting."""
        if kills and self.dice.random() < START_KILLS:
            await self.rig.clock.sleep(self.dice.uniform(0.2, 2.0))
            return
        await self._until_healthy_after(kills)
        await self._until_few_wait()
        await self.rig.clock.sleep(self.dice.uniform(*LIFE_S))
        await self._until_busy()

    async def _until_few_wait(self) -> None:
        """What piles up would only be waited for at the end."""
        deadline = self.rig.clock.monotonic() + BACKLOG_S
        while self.rig.clock.monotonic() < deadline and await ground_truth.count_open(self.rig) > BACKLOG:
            await self.rig.clock.sleep(0.1)

    async def _until_busy(self) -> None:
        """A kill that hits nothing shows nothing: wait a little for something to be open."""
        deadline = self.rig.clock.monotonic() + BUSY_S
        while self.rig.clock.monotonic() < deadline and not await ground_truth.count_open(self.rig):
            await self.rig.clock.sleep(0.005)

    async def _until_healthy_after(self, kills: list[Kill]) -> None:
        await self.rig.until_healthy("switchboard")
        if kills:
            took = (self.rig.clock.now() - kills[-1].at).total_seconds()
            kills[-1] = replace(kills[-1], healthy_after_s=took)

    async def _kill(self) -> Kill:
        at = await self.rig.kill("switchboard")
        return Kill(at=at, in_hand=frozenset(await ground_truth.in_hand(self.rig, at)))

    async def settle(self) -> float | None:
        """Seconds from the last message handed in to when nothing was open any more; None when that took too long."""
        _, late = await asyncio.wait(self._tasks, timeout=QUIET_S)
        if late:
            say(f"{len(late)} callers were still not told that their messages are stored")
            return None
        began = self.rig.clock.monotonic()
        while (spent := self.rig.clock.monotonic() - began) < QUIET_S:
            missing = self.plan.messages - len(self.callers.refused) - await ground_truth.count_stored(self.rig)
            still_open, unsent = await ground_truth.count_open(self.rig), await ground_truth.count_unsent(self.rig)
            if missing <= 0 and not still_open and not unsent:
                return spent
            say(f"waiting: {missing} to be stored, {still_open} open, {unsent} to be sent")
            await self.rig.clock.sleep(1.0)
        return None

    async def give_up(self) -> None:
        """Hand in nothing more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
