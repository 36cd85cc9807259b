"""Faults at random: what providers and networks do on a bad day, a little of it at any time.

One fault strikes once and is gone, and the next one comes only after some more messages were taken on: most calls go
well, and the probes of an open circuit do not all meet a fault, which would be an outage and not a bad day.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx2

from benchmarks.chaos.rig import Rig

Fault = dict[str, Any]

USUAL_DELAY_S = 0.15
LOOK_S = 0.2
MESSAGES_PER_FAULT = (4, 16)
MOST_WAITING = 3  # of one provider, the usual delay included

TELEGRAM: tuple[tuple[int, Fault], ...] = (
    (4, {"kind": "delay"}),
    (3, {"kind": "error_5xx", "status": 502}),
    (2, {"kind": "too_many_requests", "retry_after": 1}),
    (3, {"kind": "drop_before"}),
    (2, {"kind": "drop_after"}),
)
MAIL: tuple[tuple[int, Fault], ...] = (
    (3, {"phase": "rcpt", "kind": "reply", "code": 451}),
    (2, {"phase": "dot", "kind": "reply", "code": 452, "text": "4.3.1 Out of space for now"}),
    (2, {"phase": "connect", "kind": "drop_before"}),
    (1, {"phase": "dot", "kind": "drop_before"}),
    (2, {"phase": "dot", "kind": "drop_after"}),
    (2, {"phase": "dot", "kind": "delay"}),
)


@dataclass(slots=True, kw_only=True)
class FaultInjector:
    rig: Rig
    dice: random.Random
    traffic: Callable[[], int]  # messages taken on so far
    faults: int = 0
    _seen: int = 0

    async def begin(self) -> None:
        """Let Telegram always take its time, so that a kill finds something on its way."""
        slow = {"method": "sendMessage", "kind": "delay", "seconds": USUAL_DELAY_S, "times": None}
        await self.rig.control("POST", "/faults", slow)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self.rig.clock.sleep(LOOK_S)
            if self.traffic() - self._seen >= self.dice.uniform(*MESSAGES_PER_FAULT):
                self._seen = self.traffic()
                await self._strike()

    async def clear(self) -> None:
        await self.rig.control("DELETE", "/faults")
        await self.rig.control("DELETE", "/mail/faults")

    async def _strike(self) -> None:
        mail = self.dice.random() < 0.3
        path = "/mail/faults" if mail else "/faults"
        fault = _chosen(self.dice, MAIL if mail else TELEGRAM)
        if fault["kind"] == "delay":
            fault["seconds"] = round(self.dice.uniform(0.1, 1.0), 2)
        body = {"server": "smtp", **fault} if mail else {"method": "sendMessage", **fault}
        try:
            if len((await self.rig.control("GET", path))["faults"]) >= MOST_WAITING:
                return  # nobody calls at present; a heap of faults would be an outage
            await self.rig.control("POST", path, body)
        except (httpx2.ConnectError, httpx2.TimeoutException):
            return
        self.faults += 1


def _chosen(dice: random.Random, table: tuple[tuple[int, Fault], ...]) -> Fault:
    [fault] = dice.choices([fault for _, fault in table], weights=[weight for weight, _ in table])
    return dict(fault)


async def cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
