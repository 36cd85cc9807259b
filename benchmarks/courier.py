"""How quick is the courier? Its core in process, and its gateway beside three brokers, in one run on one machine.

    core        `QueueCore` in this process: cycles of enqueue, deliver, ack, grant
    gateway     `butlers courier serve`, by WebSocket
    redis       Redis Streams with a consumer group
    nats        NATS JetStream, in memory
    rabbitmq    RabbitMQ, a classic queue in memory, publisher confirms

Every server is a process of its own on the loopback, everything in memory; one load process at a time has one producer
and one consumer, with the usual Python client of the server, on uvloop. Same envelope, same JSON functions, a prefetch
of 100, every message acked, and the acks counted at the server after each round. See `streams.load` for the modes. The
ways take turns; the figures are medians over the rounds, after one of warm-up. `vs_*` is gateway over peer in the
mode where the gateway does worse.

Prints one JSON line; the exit code is 1 when a goal is missed. A peer that is not installed is named under `skipped`
and judged by nothing. `--quick` is for trying it out and judges nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import uvloop

from benchmarks.streams.core import cycles_per_second, fairness
from benchmarks.streams.load import Load, Measured
from benchmarks.streams.peer import WAYS, Unavailable, peer

CORE_CYCLES, VS_PEER, P95_MS, FAIRNESS = 100_000, 1.0, 5.0, 2.0
OURS = "gateway"
MODES: tuple[Literal["confirmed", "windowed"], ...] = ("confirmed", "windowed")
Ports = Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    ways: tuple[str, ...]
    confirmed: int
    windowed: int
    rounds: int
    warm_ups: int
    cycles: int
    rate: float
    paced_s: float
    subscribers: int


async def run(size: Size) -> dict[str, Any]:
    core = statistics.median(cycles_per_second(size.cycles) for _ in range(size.rounds))
    _say(f"core {core:.0f} cycles/s")
    spread = fairness(size.subscribers)
    _say(f"fairness of {size.subscribers} subscribers: most over least {spread}")
    async with _servers(size) as (ports, skipped):
        rates: dict[str, Any] = {mode: await _rounds(size, ports, mode) for mode in MODES}
        latency = await _latencies(size, ports)
    return {
        "core_cycles": round(core),
        "fairness": spread,
        **rates,
        "latency": latency,
        "skipped": skipped,
        "clients": _clients(),
    }


@asynccontextmanager
async def _servers(size: Size) -> AsyncIterator[tuple[Ports, dict[str, str]]]:
    """The servers that are there, by name, and why the others are not."""
    ports: dict[str, int] = {}
    skipped: dict[str, str] = {}
    async with AsyncExitStack() as stack:
        folder = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="butlers-bench-", ignore_cleanup_errors=True))
        )
        for name in size.ways:
            (folder / name).mkdir()
            _say(f"starting {name}")
            try:
                ports[name] = await stack.enter_async_context(peer(name).serving(folder / name))
            except Unavailable as reason:
                skipped[name] = str(reason)
                _say(f"skipped {name}: {reason}")
        yield ports, skipped


async def _rounds(size: Size, ports: Ports, mode: Literal["confirmed", "windowed"]) -> dict[str, float]:
    """Messages a second, the median of each way."""
    found: dict[str, list[float]] = {way: [] for way in ports}
    for number in range(1 - size.warm_ups, size.rounds + 1):
        for way in _turns(list(ports), number):
            count: int = getattr(size, mode)
            measured = await _load(Load(way=way, port=ports[way], mode=mode, messages=count))
            _say(f"{mode} {number}: {way} {measured.rate:.0f}/s" + (" (warm-up)" if number < 1 else ""))
            if number > 0:
                found[way].append(measured.rate)
    return {way: round(statistics.median(rates), 1) for way, rates in found.items()}


def _turns(ways: Sequence[str], number: int) -> list[str]:
    """Another way begins each round."""
    first = number % len(ways)
    return [*ways[first:], *ways[:first]]


async def _latencies(size: Size, ports: Ports) -> dict[str, dict[str, float]]:
    """Of an open loop at a fixed rate, in milliseconds: from the moment of the schedule to the receipt."""
    found: dict[str, list[Measured]] = {way: [] for way in ports}
    for number in range(max(1, size.rounds // 2)):
        for way in _turns(list(ports), number):
            count = round(size.rate * size.paced_s)
            measured = await _load(Load(way=way, port=ports[way], mode="paced", messages=count, rate=size.rate))
            _say(f"latency {number + 1} at {size.rate:.0f}/s: {way} p50 {measured.p50_ms} p95 {measured.p95_ms} ms")
            found[way].append(measured)
    return {way: {name: _middle(some, name) for name in ("p50_ms", "p95_ms", "p99_ms")} for way, some in found.items()}


def _middle(measured: Sequence[Measured], name: str) -> float:
    values: list[float] = [getattr(one, name) for one in measured]
    return round(statistics.median(values), 3)


async def _load(load: Load) -> Measured:
    words = ("-m", "benchmarks.streams.load", json.dumps(asdict(load)))
    process = await asyncio.create_subprocess_exec(sys.executable, *words, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    if process.returncode:
        raise SystemExit(f"{load.way} could not be measured ({load.mode})")
    return Measured(**json.loads(output))


def _clients() -> dict[str, str | None]:
    """What was measured with; redis reads its answers in C where hiredis is installed."""
    names = ("websockets", "redis", "hiredis", "nats-py", "aio-pika", "uvloop")
    return {name: next((one.version for one in metadata.distributions(name=name)), None) for name in names}


def _ratios(report: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Gateway over peer, by mode."""
    return {
        mode: {way: round(report[mode][OURS] / rate, 2) for way, rate in report[mode].items() if way != OURS}
        for mode in MODES
    }


