"""Faults at random between Switchboard and everybody around it: callers, specialists, its database, Telegram.

One fault strikes once and is gone, and the next one comes only after some more messages were handed in: most calls go
well, so that what goes wrong does so for a reason.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx2

from benchmarks.chaos.rig import Rig
from benchmarks.chaos.switchboard.callers import Callers
from benchmarks.chaos.switchboard.gates import Fault, Gate

USUAL_DELAY_S = 0.05
LOOK_S = 0.2
MESSAGES_PER_FAULT = (5, 20)
AWAY_S = 1.0
SLOW_S = (0.3, 2.0)

KINDS: tuple[tuple[int, str], ...] = (
    (4, "slow"),
    (3, "error"),
    (3, "dropped"),
    (3, "lost"),
    (2, "away"),
    (3, "database"),
    (2, "updates"),
    (5, "callers"),
)
LOSING: tuple[Fault, ...] = ("lost", "lost", "dropped")  # stored and not answered is the one that matters
UPDATES: tuple[dict[str, Any], ...] = (
    {"kind": "error_5xx", "status": 502},
    {"kind": "drop_before"},
    {"kind": "drop_after"},
    {"kind": "delay", "seconds": 0.5},
)
# A pool's connection is known by what it asked last: every query names its schema.
_CUT = r"""SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND query ~ ('\m' || $1 || '\.')"""


@dataclass(slots=True, kw_only=True)
class FaultInjector:
    rig: Rig
    gates: Mapping[str, Gate]
    callers: Callers
    dice: random.Random
    faults: Counter[str] = field(default_factory=Counter)
    _seen: int = 0

    async def begin(self) -> None:
        """Let Telegram always take its time, so that a kill finds something on its way."""
        slow = {"method": "sendMessage", "kind": "delay", "seconds": USUAL_DELAY_S, "times": None}
        await self.rig.control("POST", "/faults", slow)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self.rig.clock.sleep(LOOK_S)
            if self.callers.handed_in - self._seen >= self.dice.uniform(*MESSAGES_PER_FAULT):
                self._seen = self.callers.handed_in
                [kind] = self.dice.choices([kind for _, kind in KINDS], weights=[weight for weight, _ in KINDS])
                await self._strike(kind)

    async def clear(self) -> None:
        await self.rig.control("DELETE", "/faults")
        for gate in (*self.gates.values(), self.callers.door):
            gate.faults.clear()

    async def _strike(self, kind: str) -> None:
        gate = self.gates[self.dice.choice(sorted(self.gates))]
        match kind:
            case "slow" | "error" | "dropped" | "lost":
                if gate.faults:
                    return  # nobody calls at present; a heap of faults would be an outage
                gate.faults.append((kind, self.dice.uniform(*SLOW_S)))
            case "away":
                gate.go_away(AWAY_S)
            case "database":
                await self.rig.database.execute(_CUT, self.dice.choice(["switchboard", *sorted(self.gates)]))
            case "callers":
                self.callers.door.faults.append((self.dice.choice(LOSING), 0.0))
            case "updates":
                await self._disturb_updates()
        self.faults[kind] += 1

    async def _disturb_updates(self) -> None:
        try:
            await self.rig.control("POST", "/faults", {"method": "getUpdates", **self.dice.choice(UPDATES)})
        except (httpx2.ConnectError, httpx2.TimeoutException):
            return
