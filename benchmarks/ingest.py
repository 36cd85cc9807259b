"""What does durability cost at the door? The same messages over HTTP, side by side in one run on one database.

    noop      the same server, application, authentication, parsing and checks; answers 202 and stores nothing
    door      the real door: deduplicated and on disk before the 202
    bare      batched inserts of the same rows by one connection, without HTTP, deduplication or answers

The ways take turns; the figures are medians over the rounds. The database is durable (fsync and synchronous_commit on).
The load comes from a process of its own over keep-alive connections. The buffer's workers are held: accepting is what
is measured, and what is accepted waits in the inbox; `with_workers` is the same door while they run and every message
is tried. Prints one JSON line; the exit code is 1 when a goal is missed. `--quick` is for trying it out and judges
nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.ingress.bare import BareInserts
from benchmarks.ingress.door import Door, open_door
from benchmarks.ingress.load import Load, Measured
from butlers.storage.database import Database, create_database_if_missing
from butlers.storage.embedded import EmbeddedPostgres

VS_NOOP = 0.6
Way = Callable[[], Awaitable[Measured]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    messages: int
    rounds: int
    connections: int
    pool: int


async def run(size: Size) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="butlers-bench-") as folder:
        server = EmbeddedPostgres(Path(folder))
        await asyncio.to_thread(server.start)
        try:
            held = await _held(size, server, Path(folder))
            return held | {"with_workers": await _with_workers(size, server, Path(folder))}
        finally:
            await asyncio.to_thread(server.stop)


async def _held(size: Size, server: EmbeddedPostgres, folder: Path) -> dict[str, Any]:
    dsn = await _database(server, "held")
    async with (
        open_door(folder / "held", dsn, workers_held=True, pool=size.pool) as door,
        await Database.connect(dsn, max_size=2) as database,
    ):
        bare = BareInserts(database)
        await bare.prepare()
        ways: dict[str, Way] = {
            "noop": lambda: _hand_in(size, door, door.noop),
            "door": lambda: _hand_in(size, door, door.real),
            "bare": lambda: _bare(size, bare),
        }
        measured = await _rounds(size, ways)
        stored = await database.fetchval("SELECT count(*) FROM switchboard.message_inbox")
        expected = size.messages * (size.rounds + 1)
        if stored != expected:
            raise SystemExit(f"{stored} messages are stored and {expected} were accepted")
        durable = {name: await database.fetchval(f"SHOW {name}") for name in ("fsync", "synchronous_commit")}
    return measured | {"stored": stored, "durability": durable}


async def _with_workers(size: Size, server: EmbeddedPostgres, folder: Path) -> dict[str, Any]:
    dsn = await _database(server, "working")
    async with open_door(folder / "working", dsn, workers_held=False, pool=size.pool) as door:
        measured = await _rounds(
            size,
            {"noop": lambda: _hand_in(size, door, door.noop), "door": lambda: _hand_in(size, door, door.real)},
        )
    return measured | {"vs_noop": _ratio(measured["rates"], "noop")}


async def _database(server: EmbeddedPostgres, name: str) -> str:
    await create_database_if_missing(server.uri(""), name)
    return server.uri(name)


async def _bare(size: Size, bare: BareInserts) -> Measured:
    return Measured(seconds=await bare.run(size.messages), p50_ms=0.0, p99_ms=0.0)


async def _hand_in(size: Size, door: Door, path: str) -> Measured:
    load = Load(port=door.port, path=path, token=door.token, connections=size.connections, messages=size.messages)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "benchmarks.ingress.load",
        json.dumps(asdict(load)),
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    if process.returncode:
        raise SystemExit("the messages could not be handed in")
    return Measured(**json.loads(output))


async def _rounds(size: Size, ways: Mapping[str, Way]) -> dict[str, Any]:
    """Medians of each way; the first round warms up and is not counted."""
    found: dict[str, list[Measured]] = {name: [] for name in ways}
    for number in range(size.rounds + 1):
        for name, way in ways.items():
            measured = await way()
            _say(f"round {number}: {name} {size.messages / measured.seconds:.0f}/s p99 {measured.p99_ms} ms")
            if number:
                found[name].append(measured)
    door = found["door"]
    return {
        "rates": {name: round(size.messages / _middle(m.seconds for m in some), 1) for name, some in found.items()},
        "accept_p50_ms": _middle(m.p50_ms for m in door),
        "accept_p99_ms": _middle(m.p99_ms for m in door),
        "noop_p99_ms": _middle(m.p99_ms for m in found["noop"]),
    }


def _middle(values: Iterable[float]) -> float:
    return statistics.median(values)


def _ratio(rates: Mapping[str, float], other: str) -> float:
    return round(rates["door"] / rates[other], 2)


def _judge(report: dict[str, Any]) -> dict[str, Any]:
    vs_noop = _ratio(report["rates"], "noop")
    goals = {"vs_noop": vs_noop >= VS_NOOP}
    ratios = {"vs_noop": vs_noop, "vs_bare_insert": _ratio(report["rates"], "bare")}
    return {"bench": "ingest", **ratios, **report, "goals": goals, "passed": all(goals.values())}


def _say(words: str) -> None:
    print(f"bench: {words}", file=sys.stderr, flush=True)


def _size() -> tuple[Size, bool]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=10_000, help="in one round of one way")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--connections", type=int, default=200)
    parser.add_argument("--pool", type=int, default=20, help="database connections of the server")
    parser.add_argument("--quick", action="store_true")
    given = vars(parser.parse_args())
    quick = given.pop("quick")
    if quick:
        given |= {"messages": 2_000, "rounds": 2}
    return Size(**given), quick


def main() -> int:
    size, quick = _size()
    report = _judge(uvloop.run(run(size)))  # the loop that `butlers` runs on
    print(json.dumps(report | {"quick": quick}), flush=True)
    return 0 if report["passed"] or quick else 1


if __name__ == "__main__":
    sys.exit(main())