def _judge(report: dict[str, Any], ways: Sequence[str]) -> dict[str, Any]:
    ratios = _ratios(report)
    worse = {
        f"vs_{way}": min((ratios[mode][way] for mode in MODES if way in ratios[mode]), default=None)
        for way in ways
        if way != OURS
    }
    p95: float = report["latency"][OURS]["p95_ms"]
    goals = {
        "core_cycles": report["core_cycles"] >= CORE_CYCLES,
        **{name: value > VS_PEER for name, value in worse.items() if value is not None},
        "p95_ms": p95 < P95_MS,
        "fairness": report["fairness"] <= FAIRNESS,
    }
    first = {"bench": "courier", "core_cycles": report["core_cycles"], **worse, "p95_ms": p95}
    return {**first, "ratios": ratios, **report, "goals": goals, "passed": all(goals.values())}


def _say(words: str) -> None:
    print(f"bench: {words}", file=sys.stderr, flush=True)


def _size() -> tuple[Size, bool]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ways", default=",".join(WAYS), help="servers to measure; the gateway is always one")
    parser.add_argument("--confirmed", type=int, default=1_500, help="messages of a round, each confirmed")
    parser.add_argument("--windowed", type=int, default=6_000, help="messages of a round, 100 unconfirmed")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--warm-ups", type=int, default=1, help="rounds that are not counted")
    parser.add_argument("--cycles", type=int, default=200_000, help="of the core in one round")
    parser.add_argument("--rate", type=float, default=500.0, help="messages a second while latencies are measured")
    parser.add_argument("--paced-s", type=float, default=1.5, help="of each round while latencies are measured")
    parser.add_argument("--subscribers", type=int, default=1_000)
    parser.add_argument("--quick", action="store_true")
    given = vars(parser.parse_args())
    if quick := given.pop("quick"):
        given |= {"confirmed": 300, "windowed": 1_000, "rounds": 1, "warm_ups": 0, "cycles": 20_000, "paced_s": 0.5}
    others = [way for way in given.pop("ways").split(",") if way != OURS]
    if unknown := set(others) - set(WAYS):
        parser.error(f"there is no way {', '.join(sorted(unknown))}; there are: {', '.join(WAYS)}")
    return Size(ways=(OURS, *others), **given), quick


def main() -> int:
    size, quick = _size()
    report = _judge(uvloop.run(run(size)), size.ways)
    print(json.dumps(report | {"quick": quick}), flush=True)
    return 0 if report["passed"] or quick else 1


if __name__ == "__main__":
    sys.exit(main())
