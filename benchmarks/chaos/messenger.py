"""One chaos run against Messenger: submit, kill at random moments, wait until all is quiet, compare."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.chaos.assessment import Kill, assess
from benchmarks.chaos.caller import Caller
from benchmarks.chaos.faults import FaultInjector, cancelled
from benchmarks.chaos.ground_truth import count_open, delivery_rows, received, surfaced, waiting
from benchmarks.chaos.messages import DeliveryRequest, make_requests
from benchmarks.chaos.report import Plan, make_report, say
from benchmarks.chaos.rig import Rig, rig
from benchmarks.chaos.roster import lifted_roster
from butlers.clock import SystemClock
from butlers.ids import Uuid7Factory

QUIET_S = 90.0  # after the last submission everything must have ended
LIFE_S = (0.3, 6.0)  # how long Messenger is left alone once it is healthy
BUSY_S = 10.0
START_KILLS = 0.15  # share of the kills that come while it is still starting
RELEASED_OVER_S = 5.0  # one life's share of the messages

# Budgets that never refuse, pauses that fit into a test run; everything else as shipped.
_QUICK_RETRY = {"max_attempts": 10, "base_delay_s": 0.2, "max_delay_s": 1.5, "jitter": 0.3}
LIFTED: dict[str, Any] = {
    "limits": {
        "max_in_flight": 100_000,
        "global_per_minute": 1e7,
        "recipient_per_minute": 1e7,
        "channel_per_minute": {"telegram.bot": 1e7, "email.bot": 1e7},
    },
    "breaker": {"recovery_timeout_s": 1.0},
    "error_budget": {"min_events": 1_000_000},
    "retry": {"default": _QUICK_RETRY, "email": _QUICK_RETRY, "telegram": _QUICK_RETRY},
    "timeout_s": {"telegram": 4.0, "email": 6.0},
}


async def run(plan: Plan, folder: Path) -> dict[str, Any]:
    clock = SystemClock()
    began = clock.monotonic()
    roster = lifted_roster(folder / "roster", LIFTED, route_timeout_s=10.0)
    async with rig(folder / "data", roster, clock=clock) as given:
        dice = random.Random(plan.seed)
        new_id = Uuid7Factory(clock)
        requests = make_requests(plan.messages, dice=dice, new_id=new_id, now=clock.now())
        caller = Caller(rig=given, new_id=new_id)
        injector = FaultInjector(rig=given, dice=random.Random(dice.random()), traffic=lambda: len(caller.accepted))
        storm = _Storm(rig=given, caller=caller, dice=dice, plan=plan)
        await injector.begin()
        faults = asyncio.create_task(injector.run())
        try:
            kills = await storm.blow(requests)
            await cancelled(faults)
            await injector.clear()
            quiet = await storm.settle()
        finally:
            await cancelled(faults)
            await storm.give_up()
        assessment = assess(
            accepted=caller.accepted,
            rows=await delivery_rows(given),
            received=await received(given),
            kills=kills,
            surfaced=await surfaced(given),
        )
        spent = clock.monotonic() - began
        report = make_report(plan, caller, kills, assessment, faults=injector.faults, duration_s=spent)
        return report | {"quiet": quiet, "passed": report["passed"] and quiet}


@dataclass(slots=True, kw_only=True)
class _Storm:
    rig: Rig
    caller: Caller
    dice: random.Random
    plan: Plan
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def blow(self, requests: list[DeliveryRequest]) -> list[Kill]:
        """Submit everything over as many lives as there are kills, and one more."""
        await self.rig.spawn("messenger", self.plan.settings)
        await self.rig.until_healthy("messenger")
        lives = self.plan.kills + 1
        kills: list[Kill] = []
        while len(kills) < self.plan.kills:
            self._release(requests[len(kills) :: lives])
            await self._live(kills)
            kills.append(await self._kill())
            await self.rig.spawn("messenger", self.plan.settings)
            say(f"kill {len(kills)}/{self.plan.kills}: {len(kills[-1].waiting)} open deliveries hit")
        await self._until_healthy_after(kills)
        self._release(requests[self.plan.kills :: lives])
        return kills

    def _release(self, requests: Sequence[DeliveryRequest]) -> None:
        for request in requests:
            pause = self.dice.uniform(0, RELEASED_OVER_S)
            self._tasks.append(asyncio.create_task(self._hand_in(request, pause)))

    async def _hand_in(self, request: DeliveryRequest, pause: float) -> None:
        await self.rig.clock.sleep(pause)
        await self.caller.hand_in(request)

    async def _live(self, kills: list[Kill]) -> None:
        """Until the next kill, which now and then comes while it is still starting."""
        if kills and self.dice.random() < START_KILLS:
            await self.rig.clock.sleep(self.dice.uniform(0.2, 2.0))
            return
        await self._until_healthy_after(kills)
        await self.rig.clock.sleep(self.dice.uniform(*LIFE_S))
        await self._until_busy()

    async def _until_busy(self) -> None:
        """A kill that hits nothing shows nothing: wait a little for something to be open."""
        deadline = self.rig.clock.monotonic() + BUSY_S
        while self.rig.clock.monotonic() < deadline and not await count_open(self.rig):
            await self.rig.clock.sleep(0.005)

    async def _until_healthy_after(self, kills: list[Kill]) -> None:
        await self.rig.until_healthy("messenger")
        if kills:
            took = (self.rig.clock.now() - kills[-1].at).total_seconds()
            kills[-1] = replace(kills[-1], healthy_after_s=took)

    async def _kill(self) -> Kill:
        at = await self.rig.kill("messenger")
        return Kill(at=at, waiting=await waiting(self.rig, at))

    async def settle(self) -> bool:
        """Wait until all was accepted and nothing is open; whether that came about in time."""
        deadline = self.rig.clock.monotonic() + QUIET_S
        while self.rig.clock.monotonic() < deadline:
            unsent = sum(not task.done() for task in self._tasks)
            still_open = await count_open(self.rig)
            if not unsent and not still_open:
                await asyncio.gather(*self._tasks)
                return True
            say(f"waiting: {unsent} to be handed in, {still_open} open")
            await self.rig.clock.sleep(1.0)
        return False

    async def give_up(self) -> None:
        """Hand in nothing more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
