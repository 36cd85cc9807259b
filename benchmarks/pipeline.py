"""What does the hourly rollup cost on Spark? The same heartbeats four ways, side by side in one run.

    rollup    ours: sums of what heartbeats added, over Parquet files of the lake
    bare      a scan of the same files and a group-by with the same groups and as many sums: the least there is to do
    duckdb    the rollup in SQL, over the same files
    postgres  the same statement, over a table of the embedded PostgreSQL (loading is not counted)

The ways take turns; figures are medians over the rounds, after one round of all of them that warms up. DuckDB and
PostgreSQL, of which no goal speaks, have one turn each. The rollup also runs over a tenth of the rows, for how its time
grows. Beside the time that passes stands the processor time of Java and its Python workers, which says more on a
machine that has other things to do. The ways' results are compared. Prints one JSON line; the exit code is 1 when a
goal is missed. `--quick` is for trying it out and judges nothing.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from benchmarks.rollup.memory import Peak, watching
from benchmarks.rollup.on_spark import carry_out, roll_up, scan_and_group, totals
from benchmarks.rollup.peers import DuckDb, InPostgres
from benchmarks.rollup.processor import processor_seconds
from butlers.clock import SystemClock
from butlers.pipeline.generate import USUAL_BEATS_A_DAY, FleetPlan, write_lake
from butlers.pipeline.lake.events import HEARTBEATS
from butlers.pipeline.lake.log import LakeLog
from butlers.pipeline.session import SessionSettings, spark_session
from butlers.storage.embedded import EmbeddedPostgres

VS_BARE, GROWTH = 1.2, 1.0
LARGE = 50_000_000
DAYS = 7
START = date(2026, 3, 26)  # summer time begins within
SHUFFLE_PARTITIONS = 64  # where adaptive execution starts from
Way = Callable[[], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    rows: int
    rounds: int
    master: str
    memory: str
    postgres_rows: int  # at most: beyond, a tenth of the rows is loaded
    lakes: Path | None  # where they are kept for the next time

    def plan(self, rows: int) -> FleetPlan:
        return FleetPlan(connectors=max(1, rows // (DAYS * USUAL_BEATS_A_DAY)), start=START, days=DAYS, seed=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    lake: Path
    plan: FleetPlan
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    seconds: float  # that passed
    processor: float  # seconds of it, of all processes below this one


def run(size: Size) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="butlers-bench-") as folder:
        settings = SessionSettings(
            scratch=Path(folder) / "spark",
            master=size.master,
            memory=size.memory,
            options={"spark.sql.shuffle.partitions": str(SHUFFLE_PARTITIONS)},
        )
        with spark_session("bench", settings) as spark:
            all_, tenth = (_make(spark, size, rows, Path(folder)) for rows in (size.rows, size.rows // 10))
            report = _measure(spark, size, all_, tenth, Path(folder))
        return report | {"rows": all_.rows, "connectors": all_.plan.connectors, "rounds": size.rounds}


def _make(spark: SparkSession, size: Size, rows: int, folder: Path) -> Made:
    plan = size.plan(rows)
    lake = (size.lakes or folder) / f"lake-{rows}"
    if not lake.exists():
        began, draft = SystemClock().monotonic(), lake.with_suffix(".draft")
        shutil.rmtree(draft, ignore_errors=True)
        made = write_lake(spark, plan, draft, tell=lambda day, count: _say(f"{day}: {count} heartbeats made"))
        _say(f"{made} heartbeats in {SystemClock().monotonic() - began:.0f} s")
        draft.rename(lake)
    return Made(lake=lake, plan=plan, rows=LakeLog(lake / HEARTBEATS.name).state().rows)


def _measure(spark: SparkSession, size: Size, made: Made, tenth: Made, folder: Path) -> dict[str, Any]:
    duck = DuckDb(made.lake, memory=size.memory.upper() + "B", scratch=folder)
    peaks = {name: Peak() for name in ("bare", "rollup")}

    def watched(name: str, way: Way) -> None:
        with watching(peaks[name]):
            way()

    ways: dict[str, Way] = {
        "bare": lambda: watched("bare", lambda: carry_out(scan_and_group(spark, made.lake))),
        "rollup": lambda: watched("rollup", lambda: carry_out(roll_up(spark, made.lake, made.plan))),
        "tenth": lambda: carry_out(roll_up(spark, tenth.lake, tenth.plan)),
        "duckdb": duck.roll_up,
    }
    taken = _rounds(size, ways)
    seconds = {name: cost.seconds for name, cost in taken.items()}
    if totals(roll_up(spark, made.lake, made.plan)) != duck.totals():
        raise SystemExit("the rollup and DuckDB disagree")
    chosen = made if made.rows <= size.postgres_rows else tenth
    seconds["postgres"], found = _postgres(chosen, folder)
    if found != _by_duckdb(chosen, size, folder):
        raise SystemExit("PostgreSQL and DuckDB disagree")
    rows = {"tenth": tenth.rows, "postgres": chosen.rows}
    processor = {name: taken[name].processor for name in ("bare", "rollup", "tenth")}
    return {
        "seconds": {name: round(value, 2) for name, value in seconds.items()},
        "rates": {name: round(rows.get(name, made.rows) / value) for name, value in seconds.items()},
        "vs_bare_spark": round(seconds["rollup"] / seconds["bare"], 2),
        "growth": round(seconds["rollup"] / made.rows / (seconds["tenth"] / tenth.rows), 2),
        "processor_seconds": {name: round(value, 2) for name, value in processor.items()},
        "processor_vs_bare_spark": round(processor["rollup"] / processor["bare"], 2),
        "peak_memory_mb": {name: peak.mb for name, peak in peaks.items()},
        "postgres_rows": chosen.rows,
    }


def _by_duckdb(made: Made, size: Size, folder: Path) -> tuple[int, ...]:
    duck = DuckDb(made.lake, memory=size.memory.upper() + "B", scratch=folder)
    duck.roll_up()
    return duck.totals()


def _postgres(made: Made, folder: Path) -> tuple[float, tuple[int, ...]]:
    clock = SystemClock()
    server = EmbeddedPostgres(folder / "postgres")
    server.start()
    try:
        peer = InPostgres(server.uri())
        began = clock.monotonic()
        peer.load(made.lake)
        _say(f"postgres: loaded in {clock.monotonic() - began:.0f} s")
        began = clock.monotonic()
        found = peer.roll_up()
        taken = clock.monotonic() - began
        _say(f"postgres: {taken:.2f} s, {found[0]} hours")
        return taken, found
    finally:
        server.stop()


def _rounds(size: Size, ways: dict[str, Way]) -> dict[str, Cost]:
    """The medians of each way; the first round warms up and is not counted."""
    taken: dict[str, list[Cost]] = {name: [] for name in ways}
    for number in range(size.rounds + 1):
        for name, way in ways.items():
            if name == "duckdb" and number != 1:
                continue
            cost = _cost(way)
            _say(f"round {number}: {name} {cost.seconds:.2f} s" + (" (warm-up)" if not number else ""))
            if number:
                taken[name].append(cost)
    return {name: _median(costs) for name, costs in taken.items()}


def _cost(way: Way) -> Cost:
    clock = SystemClock()
    used, began = processor_seconds(), clock.monotonic()
    way()
    return Cost(seconds=clock.monotonic() - began, processor=processor_seconds() - used)


def _median(costs: list[Cost]) -> Cost:
    return Cost(
        seconds=statistics.median(cost.seconds for cost in costs),
        processor=statistics.median(cost.processor for cost in costs),
    )


def _judge(report: dict[str, Any]) -> dict[str, Any]:
    goals = {"vs_bare_spark": report["vs_bare_spark"] <= VS_BARE, "growth": report["growth"] <= GROWTH}
    misses = [name for name, met in goals.items() if not met]
    return {"bench": "pipeline", **report, "goals": goals, "passed": not misses, "misses": misses}


def _say(words: str) -> None:
    print(f"bench: {words}", file=sys.stderr, flush=True)


def _size() -> tuple[Size, bool]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000, help="about how many heartbeats")
    parser.add_argument("--large", action="store_true", help=f"{LARGE} of them")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--master", default="local[*]")
    parser.add_argument("--memory", default="4g", help="of Spark's driver, and of DuckDB")
    parser.add_argument("--postgres-rows", type=int, default=2_000_000, help="with more, a tenth of them is loaded")
    parser.add_argument("--lakes", type=Path, help="folder in which lakes are kept, and found the next time")
    parser.add_argument("--quick", action="store_true", help="a try of a minute or two; judges nothing")
    given = vars(parser.parse_args())
    quick, large = given.pop("quick"), given.pop("large")
    if large:
        given["rows"] = LARGE
    if quick:
        given |= {"rows": 200_000, "rounds": 1}
    return Size(**given), quick


def main() -> int:
    size, quick = _size()
    report = _judge(run(size))
    print(json.dumps(report | {"quick": quick}), flush=True)
    return 0 if report["passed"] or quick else 1


if __name__ == "__main__":
    sys.exit(main())
