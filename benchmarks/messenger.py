"""What does Messenger cost? The same durable messages, three ways, side by side in one run on one database.

    bare            insert, claim, complete: a transaction each, and nothing else
    messenger       from `route.execute` to the receipt, the provider answering at once, budgets lifted
    procrastinate   defer and run a task that does nothing

The ways take turns; the figures are medians over the rounds. The database is durable (fsync and synchronous_commit on),
each way has the same number of submitters, workers and connections. Prints one JSON line; the exit code is 1 when a
goal is missed. `--quick` is for trying it out and judges nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.delivery import fairness, memory
from benchmarks.delivery.bare import BareLoop
from benchmarks.delivery.load import closed_loop
from benchmarks.delivery.plane import running_plane
from butlers.clock import SystemClock
from butlers.storage.database import Database, create_database_if_missing
from butlers.storage.embedded import EmbeddedPostgres

VS_BARE, VS_PROCRASTINATE = 0.5, 3.0
PEER = "procrastinate"
Way = Callable[[], Awaitable[float]]  # seconds for one round


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    messages: int
    rounds: int
    submitters: int
    workers: int
    pool: int
    fairness_s: float
    recipients: int
    peer_python: str


async def run(size: Size) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="butlers-bench-") as folder:
        server = EmbeddedPostgres(Path(folder))
        await asyncio.to_thread(server.start)
        try:
            return await _measure(size, server, Path(folder))
        finally:
            await asyncio.to_thread(server.stop)


async def _measure(size: Size, server: EmbeddedPostgres, folder: Path) -> dict[str, Any]:
    clock = SystemClock()
    for name in ("bare", "butlers", "memory", PEER):
        await create_database_if_missing(server.uri(""), name)
    durable = await _durability(server)
    async with (
        _bare(size, server) as bare,
        running_plane(folder / "plane", server.uri("butlers"), workers=size.workers, pool=size.pool) as plane,
    ):
        numbers = count()

        async def messenger() -> float:
            mine = (next(numbers) for _ in range(size.messages))
            return await closed_loop(plane.submit, mine, submitters=size.submitters, clock=clock)

        async def bare_round() -> float:
            return await closed_loop(bare.submit, range(size.messages), submitters=size.submitters, clock=clock)

        async def peer() -> float:
            return await _peer(size, server)

        rates = await _rounds(size, {"bare": bare_round, "messenger": messenger, PEER: peer})
        report = {"rates": rates, "durability": durable, "submitters": size.submitters, "workers": size.workers}
        _say("fairness")
        capacity = rates["messenger"] or 1.0
        fair = await fairness.measure_fairness(plane, capacity=capacity, seconds=size.fairness_s, seed=1, clock=clock)
    return report | {"fairness": fair, "memory": await _memory(size, server)}


async def _memory(size: Size, server: EmbeddedPostgres) -> dict[str, Any]:
    _say(f"memory: {size.recipients} recipients")
    async with await Database.connect(server.uri("memory"), max_size=2) as database:
        return await memory.measure_memory(database, recipients=size.recipients, clock=SystemClock())


@asynccontextmanager
async def _bare(size: Size, server: EmbeddedPostgres) -> AsyncIterator[BareLoop]:
    async with await Database.connect(server.uri("bare"), max_size=size.pool) as database:
        loop = BareLoop(database, workers=size.workers)
        await loop.start()
        yield loop
        await loop.stop()


async def _durability(server: EmbeddedPostgres) -> dict[str, str]:
    async with await Database.connect(server.uri("bare"), max_size=1) as database:
        return {name: await database.fetchval(f"SHOW {name}") for name in ("fsync", "synchronous_commit")}


async def _peer(size: Size, server: EmbeddedPostgres) -> float:
    numbers = (size.messages, size.submitters, size.workers, size.pool)
    process = await asyncio.create_subprocess_exec(
        size.peer_python,
        "-c",
        "from benchmarks.delivery.peer import main; main()",
        server.uri(PEER),
        *map(str, numbers),
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    if process.returncode:
        raise SystemExit(f"{PEER} could not be measured; is it installed for {size.peer_python}?")
    seconds: float = json.loads(output)["seconds"]
    return seconds


async def _rounds(size: Size, ways: dict[str, Way]) -> dict[str, float]:
    """Messages per second, the median of each way; the first round warms up and is not counted."""
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(size.rounds + 1):
        for name, way in ways.items():
            rate = size.messages / await way()
            _say(f"round {number}: {name} {rate:.0f}/s" + (" (warm-up)" if not number else ""))
            if number:
                rates[name].append(rate)
    return {name: round(statistics.median(found), 1) for name, found in rates.items()}


def _judge(report: dict[str, Any]) -> dict[str, Any]:
    rates = report["rates"]
    vs_bare = round(rates["messenger"] / rates["bare"], 2)
    vs_peer = round(rates["messenger"] / rates[PEER], 2)
    ratio = report["fairness"]["ratio"]
    goals = {
        "vs_bare": vs_bare >= VS_BARE,
        "vs_procrastinate": vs_peer >= VS_PROCRASTINATE,
        "fairness": ratio is not None and ratio < fairness.GOAL,
        "memory": report["memory"]["growth_mb"] < memory.GOAL_MB,
    }
    ratios = {"vs_bare": vs_bare, "vs_procrastinate": vs_peer}
    return {"bench": "messenger", **ratios, **report, "goals": goals, "passed": all(goals.values())}


def _say(words: str) -> None:
    print(f"bench: {words}", file=sys.stderr, flush=True)


def _size() -> tuple[Size, bool]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=3_000, help="in one round of one way")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--submitters", type=int, default=100)
    parser.add_argument("--workers", type=int, default=100, help="one for each submitter: no limit but the machine's")
    parser.add_argument("--pool", type=int, default=20, help="connections of each way")
    parser.add_argument("--fairness-s", type=float, default=40.0)
    parser.add_argument("--recipients", type=int, default=1_000_000)
    parser.add_argument("--peer-python", default=sys.executable, help="a Python that has procrastinate")
    parser.add_argument("--quick", action="store_true")
    given = vars(parser.parse_args())
    quick = given.pop("quick")
    if quick:
        given |= {"messages": 500, "rounds": 2, "fairness_s": 8.0, "recipients": 20_000}
    return Size(**given), quick


def main() -> int:
    size, quick = _size()
    report = _judge(uvloop.run(run(size)))  # the loop that `butlers` runs on
    print(json.dumps(report | {"quick": quick}), flush=True)
    return 0 if report["passed"] or quick else 1


if __name__ == "__main__":
    sys.exit(main())
