"""One chaos run against the embedded database: `butlers up` serves, and its PostgreSQL is killed with `kill -9`.

    people ---- Telegram's simulator ---- long poll --.
    callers --- POST /api/ingest ----------------------+--- butlers up ---- PostgreSQL, killed
                                                       '--> the chats: what was answered, and how often

The system's process is never touched: it has to notice, to start the database again, and to finish what it accepted.
Callers hand in the same event until it is accepted. The answers in the chats and the state of each request decide.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

from benchmarks.chaos.messenger import LIFTED
from benchmarks.chaos.report import Plan, say
from benchmarks.chaos.roster import lifted_roster
from butlers.clock import Clock, SystemClock
from butlers.daemon.demo.instance import Instance
from butlers.errors import ButlersError
from butlers.storage.embedded import EmbeddedPostgres

SERVED_GOAL_S = 10.0  # from the kill to the first accepted message and to every door being ready
QUIET_S = 90.0  # after the last message everything must have ended
LIFE_S = (1.0, 4.0)  # how long the database is left alone once all is ready
CHATS = range(7001, 7041)
_LOOK_AGAIN_S = 0.02


async def run(plan: Plan, folder: Path) -> dict[str, Any]:
    clock = SystemClock()
    began = clock.monotonic()
    roster = lifted_roster(folder / "roster", LIFTED, route_timeout_s=10.0)
    settings = {"roster": str(roster)} | dict(setting.split("=", 1) for setting in plan.settings)
    instance = Instance(folder / "data", clock=clock, settings=settings)
    try:
        await instance.start()
        storm = _Storm(instance=instance, clock=clock, plan=plan, dice=random.Random(plan.seed))
        await storm.blow()
        report = await storm.assess()
    finally:
        await instance.close()
    return report | {"duration_s": round(clock.monotonic() - began, 1)}


@dataclass(slots=True, kw_only=True)
class _Storm:
    instance: Instance
    clock: Clock
    plan: Plan
    dice: random.Random
    accepted: dict[int, str] = field(default_factory=dict)  # messages handed in, and their requests
    said: list[int] = field(default_factory=list)  # messages written in chats
    put_off: int = 0  # calls that were refused for now, or got no answer
    served_after: list[float] = field(default_factory=list)
    ready_after: list[float] = field(default_factory=list)

    async def blow(self) -> None:
        """Hand in everything over as many lives as there are kills, and one more."""
        lives = self.plan.kills + 1
        shares = [range(life, self.plan.messages, lives) for life in range(lives)]
        tasks = [asyncio.create_task(self._talk(shares[0]))]
        for share in shares[1:]:
            await self.clock.sleep(self.dice.uniform(*LIFE_S))
            tasks.append(asyncio.create_task(self._talk(share)))
            await self._kill()
        await asyncio.gather(*tasks)

    async def _talk(self, numbers: range) -> None:
        await asyncio.gather(*(self._send(number) for number in numbers))

    async def _send(self, number: int) -> None:
        await self.clock.sleep(self.dice.uniform(0, LIFE_S[1]))
        if number % 2:
            self.accepted[number] = await self._hand_in(f"event-{number}", f"handed in {number}")
        else:
            await self.instance.say(CHATS[number % len(CHATS)], f"note number {number}")
            self.said.append(number)

    async def _hand_in(self, event: str, text: str) -> str:
        while True:
            try:
                response = await self.instance.ingest(_envelope(event, text, self.clock))
            except httpx2.TransportError:
                response = None
            if response is not None and response.status_code == 202:
                return str(response.json()["request_id"])
            if response is not None and response.status_code not in (429, 503):
                raise ButlersError(f"message {event} was refused: {response.status_code} {response.text[:200]}")
            self.put_off += 1
            await self.clock.sleep(_LOOK_AGAIN_S)

    async def _kill(self) -> None:
        """kill -9, and how long it takes until a message is accepted and every door is ready."""
        server = EmbeddedPostgres(self.instance.data_dir)
        killed = server.pid
        if killed is None:
            raise ButlersError("the database does not run")
        os.kill(killed, signal.SIGKILL)
        killed_at = self.clock.monotonic()
        number = len(self.served_after)

        async def is_another() -> bool:  # a dead server's children still answer for a moment
            return server.is_alive() and server.pid != killed

        await self._until(is_another)
        self.accepted[-1 - number] = await self._hand_in(f"probe-{number}", f"probe {number}")
        self.served_after.append(self.clock.monotonic() - killed_at)
        await self._until(self.instance.is_ready)
        self.ready_after.append(self.clock.monotonic() - killed_at)
        say(f"kill {number + 1}/{self.plan.kills}: served after {self.served_after[-1]:.1f} s")

    async def assess(self) -> dict[str, Any]:
        """Wait until all is quiet, then compare."""
        expected = Counter(f"[general] Noted: note number {number}" for number in self.said)
        stuck = [number for number, request in self.accepted.items() if not await self._has_ended(request)]
        await self._until(lambda: self._heard(expected), required=False)
        heard = await self._answers()
        lost = expected - heard
        twice = [text for text, count in heard.items() if count > expected.get(text, 0)]
        counts = {
            "messages": len(self.said) + len(self.accepted) - self.plan.kills,
            "kills": len(self.served_after),
            "lost": lost.total(),
            "duplicates": len(twice),
            "stuck": len(stuck),
            "put_off": self.put_off,
        }
        goals = {
            "all_accepted": counts["messages"] == self.plan.messages,
            "all_killed": counts["kills"] == self.plan.kills,
            "lost": not lost,
            "duplicates": not twice,
            "stuck": not stuck,
            "served_max_s": max(self.served_after, default=0.0) < SERVED_GOAL_S,
            "ready_max_s": max(self.ready_after, default=0.0) < SERVED_GOAL_S,
        }
        for name, found in (("lost", [*lost]), ("duplicates", twice), ("stuck", stuck)):
            if found:
                say(f"{name}: {found[:10]}")
        times = {
            f"{name}_{kind}_s": round(value, 2)
            for name, found in (("served", self.served_after), ("ready", self.ready_after))
            for kind, value in (
                ("p50", sorted(found)[len(found) // 2] if found else 0.0),
                ("max", max(found, default=0.0)),
            )
        }
        fixed = {"chaos": "database", "seed": self.plan.seed}
        return fixed | counts | times | {"goals": goals, "passed": all(goals.values())}

    async def _has_ended(self, request: str) -> bool:
        async def ended() -> bool:
            return bool((await self.instance.request(request))["final_state_at"])

        return await self._until(ended, required=False)

    async def _heard(self, expected: Counter[str]) -> bool:
        return expected <= await self._answers()

    async def _answers(self) -> Counter[str]:
        return Counter([text for chat in CHATS for text in await self.instance.bot_messages(chat)])

    async def _until(self, condition: Callable[[], Awaitable[bool]], *, required: bool = True) -> bool:
        deadline = self.clock.monotonic() + QUIET_S
        while self.clock.monotonic() < deadline:
            if await condition():
                return True
            await self.clock.sleep(_LOOK_AGAIN_S)
        if required:
            raise ButlersError(f"the doors were not ready within {QUIET_S:g} s")
        return False


def _envelope(event: str, text: str, clock: Clock) -> dict[str, Any]:
    return {
        "schema_version": "ingest.v1",
        "source": {"channel": "api", "provider": "internal", "endpoint_identity": "chaos"},
        "event": {"external_event_id": event, "observed_at": clock.now().isoformat()},
        "sender": {"identity": "chaos"},
        "payload": {"raw": {"text": text}, "normalized_text": text},
    }
