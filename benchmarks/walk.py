"""The way of one Telegram message through the code, from the poll that finds it to the end of its request.

    scripts/walk            task by task, every function and SQL statement at its first time, in order
    scripts/walk --json     the same as JSON; the last line holds the counts

A whole system runs in this process, beside the simulator and with its periodic work put off. What it still does while
nothing happens is seen first and left out: a function counts when the message made some task call it.
`package_switches` counts how often two functions that follow each other in a task belong to different packages
(`switchboard`, `messenger`, `storage`, ...: the folders directly below `src/butlers`).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import asyncpg
import httpx2

import butlers
from butlers.channels.telegram import OWNER_CHAT
from butlers.channels.telegram.simulator import TelegramSimulator, serve_telegram
from butlers.clock import SystemClock
from butlers.daemon.demo.instance import PortRange
from butlers.daemon.places import Places
from butlers.daemon.settings import Settings, shipped_roster
from butlers.daemon.simulation import Simulated, simulated_environment, simulated_settings
from butlers.daemon.system import System
from butlers.ids import Uuid7Factory
from butlers.roster import load_roster
from butlers.storage.embedded import EmbeddedPostgres

ROOT = Path(butlers.__file__).parent
TEXT = "I paid the baker 12,50 euros"
# Longer than the longest pause of a periodic loop, so that what the message did not cause is seen while idle.
IDLE_S, DEADLINE_S, NEVER_S = 7.0, 60.0, 1e6
SETTLE_S = 2.0  # after the answer, its request and its delivery come to their end
# The simulators, and what every line uses.
SIMULATORS = ("simulators/", "channels/telegram/simulator/")
OUTSIDE = (*SIMULATORS, "serving/", "telemetry/", "clock.py", "ids.py")
CONTROL = ("BEGIN", "COMMIT", "ROLLBACK", "SAVEPOINT", "RELEASE", "START")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One call of a function, or one SQL statement."""

    kind: str  # function or sql
    task: str
    name: str  # module:function, or the statement's first words
    file: str = ""

    @property
    def package(self) -> str:
        return self.file.partition("/")[0]


@dataclass(slots=True)
class Recorder:
    """Sees the calls of functions below `src/butlers`, and what is said to the database."""

    steps: list[Step] = field(default_factory=list)
    on: bool = False

    def profile(self, frame: FrameType, event: str, _argument: Any) -> None:
        code = frame.f_code
        if event != "call" or not self.on or not code.co_filename.startswith(str(ROOT)):
            return
        file = str(Path(code.co_filename).relative_to(ROOT))
        if not file.startswith(OUTSIDE) and not code.co_name.startswith("<") and not _called_by_simulator(frame):
            name = f"{file.removesuffix('.py').replace('/', '.')}:{code.co_qualname}"
            self.steps.append(Step(kind="function", task=_task(), name=name, file=file))

    def queried(self, query: Any) -> None:
        text = " ".join(line.partition("--")[0] for line in query.query.splitlines())
        words = " ".join(text.split())
        if self.on and not words.upper().startswith(CONTROL):
            self.steps.append(Step(kind="sql", task=_task(), name=words[:100]))

    @contextmanager
    def recording(self) -> Iterator[list[Step]]:
        self.steps, self.on = [], True
        sys.setprofile(self.profile)
        try:
            yield self.steps
        finally:
            sys.setprofile(None)
            self.on = False


def _called_by_simulator(frame: FrameType) -> bool:
    """A simulator uses some functions of the system itself; that is no part of the message's way."""
    simulators = tuple(f"{ROOT}/{folder}" for folder in SIMULATORS)
    caller = frame.f_back
    while caller is not None:
        if caller.f_code.co_filename.startswith(simulators):
            return True
        caller = caller.f_back
    return False


def _task() -> str:
    try:
        task = asyncio.current_task()
    except RuntimeError:  # another thread
        return "thread"
    return task.get_name() if task is not None else "loop"


@contextmanager
def _queries_seen(recorder: Recorder) -> Iterator[None]:
    """Every connection that is opened meanwhile tells the recorder what it is asked."""
    init = asyncpg.Connection.__init__

    def observed(self: Any, *arguments: Any, **named: Any) -> None:
        init(self, *arguments, **named)
        self.add_query_logger(recorder.queried)

    asyncpg.Connection.__init__ = observed  # type: ignore[method-assign]
    try:
        yield
    finally:
        asyncpg.Connection.__init__ = init  # type: ignore[method-assign]


async def walk(folder: Path) -> list[Step]:
    recorder, clock = Recorder(), SystemClock()
    async with AsyncExitStack() as stack:
        stack.enter_context(_queries_seen(recorder))
        telegram = await stack.enter_async_context(serve_telegram(port=0, clock=clock))
        system = await _system(stack, folder, telegram)
        await system.start()
        stack.push_async_callback(system.stop)
        await _answered(telegram, TEXT)  # the first message also loads and connects
        await asyncio.sleep(SETTLE_S)
        with recorder.recording() as idle:
            await asyncio.sleep(IDLE_S)
        with recorder.recording() as steps:
            await _answered(telegram, TEXT + " again")
            await asyncio.sleep(SETTLE_S)
    usual = {(step.task, step.name) for step in idle}
    return [step for step in steps if (step.task, step.name) not in usual]


