"""Hostile messages through the simulators, while `/healthz` of every door is asked without a pause.

    butlers up (killed with kill -9 and started again)  <--- Telegram and mail simulators <--- hostile texts and mails
         ^
         '--- a process of its own: GET /healthz of every door in turn, without a pause; the slowest answer is judged

Goals: every answer within 200 ms, before the kill and after the restart; every message comes to an end (mail that
cannot be taken apart is quarantined); and a harmless message is answered at the end.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

from benchmarks.chaos.assessment import percentile
from benchmarks.chaos.hostile_messages import as_mail, hostile_mails, hostile_texts
from benchmarks.chaos.report import Plan, say
from butlers.butler.identity import OPERATOR, TokenFile
from butlers.butler.transport import McpTransport
from butlers.channels.email import OWNER_ADDRESS, SIMULATED_ADDRESS
from butlers.channels.telegram import OWNER_CHAT
from butlers.clock import Clock, SystemClock
from butlers.daemon.demo.instance import Instance
from butlers.daemon.places import Places
from butlers.errors import ButlersError

GOAL_MS = 200.0
LONGEST_LINE = 64 * 1024 * 1024  # bytes of what the poller found
IDLE, IDLE_S = "idle", 10.0
END_S = 300.0  # after which everything handed in must have ended
DOORS = ("switchboard", "messenger", "general", "finance", "health", "relationship", "travel")
HARMLESS = "I paid the electricity bill"


async def run(plan: Plan, folder: Path) -> dict[str, Any]:
    clock = SystemClock()
    began = clock.monotonic()
    settings = {"spark_master": "none"} | dict(setting.split("=", 1) for setting in plan.settings)
    instance = Instance(folder / "data", clock=clock, settings=settings)
    try:
        await instance.start()
        doors = _Doors([instance.url(name) for name in DOORS])
        attack = _Attack(instance=instance, clock=clock, folder=folder / "data")
        async with doors.watched(IDLE):  # what the machine itself takes
            await clock.sleep(IDLE_S)
        async with doors.watched("before the kill"):
            await attack.all_of_it()
        for number in range(plan.kills):
            say(f"kill {number + 1}/{plan.kills}: the same messages once more, then kill -9 in the middle")
            await attack.begin()
            await instance.kill()
            await instance.start()
            async with doors.watched("after the kill"):
                await attack.until_ended()
        async with doors.watched("at the end"):
            answered = await attack.is_served()
        quarantined = await attack.quarantined()
    finally:
        await instance.close()
    spent = clock.monotonic() - began
    return _report(plan, doors, attack, answered=answered, quarantined=quarantined, duration_s=spent)


@dataclass(slots=True)
class _Doors:
    """Asks every door how it is, from a process of its own, and notes how long each answer took."""

    urls: Sequence[str]
    took_ms: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    failed: int = 0

    @asynccontextmanager
    async def watched(self, phase: str) -> AsyncIterator[None]:
        pipe, module = asyncio.subprocess.PIPE, "benchmarks.chaos.hostile_poll"
        poller = await asyncio.create_subprocess_exec(
            sys.executable, "-m", module, *self.urls, stdin=pipe, stdout=pipe, limit=LONGEST_LINE
        )
        try:
            yield
        finally:
            output, _ = await poller.communicate(b"")
        found = json.loads(output)
        self.took_ms[phase] += found["took_ms"]
        self.failed += found["failed"]
        say(f"{phase}: {len(found['took_ms'])} answers, slowest {max(found['took_ms'], default=0):.1f} ms")


@dataclass(slots=True, kw_only=True)
class _Attack:
    instance: Instance
    clock: Clock
    folder: Path
    texts: int = 0
    mails: int = 0
    counts: dict[str, int] = field(default_factory=lambda: defaultdict(int))  # what became of the mails
    _reading: asyncio.Task[None] | None = None

    async def all_of_it(self) -> None:
        await self.begin()
        await self.until_ended()

    async def begin(self) -> None:
        """Everything is in the simulators' hands, and Messenger begins to read the mailbox."""
        async with httpx2.AsyncClient(timeout=120, trust_env=False) as http:
            for body in hostile_mails():
                self.mails += 1
                await self._mail(
                    http, as_mail(body, number=self.mails, sender=OWNER_ADDRESS, recipient=SIMULATED_ADDRESS)
                )
            for text in hostile_texts():
                self.texts += 1
                await self.instance.say(int(OWNER_CHAT), text)
        self._reading = asyncio.create_task(self._read_mailbox())

    async def until_ended(self) -> None:
        if self._reading is not None:
            await self._reading
        await self._read_mailbox()
        deadline = self.clock.monotonic() + END_S
        while self.clock.monotonic() < deadline:
            counts = await self.instance.counts()
            if not counts.get("accepted", 0) + counts.get("progress", 0):
                return
            await self.clock.sleep(0.5)
        raise ButlersError(f"not everything ended within {END_S:g} s: {await self.instance.counts()}")

    async def is_served(self) -> bool:
        """Whether a harmless message is answered after all that."""
        await self.instance.say(int(OWNER_CHAT), HARMLESS)

        async def answered() -> bool:
            return any(HARMLESS in text for text in await self.instance.bot_messages(OWNER_CHAT))

        return bool(await self.instance.until("an answer to a harmless message", answered, timeout_s=120))

    async def quarantined(self) -> list[str]:
        answer = await self.instance.get("switchboard", "/api/mailbox/quarantine", limit=500)
        return [mail["reason"] for mail in answer["mails"]]

    async def _mail(self, http: httpx2.AsyncClient, raw: bytes) -> None:
        address = f"{self.instance.url('telegram_simulator')}/control/mail/messages/raw"
        parameters = {"to": SIMULATED_ADDRESS, "from": OWNER_ADDRESS}
        headers = {"Content-Type": "message/rfc822"}
        response = await http.post(address, params=parameters, content=raw, headers=headers)
        response.raise_for_status()

    async def _read_mailbox(self) -> None:
        """The tool that hands new mail in, as an operator; again until nothing is left."""
        secret = TokenFile(Places(self.folder).tokens, self.clock).secret_of(OPERATOR)
        transport = McpTransport(token=lambda: secret, url_of=lambda name: f"{self.instance.url(name)}/mcp")
        try:
            while any((counts := await transport.call("messenger", "email_check_and_route_inbox", {})).values()):
                for name, number in counts.items():
                    self.counts[name] += number
        except ButlersError as error:  # it was killed, or a batch took longer than a call may
            say(f"reading the mailbox: {error}")
        finally:
            await transport.close()


def _report(
    plan: Plan, doors: _Doors, attack: _Attack, *, answered: bool, quarantined: Sequence[str], duration_s: float
) -> dict[str, Any]:
    phases = {
        phase: {
            "answers": len(times),
            "p50_ms": round(percentile(times, 0.5) or 0.0, 1),
            "p99_ms": round(percentile(times, 0.99) or 0.0, 1),
            "slowest_ms": round(max(times), 1),
        }
        for phase, times in doors.took_ms.items()
    }
    goals = {
        "slowest_ms": all(phase["slowest_ms"] <= GOAL_MS for name, phase in phases.items() if name != IDLE),
        "always_healthy": doors.failed == 0,
        "served_afterwards": answered,
    }
    return {
        "chaos": "hostile",
        "kills": plan.kills,
        "texts": attack.texts,
        "mails": attack.mails,
        "mails_by_outcome": dict(attack.counts),
        "quarantined": sorted(quarantined),
        "healthz": phases,
        "failed_answers": doors.failed,
        "duration_s": round(duration_s, 1),
        "goals": goals,
        "passed": all(goals.values()),
    }