async def _system(stack: AsyncExitStack, folder: Path, telegram: TelegramSimulator) -> System:
    clock, roster, simulated = SystemClock(), load_roster(shipped_roster()), Simulated({"telegram", "mail"})
    for name, config in roster.items():
        without_jobs = {"butler": config.butler.model_copy(update={"schedule": []})}
        buffer = {"buffer": config.buffer.model_copy(update={"scanner_interval_s": NEVER_S})}
        roster[name] = config.model_copy(update=without_jobs | buffer)
    server = EmbeddedPostgres(folder / "postgres", durable=False)
    await asyncio.to_thread(server.start)
    stack.push_async_callback(asyncio.to_thread, server.stop)
    places = Places(folder / "data")
    places.create()
    offset = PortRange([config.butler.port for config in roster.values()])
    stack.callback(offset.give_back)
    ports = {name: config.butler.port + offset.offset for name, config in roster.items()}
    ports["telegram_simulator"] = telegram.port
    seldom = {"heartbeat_s": NEVER_S, "connector_heartbeat_s": 300.0, "bounce_poll_s": NEVER_S, "provider_probe_s": 0.0}
    seldom["lease_ttl_s"] = NEVER_S  # the buffer's scanner looks once more when the leases of a dead process are over
    given = {"data_dir": places.root, "database_url": server.uri(), "ports": ports, "spark_master": "none"}
    settings = simulated_settings(Settings(**given, **seldom), simulated)
    names = [name for name in roster if name in {"switchboard", "messenger", "general", "finance"}]
    environment = simulated_environment(simulated, roster, {})
    return System(
        settings=settings, roster=roster, names=names, environment=environment, clock=clock, new_id=Uuid7Factory(clock)
    )


async def _answered(telegram: TelegramSimulator, text: str) -> None:
    """Write to the bot as the owner, and wait for its answer."""
    control = f"{telegram.base_url}/control"
    async with httpx2.AsyncClient(timeout=DEADLINE_S, trust_env=False) as client, asyncio.timeout(DEADLINE_S):

        async def lines() -> int:
            return len((await client.get(f"{control}/chats/{OWNER_CHAT}/transcript")).json()["messages"])

        body = {
            "chat_id": int(OWNER_CHAT),
            "from": {"id": int(OWNER_CHAT), "first_name": "Ann"},
            "text": text,
        }
        (await client.post(f"{control}/messages", json=body)).raise_for_status()
        before = await lines()
        while await lines() == before:  # noqa: ASYNC110 - the simulator has no event for it
            await asyncio.sleep(0.05)


def first_steps(steps: list[Step]) -> dict[str, list[Step]]:
    """By task, in the order in which the message reached them: each function and each statement at its first time."""
    firsts: dict[str, Step] = {}
    for step in steps:
        firsts.setdefault(step.name, step)
    tasks: dict[str, list[Step]] = {}
    for step in firsts.values():
        tasks.setdefault(step.task, []).append(step)
    return tasks


def counts(tasks: dict[str, list[Step]]) -> dict[str, int]:
    calls = [[step for step in steps if step.kind == "function"] for steps in tasks.values()]
    functions = [step for steps in calls for step in steps]
    return {
        "files": len({step.file for step in functions}),
        "functions": len(functions),
        "package_switches": sum(one.package != other.package for steps in calls for one, other in pairwise(steps)),
        "sql_statements": sum(step.kind == "sql" for steps in tasks.values() for step in steps),
    }


def told(tasks: dict[str, list[Step]]) -> Iterator[str]:
    for task, steps in tasks.items():
        yield f"== {task}"
        package = ""
        for step in steps:
            if step.kind == "function" and step.package != package:
                package = step.package
                yield f"{package or 'butlers'}/"
            yield f"    {step.name}" if step.kind == "function" else f"        SQL  {step.name}"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="scripts/walk", description="The way of one Telegram message through the code."
    )
    parser.add_argument("--json", action="store_true", help="print steps and counts as JSON, one object a line")
    given = parser.parse_args()
    print("walk: starting a system ...", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="butlers-walk-") as folder:
        tasks = first_steps(asyncio.run(walk(Path(folder))))
    if given.json:
        for step in (step for steps in tasks.values() for step in steps):
            print(json.dumps({"task": step.task, "kind": step.kind, "name": step.name, "file": step.file}))
        print(json.dumps(counts(tasks)))
        return
    for line in told(tasks):
        print(line)
    print(", ".join(f"{number} {name.replace('_', ' ')}" for name, number in counts(tasks).items()))


if __name__ == "__main__":
    main()
